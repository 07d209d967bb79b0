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

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.core.errors import ConfigError
from securefl.training.devices import as_tensor, computed, device_of, in_mode, one_thread, records_apart
from securefl.training.heads import Activation, last_dense
from securefl.training.isolation import (
    RECORD_ERRORS,
    Read,
    lone_reader,
    raising,
    require_apart,
    scheme_of,
)
from securefl.training.losses import Loss, losses_of, records
from securefl.training.products import ROWS, RowsAlike, check_rows, padded
from securefl.training.row_wise import RowHook


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
        if scheme_of(model).alone:
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


def body_features(
    model: nn.Module, x: NDArray[Any], activation: Activation | None = None
) -> NDArray[np.float64]:
    """The head's input in evaluation mode, after the activation: (n, width) float64.

    A record's features do not depend on the records beside it (`chunks`). Raises ConfigError for a model in
    which they do.
    """
    given: list[Tensor] = []

    def note(_module: nn.Module, inputs: Any) -> None:
        given.append(inputs[0] if activation is None else activation(inputs[0]))

    def read(rows: Tensor) -> Tensor:
        given.clear()
        model(rows)
        return given[-1].double()

    handle = last_dense(model).register_forward_pre_hook(RowHook(note))
    try:
        return np.asarray(apart(model, read, as_tensor(x)).numpy())
    finally:
        handle.remove()


def record_losses(model: nn.Module, x: NDArray[Any], y: NDArray[Any], loss: Loss) -> NDArray[np.float64]:
    """The loss of each record, (n,), in evaluation mode. A label without an output of the model gives nan.

    A record's loss does not depend on the records beside it (`chunks`). A non-finite record has a non-finite
    loss. Raises DataError for arrays that do not fit, and ConfigError for a model that mixes records.
    """
    inputs, targets = records(x, y, loss)

    def read(rows: Tensor, wanted: Tensor) -> Tensor:
        # The outputs come along so that `require_apart` tries them too: a loss may round a last bit away.
        outputs = model(rows)
        return torch.cat([losses_of(outputs, wanted, loss)[:, None], outputs], dim=1)

    return np.asarray(apart(model, read, inputs, targets)[:, 0].double().numpy())
