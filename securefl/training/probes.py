"""Probes: public made-up records that test a model before it reads private ones.

A probe is not a proof: `isolation` ensures that a model keeps records apart. Probes detect two faults that
only a test shows: last bits of a row that depend on its place, and a model that computes a batch otherwise
than its records one by one. Probes are drawn and not taken from the records, since a refusal that depends on
records would reveal them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

_CODES: Final = 8
"""The number of codes of a probe if the model has no embedding that sets it."""

Change = Callable[[Tensor], Tensor]
KINDS: Final[Sequence[Change]] = (
    lambda drawn: drawn,
    lambda drawn: 1e-3 * drawn,
    lambda drawn: 1e3 * drawn,
    lambda drawn: -drawn,
    lambda drawn: torch.where(drawn > 0.9, drawn, 0.0),
    lambda drawn: 4 * drawn - 2,  # around zero
    lambda drawn: drawn[-1:].expand_as(drawn),  # equal
)
"""The changes of drawn values in [0, 1) that give the kinds of probes."""

Probe = tuple[list[Tensor], list[Tensor]]
"""Two chunks: one with two records in turns (`turns`), and one with its last row after rows of zeros."""


def probes_of(columns: Sequence[Tensor], rows: int, *, codes: int = 2, change: Change = KINDS[0]) -> Probe:
    """Make a probe. columns: only their shapes, types and device are used. codes: the bound of integers."""
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


def all_probes(columns: Sequence[Tensor], rows: int, codes: int) -> Iterator[Probe]:
    """A probe of every kind. Each needs its own passes, since one's largest value would hide another's."""
    for change in KINDS:
        yield probes_of(columns, rows, codes=codes, change=change)


def mixed(columns: Sequence[Tensor], rows: int, codes: int) -> list[Tensor]:
    """One chunk of records that all differ, of every kind in turns."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for column in columns:
        drawn = torch.rand((rows, *column.shape[1:]), generator=generator)
        parts = [_as(drawn[at : at + 1], column, codes, KINDS[at % len(KINDS)]) for at in range(rows)]
        found.append(torch.cat(parts).to(column.device))
    return found


def _as(drawn: Tensor, column: Tensor, codes: int, change: Change) -> Tensor:
    if column.is_floating_point():
        return change(drawn).to(column.dtype)
    # A label or a code: all values of a small range occur.
    return (drawn * (codes if column.ndim > 1 else 2)).floor().to(column.dtype)


def codes_of(model: nn.Module) -> int:
    """The number of codes that every embedding of the model knows, or a default if it has no embedding."""
    tables = nn.Embedding | nn.EmbeddingBag
    known = [layer.num_embeddings for layer in model.modules() if isinstance(layer, tables)]
    return max(1, min(known, default=_CODES))


def turns(rows: int) -> Tensor:
    """The number, 0 or 1, of the record in each row: 0, 1, 1, 0, 1, 0, 0, 1, ... (Thue and Morse)."""
    # Each record's rows have every residue of every small divisor. Alternating records would keep their
    # parity.
    return torch.tensor([row.bit_count() % 2 for row in range(rows)])


def stay_apart(full: Any, alone: Any) -> bool:
    """Whether the results of two records in turns have the same bits in all places, and among zeros.

    full, alone: the results for the two chunks of a `Probe`.
    """
    # A layer may return another object than a tensor. Later layers' tensors are compared anyway.
    if not (isinstance(full, Tensor) and isinstance(alone, Tensor)):
        return True
    if full.ndim == 0 or full.shape != alone.shape or len(full) < 2:
        return False
    # nan differs from itself, and must count as equal here.
    one, other = (part.detach().nan_to_num() for part in (full, alone))
    return torch.equal(one, one[turns(len(one)).to(one.device)]) and torch.equal(one[-1], other[-1])
