"""Batch-independent model passes: per-record features and losses whose bits do not depend on other records.

The number of rows selects a float kernel, and thereby the last bits of every row. Records may lie on the kink
of a ReLU, or on the edge between two integers. If one record is added, they all change together, and their
sum moves by far more than the sensitivity (specification of DP, 2.13). So every noised value is computed from
chunks of a fixed number of rows:

- The number is public: a constant or configuration, not computed from the records.
- Unused rows hold zeros, and their results are discarded.
- Each chunk has its own memory, since kernels also depend on the alignment of an array.
- The number is a multiple of UNIT. Elementwise functions compute the last few values of a tensor by other
  code, and a tensor with such a number of rows has no such values.
- Everything is computed on one thread, since several threads divide a tensor at varying places.
- Dense layers compute each row at the same alignment (`products`).

Whether a row's result depends on its place in the chunk is then a property of the kernels. The tests and
`securefl audit` test it, and `probes` refuses a model that fails. `isolation` ensures that the result does
not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.training.devices import as_tensor, computed, device_of, in_mode, one_thread, records_apart
from securefl.training.heads import Activation, last_layers
from securefl.training.isolation import (
    Read,
    lone_reader,
    require_apart,
    without_raising,
)
from securefl.training.losses import TrainingLoss, losses_of, name_of, records
from securefl.training.products import ROWS, RowsAlike, check_rows, padded
from securefl.training.row_wise import RowHook, outside


def per_record_outputs(
    model: nn.Module, what: Hashable, read: Read, *columns: Tensor, rows: int = ROWS
) -> Tensor:
    """The result of `read` for each record in evaluation mode, (n, ...). Other records change no bit of it.

    If the model raises an error for a record, such as a code beyond an embedding, the record's values are
    nan.

    what: names the function that `read` computes from the model: equal names are equal functions.
    columns: records (n, *shape), and further columns such as targets (n, ...). n may be 0 or 1. Columns and
        result are on the CPU; the model may be on another device.

    Raises ValueError if chunks cannot have this number of rows, and ConfigError if the model's records cannot
    be kept apart.
    """
    check_rows(rows)
    return computed(model, lambda: _apart(model, what, read, columns, rows))


def _apart(model: nn.Module, what: Hashable, read: Read, columns: tuple[Tensor, ...], rows: int) -> Tensor:
    device = device_of(model)
    here = [column.to(device) for column in columns]
    with in_mode(model, training=False), one_thread(), records_apart(device):
        if outside(model) is not None:
            with torch.no_grad():
                return _read(lone_reader(model, what, read, here, rows), here, rows)
        with torch.inference_mode():
            require_apart(model, what, read, *here, rows=rows)

            def alike(*parts: Tensor) -> Tensor:
                with RowsAlike():
                    return read(*parts)

            return _read(alike, here, rows)


def _read(read: Read, columns: list[Tensor], rows: int) -> Tensor:
    chunks = zip(*(torch.split(column, rows) for column in columns), strict=True)
    return torch.cat([_chunk(read, list(parts), rows) for parts in chunks]).cpu()


def _chunk(read: Read, parts: list[Tensor], rows: int) -> Tensor:
    def compute(*own: Tensor) -> Tensor:
        return read(*(padded(part, rows) for part in own))[: len(own[0])]

    found, bad = without_raising(compute, parts)
    if bad:
        found = found.clone()
        found[bad] = torch.nan
    return found


def body_features(
    model: nn.Module, x: NDArray[Any], activation: Activation | None = None, *, layers: int = 1
) -> NDArray[np.float64]:
    """The features of records (n, *shape): the head's input in evaluation mode, after the activation.

    layers: the number of dense layers, from the last, that are the head.
    Returns float64 (n, width). A record's features do not depend on other records (`chunks`). Raises
    ConfigError if the model's records cannot be kept apart.
    """
    given: list[Tensor] = []

    def note(_module: nn.Module, inputs: Any) -> None:
        given.append(inputs[0] if activation is None else activation(inputs[0]))

    def read(rows: Tensor) -> Tensor:
        given.clear()
        model(rows)
        return given[-1].double()

    with last_layers(model, layers)[0].register_forward_pre_hook(RowHook(note)):
        kind = ("features", activation, layers)
        return np.asarray(per_record_outputs(model, kind, read, as_tensor(x)).numpy())


def record_losses(
    model: nn.Module, x: NDArray[Any], y: NDArray[Any], loss: TrainingLoss
) -> NDArray[np.float64]:
    """The loss of each record in evaluation mode. It does not depend on other records (`chunks`).

    >>> from securefl.training import ModelConfig, record_losses
    >>> import numpy as np
    >>> model = ModelConfig(kind="mlp", hidden=()).build((3,), 2, seed=0)
    >>> record_losses(model, np.zeros((4, 3), np.float32), np.array([0, 1, 1, 9]), "cross_entropy").shape
    (4,)

    Args:
        model: A model from records (n, *shape) to outputs.
        x: Records, shape (n, *shape). n may be 0 or 1.
        y: int64 labels (n,) for "cross_entropy", float32 targets (n, targets) for "mse".
        loss: The loss. Of a declared one, the loss of the same targets is computed, without weights.

    Returns:
        float64 (n,). It is nan if the model has no output for the label, and not finite if the record is not.

    Raises:
        DataError: Lengths or types of the arrays do not fit.
        ConfigError: The model mixes records.
    """
    inputs, targets = records(x, y, loss)
    loss = name_of(loss)

    def read(rows: Tensor, wanted: Tensor) -> Tensor:
        # The outputs are returned so that `require_apart` tests them too: a loss may round a differing bit
        # away.
        outputs = model(rows)
        return torch.cat([losses_of(outputs, wanted, loss)[:, None], outputs], dim=1)

    return np.asarray(
        per_record_outputs(model, ("losses", loss), read, inputs, targets)[:, 0].double().numpy()
    )
