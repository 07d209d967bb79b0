"""Chunks of a fixed number of rows, and products of matrices that compute each row of them alike.

A chunk has a multiple of UNIT rows. What is left over of it is zero (`chunks` says what that is for).

Rows of a width that is no multiple of 16 bytes begin at different alignments. Some kernels take up such a
row in another order: MKL does so on processors of AMD, for layers of few outputs. A row's last bits then hang
on its place in the chunk, and so on the records beside it (`chunks`). Zeros behind inputs and outputs bring
every row to the same alignment, forward and backward. They add nothing to a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch import Tensor
from torch.nn.functional import linear, pad
from torch.overrides import TorchFunctionMode

LINE: Final = 4
"""Rows are a multiple of so many values: 16 bytes in float32, 32 in float64."""


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., inputs), weight (outputs, inputs), bias (outputs,) -> (..., outputs): x weight^T + bias."""
    outputs, inputs = weight.shape
    more, wider = widened_by(outputs), widened_by(inputs)
    if not more and not wider:
        return linear(x, weight, bias)
    own = None if bias is None else pad(bias, (0, more))
    found = linear(pad(x, (0, wider)), pad(weight, (0, wider, 0, more)), own)[..., :outputs]
    return found.contiguous()  # as a layer's output is: a model may take a view of it


def narrow(of: Tensor, width: int) -> Tensor:
    """The first `width` columns of (slots, rows, columns): without the zeros behind."""
    return of if of.shape[2] == width else of[..., :width]


def widened(of: Tensor) -> Tensor:
    """(slots, rows, columns) with zeros behind each row, so that all rows begin at the same alignment."""
    more = widened_by(of.shape[2])
    return pad(of, (0, more)) if more else of


def widened_by(width: int) -> int:
    """How many zeros stand behind a row of this width."""
    return -width % LINE


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
