"""Dropout and other random draws in private training: each record's values come from a secret source.

torch draws a mask for a whole batch from a public stream. A record's mask then depends on its place: if the
first of 400 records is removed, all others get new masks, and the sum moves by 20.9 C (specification of DP,
2.18b). Here each record has its own random values, its tape. They are derived from a secret key of the step
and from the record's bytes alone. So neither the record's place nor another record changes them, and equal
records have equal masks.

The draws of a pass can depend on shapes and not on values. So a public pass counts the values that a record
draws, and each private pass takes as many from the tape, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from securefl.core.entropy import derived
from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source


@dataclass(frozen=True)
class DrawCount:
    """The number of random values that one record's pass draws: uniform in [0, 1), and standard normal."""

    uniform: int = 0
    normal: int = 0

    def __bool__(self) -> bool:
        return bool(self.uniform or self.normal)


@dataclass(frozen=True)
class RecordRandomness:
    """The random values of each record's pass: uniform (n, u) and normal (n, v), float32."""

    uniform: Tensor
    normal: Tensor

    def __getitem__(self, at: slice | Tensor) -> RecordRandomness:
        return RecordRandomness(self.uniform[at], self.normal[at])


def tape_of(x: Tensor, y: Tensor, length: DrawCount, key: SecretKey) -> RecordRandomness:
    """Derive the tape of each record in a step with this key.

    x: (n, *shape), y: (n, ...). A record's values depend on the key and its own bytes alone. -0.0 counts as
    0.0.
    """
    parts = [_bytes(x), _bytes(y)]
    uniform = np.empty((len(x), length.uniform), np.float32)
    normal = np.empty((len(x), length.normal), np.float32)
    for row, record in enumerate(zip(*parts, strict=True)):
        source = Source(derived(key, b"".join(len(part).to_bytes(8, "little") + part for part in record)))
        words = source.words(-(-length.uniform // 2)).view("<u4")[: length.uniform]
        uniform[row] = (words >> 8) * np.float32(2**-24)  # 24 bits, as torch's own float32
        normal[row] = source.normal(length.normal)
    return RecordRandomness(torch.from_numpy(uniform).to(x.device), torch.from_numpy(normal).to(x.device))


def _bytes(column: Tensor) -> list[bytes]:
    values = column.detach().cpu().numpy()
    if values.dtype.kind == "f":
        values = values + np.zeros((), values.dtype)  # turns -0.0 into 0.0
    return [np.ascontiguousarray(row).tobytes() for row in values]


class TapeReader:
    """The position of one pass on a tape. Without a tape it counts the draws and returns middle values.

    rows: the number of records that the pass computes at a time, which is the first dimension of every draw.
    """

    def __init__(self, tape: RecordRandomness | None, rows: int) -> None:
        self._tape, self._rows = tape, rows
        self._at = {"uniform": 0, "normal": 0}

    @property
    def length(self) -> DrawCount:
        """The number of values drawn so far."""
        return DrawCount(**self._at)

    def take(self, kind: str, shape: Sequence[int]) -> Tensor:
        shape = tuple(shape)
        if not shape or shape[0] != self._rows:
            raise ConfigError(f"Expected draws of one row a record ({self._rows}), got shape {shape}.")
        start, count = self._at[kind], prod(shape[1:])
        self._at[kind] += count
        if self._tape is None:
            return torch.full(shape, 0.5 if kind == "uniform" else 0.0)
        values: Tensor = getattr(self._tape, kind)
        if start + count > values.shape[-1]:
            raise ConfigError(
                "Expected a model that draws as many values in every pass, got one that draws more. Let "
                "shapes alone decide the draws."
            )
        return values[:, start : start + count].reshape(shape)


class Dispatching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that sees what torch's functions consist of, below `vmap`. The compiler is not loaded."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch would import its compiler at the first operator, which takes a second


class Drawing(Dispatching):
    """A context in which a model draws from a tape, and from nothing else.

    A draw has the records' dimension first, and dropout, attention and others draw by the same few operators.
    """

    def __init__(self, taken: TapeReader) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._taken = taken

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **given)
        if (rule := _RULES.get(func)) is None or isinstance(given.get("generator"), torch.Generator):
            raise ConfigError(
                "Expected draws by dropout, rand, randn or bernoulli from torch's default generator, got "
                f"{func}{' of its own' if rule else ''}. The secret source cannot replace it: "
                "draw by one of these, without `generator`."
            )
        return rule(self._taken, *args, **given)


# Rules for operators of torch that draw ---------------------------------------------------------------

_LEAST: Final = 2**-25
"""In place of a uniform value 0, whose logarithm is infinite."""


def _bernoulli(taken: TapeReader, input: Tensor, p: float | None = None) -> Tensor:
    return (taken.take("uniform", input.shape).to(input.device) < (input if p is None else p)).to(input.dtype)


def _bernoulli_(taken: TapeReader, input: Tensor, p: float = 0.5) -> Tensor:
    return input.copy_(_bernoulli(taken, input, p))


def _exponential_(taken: TapeReader, input: Tensor, rate: float = 1.0) -> Tensor:
    return input.copy_(taken.take("uniform", input.shape).clamp(min=_LEAST).log() / -rate)


def _native_dropout(taken: TapeReader, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Dropout of a GPU: the outputs, and the mask for their gradient."""
    keep = 1 - p if train or train is None else 1.0
    mask = _bernoulli(taken, input, keep)
    return input * mask / keep if keep else input * 0, mask.bool()


def _made(kind: str) -> Callable[..., Tensor]:
    def rule(taken: TapeReader, like: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
        """like: a shape, or a tensor of it."""
        own = like if isinstance(like, Tensor) else torch.empty(0, dtype=dtype, device=device)
        shape = like.shape if isinstance(like, Tensor) else like
        return taken.take(kind, shape).to(dtype=dtype or own.dtype, device=own.device)

    return rule


_ATEN: Final = torch.ops.aten
_RULES: Final[Mapping[Any, Callable[..., Any]]] = {
    _ATEN.bernoulli.default: _bernoulli,
    _ATEN.bernoulli.p: _bernoulli,
    _ATEN.bernoulli_.float: _bernoulli_,
    _ATEN.exponential_.default: _exponential_,
    _ATEN.native_dropout.default: _native_dropout,
    _ATEN.rand.default: _made("uniform"),
    _ATEN.rand_like.default: _made("uniform"),
    _ATEN.randn.default: _made("normal"),
    _ATEN.randn_like.default: _made("normal"),
}
"""For each operator of torch that draws: the function that replaces it and draws from a tape."""
