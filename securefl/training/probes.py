"""Public records that a model is tried on before it sees real ones.

A probe proves nothing about what a model computes; that a model keeps records apart follows from how it is
computed (`isolation`). Probes are for what only a trial shows: whether the last bits of a row hang on its
place, and whether a model is another one for a batch than for its records one by one. They are drawn, not
taken from the records: a refusal that hung on records would tell of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

_CODES: Final = 8
"""Codes of a probe where no embedding says how many there are."""

Change = Callable[[Tensor], Tensor]
KINDS: Final[Mapping[str, Change]] = {
    "small": lambda drawn: 1e-3 * drawn,
    "large": lambda drawn: 1e3 * drawn,
    "negative": lambda drawn: -drawn,
    "sparse": lambda drawn: torch.where(drawn > 0.9, drawn, 0.0),
    "around zero": lambda drawn: 4 * drawn - 2,
    "equal": lambda drawn: drawn[-1:].expand_as(drawn),
}
"""What is made of values in [0, 1), beside themselves."""

Probe = tuple[list[Tensor], list[Tensor]]
"""Two chunks: two records in turns (`turns`), and the last row of that behind zeros."""


def probes_of(columns: Sequence[Tensor], rows: int, *, codes: int = 2, change: Change | None = None) -> Probe:
    """columns: only their shapes, types and device are used. codes: integers are below it."""
    generator = torch.Generator().manual_seed(0)
    own = turns(rows)
    full = []
    for column in columns:
        drawn = torch.rand((2, *column.shape[1:]), generator=generator)
        full.append(_as(drawn, column, codes, change)[own].to(column.device))
    alone = [torch.zeros_like(column) for column in full]
    for column, place in zip(full, alone, strict=True):
        place[-1] = column[-1]
    return full, alone


def all_probes(columns: Sequence[Tensor], rows: int, codes: int) -> Iterator[tuple[str, Probe]]:
    """Probes of every kind, each for passes of its own: the largest value of one would hide another's."""
    yield "usual", probes_of(columns, rows, codes=codes)
    for name, change in KINDS.items():
        yield name, probes_of(columns, rows, codes=codes, change=change)


def mixed(columns: Sequence[Tensor], rows: int, codes: int) -> list[Tensor]:
    """One chunk of records that all differ, of every kind in turns."""
    generator = torch.Generator().manual_seed(1)
    changes = [None, *KINDS.values()]
    found = []
    for column in columns:
        drawn = torch.rand((rows, *column.shape[1:]), generator=generator)
        parts = [_as(drawn[at : at + 1], column, codes, changes[at % len(changes)]) for at in range(rows)]
        found.append(torch.cat(parts).to(column.device))
    return found


def _as(drawn: Tensor, column: Tensor, codes: int, change: Change | None) -> Tensor:
    if column.is_floating_point():
        return (drawn if change is None else change(drawn)).to(column.dtype)
    # a label or a code: all of a small range occur
    return (drawn * (codes if column.ndim > 1 else 2)).floor().to(column.dtype)


def codes_of(model: nn.Module) -> int:
    """How many codes every embedding of the model knows, as far as its layers say."""
    known = [layer.num_embeddings for layer in model.modules() if isinstance(layer, nn.Embedding)]
    return max(1, min(known, default=_CODES))


def turns(rows: int) -> Tensor:
    """Which of two records each row holds: 0, 1, 1, 0, 1, 0, 0, 1, ... (Thue and Morse)."""
    # Each has every residue of every small divisor. Records that simply alternate would never change parity.
    return torch.tensor([row.bit_count() % 2 for row in range(rows)])


def stay_apart(full: Any, alone: Any) -> bool:
    """Whether each of two records in turns has the same bits everywhere, and the last one among zeros."""
    # A layer may return something else than a tensor; the tensors behind it are compared all the same.
    if not (isinstance(full, Tensor) and isinstance(alone, Tensor)):
        return True
    if full.ndim == 0 or full.shape != alone.shape or len(full) < 2:
        return False
    # nan differs from itself, and must count as equal here
    one, other = (part.detach().nan_to_num() for part in (full, alone))
    return torch.equal(one, one[turns(len(one)).to(one.device)]) and torch.equal(one[-1], other[-1])
