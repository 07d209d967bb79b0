"""The bytes of a `QueryCall` with any numbers, also those that its own classes refuse."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from securefl.core.linear import LinearBounds
from securefl.core.wire import Limit, message


@dataclass(frozen=True)
class AnyRange:
    """The bytes of a `Range`, with any numbers."""

    count: int = 1
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True, kw_only=True)
class AnyBounds:
    """The bytes of `LinearBounds`."""

    hidden_length: int = 2
    clear: tuple[AnyRange, ...] = (AnyRange(),)
    norm: float = 1.0
    weight_norm: float = 1.0
    row_norm: float = 1.0
    product: float = 1.0
    scale: float = 1.0
    least: float = 0.0
    most: float = np.inf
    weights: tuple[AnyRange, ...] = ()
    spread: float = 8.0


@dataclass(frozen=True, kw_only=True)
class AnyQuestions:
    """The bytes of `PublicQueries`."""

    names: tuple[str, ...] = ("p",)
    bounds: AnyBounds = field(default_factory=AnyBounds)
    cohort: int = 3
    weights: tuple[bytes, ...] = ()


@message("query-call", sender="server", version=2)
@dataclass(frozen=True, kw_only=True)
class AnyCall:
    """The bytes of a `QueryCall`."""

    most: Limit = field(default_factory=lambda: Limit(10**6, 10**4))
    asked: AnyQuestions | None
    members: bytes = b""
    draws: tuple[int, ...] = ()
    key: bytes = b""


def any_bounds(bounds: LinearBounds) -> AnyBounds:
    """These bounds, to be changed to any others."""
    runs = {
        name: tuple(AnyRange(run.count, run.low, run.high) for run in getattr(bounds, name))
        for name in ("clear", "weights")
    }
    return AnyBounds(**{own.name: getattr(bounds, own.name) for own in fields(bounds)} | runs)
