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

That a row's result does not depend on its place in the chunk is then a property of the kernels. The tests
and `securefl audit` try it, and probes refuse a model in which it fails. That it does not depend on the
other rows follows from how the model is computed (`isolation`).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from securefl.core.errors import ConfigError
from securefl.training.devices import computed, device_of, records_apart
from securefl.training.isolation import (
    RECORD_ERRORS,
    Read,
    lone_reader,
    raising,
    require_apart,
    way_of,
)
from securefl.training.products import RowsAlike
from securefl.training.tensors import in_mode
from securefl.training.threads import one_thread

UNIT: Final = 32
ROWS: Final = 64
"""Rows of a chunk, if no configuration says another number."""


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
    """The result of `read` for each record in evaluation mode, (n, ...). The other records change no bit.

    Of a record that the model raises an error for, such as a code beyond an embedding, all values are nan.

    columns: records (n, *shape), and whatever else belongs to each of them. n may be 0 or 1. They, and the
    result, are on the CPU; the model may be elsewhere. Raises ValueError for a number of rows that chunks
    cannot have, and ConfigError for a model whose records cannot be kept apart.
    """
    check_rows(rows)
    return computed(model, lambda: _apart(model, read, columns, rows))


def _apart(model: nn.Module, read: Read, columns: tuple[Tensor, ...], rows: int) -> Tensor:
    device = device_of(model)
    here = [column.to(device) for column in columns]
    with in_mode(model, training=False), one_thread(), records_apart(device):
        if way_of(model).alone:
            with torch.no_grad():
                return _read(lone_reader(model, read, here, rows), here, rows)
        with torch.inference_mode():
            require_apart(model, read, *here, rows=rows)
            with RowsAlike():
                return _read(read, here, rows)


def _read(read: Read, columns: list[Tensor], rows: int) -> Tensor:
    chunks = zip(*(torch.split(column, rows) for column in columns), strict=True)
    return torch.cat([_chunk(read, list(parts), rows) for parts in chunks]).cpu()


def _chunk(read: Read, parts: list[Tensor], rows: int) -> Tensor:
    count = len(parts[0])
    try:
        return read(*(padded(part, rows) for part in parts))[:count]
    except ConfigError:
        raise
    except RECORD_ERRORS as error:
        bad = raising(lambda at: read(*(padded(part[at], rows) for part in parts)), count, error)
    # Zeros in their place leave the others' bits as they are.
    usable = [part.clone() for part in parts]
    for part in usable:
        part[bad] = 0
    found = read(*(padded(part, rows) for part in usable))[:count].clone()
    found[bad] = torch.nan
    return found
