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
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from securefl.core.entropy import derived
from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source


@dataclass(frozen=True)
class Length:
    """The number of random values that one record's pass draws: uniform in [0, 1), and standard normal."""

    uniform: int = 0
    normal: int = 0

    def __bool__(self) -> bool:
        return bool(self.uniform or self.normal)


@dataclass(frozen=True)
class Tape:
    """The random values of each record's pass: uniform (n, u) and normal (n, v), float32."""

    uniform: Tensor
    normal: Tensor

    def __getitem__(self, at: slice | Tensor) -> Tape:
        return Tape(self.uniform[at], self.normal[at])


def tape_of(x: Tensor, y: Tensor, length: Length, key: SecretKey) -> Tape:
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
    return Tape(torch.from_numpy(uniform).to(x.device), torch.from_numpy(normal).to(x.device))


def _bytes(column: Tensor) -> list[bytes]:
    values = column.detach().cpu().numpy()
    if values.dtype.kind == "f":
        values = values + np.zeros((), values.dtype)  # turns -0.0 into 0.0
    return [np.ascontiguousarray(row).tobytes() for row in values]


class Taken:
    """The position of one pass on a tape. Without a tape it counts the draws and returns middle values.

    rows: the number of records that the pass computes at a time, which is the first dimension of every draw.
    None in a pass of one record, whose tape has no rows.
    """

    def __init__(self, tape: Tape | None, rows: int | None = None) -> None:
        self._tape, self._rows = tape, rows
        self._at = {"uniform": 0, "normal": 0}

    @property
    def length(self) -> Length:
        """The number of values drawn so far."""
        return Length(**self._at)

    def take(self, kind: str, shape: Sequence[int]) -> Tensor:
        shape = tuple(shape)
        if self._rows is not None and (not shape or shape[0] != self._rows):
            raise ConfigError(f"Expected draws of one row a record ({self._rows}), got shape {shape}.")
        own = shape if self._rows is None else shape[1:]
        start, count = self._at[kind], prod(own)
        self._at[kind] += count
        if self._tape is None:
            return torch.full(shape, 0.5 if kind == "uniform" else 0.0)
        values: Tensor = getattr(self._tape, kind)
        if start + count > values.shape[-1]:
            raise ConfigError(
                "Expected a model that draws as many values in every pass, got one that draws more. Let "
                "shapes alone decide the draws."
            )
        return values[..., start : start + count].reshape(shape)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        return self.take("uniform", shape)

    def normal(self, shape: Sequence[int]) -> Tensor:
        return self.take("normal", shape)


class Drawing(TorchFunctionMode):
    """A context in which a model of listed layers (`row_wise`) draws from a tape."""

    def __init__(self, taken: Taken) -> None:
        super().__init__()
        self._taken = taken

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if (rule := RULES.get(func)) is not None:
            return rule(self._taken, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


# Rules for functions of torch that draw ---------------------------------------------------------------
# Each has the parameters of torch's own function. They replace it in evaluation too, and use no generator of
# torch.

_ALPHA: Final = -1.7580993408473766
"""The value that alpha dropout writes over a dropped one: minus the product of SELU's two constants."""


def _mask(taken: Taken, shape: Sequence[int], p: float) -> Tensor:
    """A mask that is 1 with probability 1 - p, and 0 otherwise."""
    return (taken.uniform(shape) >= p).to(torch.float32)


def _dropout(
    taken: Taken, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **_: Any
) -> Tensor:
    return _dropped(taken, input, p, training, inplace, tuple(input.shape))


def _dropped(
    taken: Taken, input: Tensor, p: float, training: bool, inplace: bool, shape: Sequence[int]
) -> Tensor:
    _require_share(p)
    if not training or p == 0:
        return input
    scale = _mask(taken, shape, p).to(input.device) / (1 - p) if p < 1 else input.new_zeros(tuple(shape))
    return input.mul_(scale) if inplace else input * scale


def _feature_dropout(
    taken: Taken, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **_: Any
) -> Tensor:
    return _dropped(taken, input, p, training, inplace, _channels(input))


def _channels(input: Tensor) -> tuple[int, ...]:
    """The shape of one value a channel and row."""
    return (*input.shape[:2], *(1 for _ in input.shape[2:]))


def _alpha_dropout(
    taken: Taken, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    return _alpha(taken, input, p, training, inplace, tuple(input.shape))


def _feature_alpha_dropout(
    taken: Taken, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    return _alpha(taken, input, p, training, inplace, _channels(input))


def _alpha(
    taken: Taken, input: Tensor, p: float, training: bool, inplace: bool, shape: Sequence[int]
) -> Tensor:
    _require_share(p)
    if not training or p == 0:
        return input
    if p == 1:
        return input.mul_(0) if inplace else input * 0
    # Klambauer et al., "Self-normalizing neural networks" (2017): this keeps mean and variance.
    scale = ((1 - p) * (1 + p * _ALPHA**2)) ** -0.5
    mask = _mask(taken, shape, p).to(input.device)
    found = scale * (input * mask + _ALPHA * (1 - mask)) - scale * _ALPHA * p
    return input.copy_(found) if inplace else found


def _require_share(p: float) -> None:
    if not 0 <= p <= 1:
        raise ConfigError(f"Expected a share of dropout in [0, 1], got {p}.")


def _attention(
    taken: Taken,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    # Also without dropout: vmap would call torch's kernels once for each record, since they take a batch.
    if enable_gqa:
        heads = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(heads, -3), value.repeat_interleave(heads, -3)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = torch.where(seen, scores, -torch.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = torch.where(attn_mask, scores, -torch.inf) if boolean else scores + attn_mask
    return _dropout(taken, scores.softmax(-1), dropout_p) @ value


def _size(given: Sequence[Any]) -> tuple[int, ...]:
    """The shape in (2, 3) and in ((2, 3),)."""
    return tuple(given[0] if len(given) == 1 and not isinstance(given[0], int) else given)


def _kind(drawn: Tensor, dtype: torch.dtype | None, device: Any, **_: Any) -> Tensor:
    return drawn.to(dtype=dtype or torch.get_default_dtype(), device=device)


def _rand(taken: Taken, *size: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
    shape = kwargs.pop("size", None)
    return _kind(taken.uniform(_size(size) if shape is None else shape), dtype, device)


def _randn(taken: Taken, *size: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
    shape = kwargs.pop("size", None)
    return _kind(taken.normal(_size(size) if shape is None else shape), dtype, device)


def _rand_like(taken: Taken, input: Tensor, *, dtype: Any = None, **_: Any) -> Tensor:
    return _kind(taken.uniform(input.shape), dtype or input.dtype, input.device)


def _randn_like(taken: Taken, input: Tensor, *, dtype: Any = None, **_: Any) -> Tensor:
    return _kind(taken.normal(input.shape), dtype or input.dtype, input.device)


def _bernoulli(taken: Taken, input: Tensor, p: float | None = None, **_: Any) -> Tensor:
    return (taken.uniform(input.shape).to(input.device) < (input if p is None else p)).to(input.dtype)


def _normal(taken: Taken, mean: Any, std: Any = 1.0, size: Any = None, **_: Any) -> Tensor:
    shape = size if size is not None else np.broadcast_shapes(_shape(mean), _shape(std))
    found: Tensor = mean + std * taken.normal(shape)
    return found


def _shape(of: Any) -> tuple[int, ...]:
    return tuple(of.shape) if isinstance(of, Tensor) else ()


def _gumbel_softmax(
    taken: Taken, logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    # torch's own function fills a new tensor in place, which vmap does not permit.
    drawn = taken.uniform(logits.shape).to(logits.device).clamp(min=2**-25)
    soft = ((logits - (-drawn.log()).log()) / tau).softmax(dim)
    if not hard:
        return soft
    one = (soft == soft.amax(dim, keepdim=True)).to(soft.dtype)
    return one - soft.detach() + soft


def _of_own_generator(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def checked(taken: Taken, *args: Any, **kwargs: Any) -> Tensor:
        given = [*args, *kwargs.values()]
        if any(isinstance(one, torch.Generator) for one in given):
            raise ConfigError(
                "Expected draws from torch's default generator, got a generator of the model's own. Its "
                "stream is public and continues from record to record. Leave `generator` out: private "
                "training then draws from the secret source."
            )
        if kwargs.get("out") is not None:
            raise ConfigError("Expected draws into new tensors, got `out`. Leave it out.")
        kwargs.pop("generator", None)
        kwargs.pop("out", None)
        return rule(taken, *args, **kwargs)

    return checked


RULES: Final[Mapping[Callable[..., Any], Callable[..., Tensor]]] = {
    function: _of_own_generator(rule)  # type: ignore[arg-type]  # rules take what torch's functions take
    for rule, functions in {
        _dropout: (functional.dropout, torch.dropout),
        _feature_dropout: (
            functional.dropout1d,
            functional.dropout2d,
            functional.dropout3d,
            torch.feature_dropout,
        ),
        _alpha_dropout: (functional.alpha_dropout, torch.alpha_dropout),
        _feature_alpha_dropout: (functional.feature_alpha_dropout, torch.feature_alpha_dropout),
        _attention: (functional.scaled_dot_product_attention,),
        _rand: (torch.rand,),
        _randn: (torch.randn,),
        _rand_like: (torch.rand_like,),
        _randn_like: (torch.randn_like,),
        _bernoulli: (torch.bernoulli, Tensor.bernoulli),
        _normal: (torch.normal,),
        _gumbel_softmax: (functional.gumbel_softmax,),
    }.items()
    for function in functions
}
"""For each function of torch that draws: the function that replaces it and draws from a tape."""
