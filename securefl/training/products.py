"""Chunks of a fixed number of rows, and matrix products whose rows have bits independent of their place.

A chunk has a multiple of UNIT rows. Its unused rows are zero (`chunks` explains why).

Rows of a width that is not a multiple of 16 bytes begin at different alignments. Some kernels sum such rows
in different orders: MKL does so on processors of AMD, for layers of few outputs. A row's last bits then
depend on its place in the chunk, and so on the other records (`chunks`). Zeros after inputs and outputs give
every row the same alignment, forward and backward. They do not change a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch import Tensor
from torch.nn.functional import linear, pad
from torch.overrides import TorchFunctionMode

LINE: Final = 4
"""The width of a row is a multiple of this number of values: 16 bytes in float32, 32 in float64."""


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x (..., inputs), weight (outputs, inputs), bias (outputs,) -> (..., outputs)."""
    outputs, inputs = weight.shape
    more, wider = widened_by(outputs), widened_by(inputs)
    if not more and not wider:
        return linear(x, weight, bias)
    own = None if bias is None else pad(bias, (0, more))
    found = linear(pad(x, (0, wider)), pad(weight, (0, wider, 0, more)), own)[..., :outputs]
    return found.contiguous()  # like a layer's output, of which a model may take a view


def narrow(of: Tensor, width: int) -> Tensor:
    """The first `width` columns of (slots, rows, columns), without the zeros after them."""
    return of if of.shape[2] == width else of[..., :width]


def widened(of: Tensor) -> Tensor:
    """(slots, rows, columns) with zeros after each row, so that all rows begin at the same alignment."""
    more = widened_by(of.shape[2])
    return pad(of, (0, more)) if more else of


def widened_by(width: int) -> int:
    """The number of zeros after a row of this width."""
    return -width % LINE


class RowsAlike(TorchFunctionMode):
    """A context in which dense layers of any model compute each row at the same alignment, by `dense`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is not linear:
            return func(*args, **named)
        # A model may name the argument as torch does.
        return dense(*([named.pop("input")] if "input" in named else args), **named)


UNIT: Final = 32
"""The number of rows of a chunk is a multiple of this."""
ROWS: Final = 64
"""The rows of a chunk, unless a configuration sets another number."""


def check_rows(rows: int) -> None:
    """Raises ValueError unless chunks may have this number of rows."""
    if rows < UNIT or rows % UNIT:
        raise ValueError(
            f"Expected a chunk of a multiple of {UNIT} rows, got {rows}. With other numbers, torch computes "
            "the last values by other code."
        )


def padded(part: Tensor, rows: int) -> Tensor:
    """A copy of at most `rows` rows, followed by zeros: (rows, *shape)."""
    whole = part.new_empty((rows, *part.shape[1:]))
    whole[: len(part)] = part
    whole[len(part) :] = 0
    return whole
