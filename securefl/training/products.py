"""Products of matrices that compute each row alike, wherever it stands.

Rows of a width that is no multiple of 16 bytes begin at different alignments. Some kernels take up such a
row in another order: MKL does so on processors of AMD, for layers of few outputs. A row's last bits then hang
on its place in the chunk, and so on the records beside it (`chunks`). Zeros behind inputs and outputs bring
every row to the same alignment, forward and backward. They add nothing to a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear, pad
from torch.overrides import TorchFunctionMode

LINE: Final = 4
"""Rows are a multiple of so many values: 16 bytes in float32, 32 in float64."""


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., inputs), weight (outputs, inputs), bias (outputs,) -> (..., outputs): x weight^T + bias."""
    outputs, inputs = weight.shape
    more, wider = -outputs % LINE, -inputs % LINE
    if not more and not wider:
        return linear(x, weight, bias)
    own = None if bias is None else pad(bias, (0, more))
    found = linear(pad(x, (0, wider)), pad(weight, (0, wider, 0, more)), own)[..., :outputs]
    return found.contiguous()  # as a layer's output is: a model may take a view of it


def stacked(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same of several models: (slots, rows, inputs), (slots, outputs, inputs) -> (slots, rows, outputs).

    bias: (slots, outputs).
    """
    outputs, inputs = weight.shape[1:]
    more, wider = -outputs % LINE, -inputs % LINE
    if more or wider:
        weight = pad(weight, (0, wider, 0, more))
    if wider:
        x = pad(x, (0, wider))
    found = torch.bmm(x, weight.transpose(1, 2))[..., :outputs]
    return found if bias is None else found + bias[:, None]


class RowsAlike(TorchFunctionMode):
    """A context in which dense layers of any model compute each row alike, by `dense`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return (dense if func is linear else func)(*args, **(kwargs or {}))
