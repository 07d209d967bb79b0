"""Passes through a model in which no record's result depends on the records beside it.

The number of rows selects a float kernel, and with it the last bits of every row. Records may lie on the kink
of a ReLU, or on the edge between two integers. When one record is added, they all change together, and their
sum moves by far more than one record may move it (specification of DP, 2.13). So every noised value comes
from chunks of a fixed number of rows:

- The number is public: a constant or configuration, never worked out from the records.
- Rows that are left over hold zeros, and their results are thrown away.
- Each chunk has memory of its own, since kernels also change with the alignment of an array.
- The number is a multiple of UNIT. Elementwise functions compute the last few values of a tensor in other
  code, and a tensor of so many rows has no such values.
- Everything is computed on one thread, since threads divide a tensor at places of their own.
- Dense layers compute each row at the same alignment (`products`).

That a row's result does not depend on its place in the chunk is then a property of the kernels. The tests and
`securefl audit` try it, and `require_apart` refuses a model in which it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from securefl.core.errors import ConfigError
from securefl.training.devices import computed, device_of, records_apart
from securefl.training.products import RowsAlike
from securefl.training.tensors import in_mode
from securefl.training.threads import one_thread

UNIT: Final = 32
ROWS: Final = 64
"""Rows of a chunk, if no configuration says another number."""

Read = Callable[..., Tensor]
"""Columns (rows, *shape) -> (rows, ...), by a pass through a model."""


def check_rows(rows: int) -> None:
    """Raises ValueError unless chunks may have so many rows."""
    if rows < UNIT or rows % UNIT:
        raise ValueError(
            f"Expected a chunk of a multiple of {UNIT} rows, got {rows}. Other numbers leave values that "
            "torch computes in other code."
        )


def padded(part: Tensor, rows: int) -> Tensor:
    """At most `rows` rows, followed by zeros: (rows, *shape), in memory of its own."""
    whole = part.new_empty((rows, *part.shape[1:]))
    whole[: len(part)] = part
    whole[len(part) :] = 0
    return whole


def apart(model: nn.Module, read: Read, *columns: Tensor, rows: int = ROWS) -> Tensor:
    """The result of `read` for each record in evaluation mode, (n, ...). The other records change no bit of
    it.

    columns: records (n, *shape), and whatever else belongs to each of them. n may be 0 or 1. They, and the
    result, are on the CPU; the model may be elsewhere. Raises ValueError for a number of rows that chunks
    cannot have, and ConfigError for a model that mixes records.
    """
    check_rows(rows)
    return computed(model, lambda: _apart(model, read, columns, rows))


def _apart(model: nn.Module, read: Read, columns: tuple[Tensor, ...], rows: int) -> Tensor:
    device = device_of(model)
    here = [column.to(device) for column in columns]
    with in_mode(model, training=False), torch.inference_mode(), one_thread(), records_apart(device):
        require_apart(model, read, *here, rows=rows)
        chunks = zip(*(torch.split(column, rows) for column in here), strict=True)
        with RowsAlike():
            found = [read(*(padded(p, rows) for p in parts))[: len(parts[0])] for parts in chunks]
        return torch.cat(found).cpu()


def require_apart(model: nn.Module, read: Read, *columns: Tensor, rows: int) -> None:
    """Try the model on two public records in all places of a chunk, and on one of them among zeros.

    columns: only their shapes, types and device are used. Dropout is switched off meanwhile: a row's mask is
    random, whatever the other rows hold. Raises ConfigError that names the first layer in which a row depends
    on its place, or on other rows.
    """
    # The probes are drawn, not taken from the records: a refusal that depended on records would tell of them.
    dropouts = [layer for layer in model.modules() if isinstance(layer, _DropoutNd) and layer.training]
    for layer in dropouts:
        layer.training = False
    try:
        probes = probes_of(columns, rows)
        with RowsAlike():
            if stay_apart(*(read(*probe) for probe in probes)):
                return
            culprit = _culprit(model, read, probes)
    finally:
        for layer in dropouts:
            layer.training = True
    raise ConfigError(
        f"Expected a model that computes each row of a chunk on its own, {culprit} does not. A record's "
        "result would depend on the others, and no noise is sized for that; use another model, or do without "
        "privacy per record."
    )


def probes_of(columns: tuple[Tensor, ...], rows: int) -> tuple[list[Tensor], list[Tensor]]:
    """Two chunks: one of two records in turns (`_turns`), and one with the last of them behind zeros."""
    generator = torch.Generator().manual_seed(0)
    turns = _turns(rows)
    drawn = [torch.rand((2, *c.shape[1:]), generator=generator).to(c.dtype)[turns] for c in columns]
    full = [probe.to(column.device) for probe, column in zip(drawn, columns, strict=True)]
    alone = [torch.zeros_like(column) for column in full]
    for column, place in zip(full, alone, strict=True):
        place[-1] = column[-1]
    return full, alone


def _turns(rows: int) -> Tensor:
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
    return torch.equal(one, one[_turns(len(one)).to(one.device)]) and torch.equal(one[-1], other[-1])


def _culprit(model: nn.Module, read: Read, probes: tuple[list[Tensor], list[Tensor]]) -> str:
    """The innermost layer that is the first to mix rows, in words."""
    seen: list[tuple[str, nn.Module, Any]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda layer, _, output: seen.append((name, layer, output))

    handles = [layer.register_forward_hook(note(name)) for name, layer in model.named_modules() if name]
    try:
        for probe in probes:
            read(*probe)
    finally:
        for handle in handles:
            handle.remove()
    half = len(seen) // 2
    for (name, layer, full), (_, _, alone) in zip(seen[:half], seen[half:], strict=True):
        # hooks fire when a layer ends, so an inner layer comes before the one around it
        if not stay_apart(full, alone):
            return f"layer {name!r} ({layer})"
    return f"the forward of {type(model).__name__}"
