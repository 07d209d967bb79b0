"""One inner product of a client's private vector with the server's weights, inside public bounds.

A client of a `LinearQuery` answers with x = [hidden, clear]. The server learns one number of it,

    (<hidden, w_hidden> + <clear, w_clear> + offset) / scale

and the clear part. Where numbers travel concealed, the hidden part is concealed. Keys, flooding, capacity and
error bounds follow from `LinearBounds` alone, which are public and fixed before any query is.

**What this does not hide.** Every number is one linear equation in x. A server that chooses as many queries
as x has hidden entries solves for them: so a specification declares how many there may be.

**Whom it trusts.** The product that is opened is checked. The norm of x is not: a client that lies can leave
`norm`, and costs its own number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError

Floats = NDArray[np.float64]
ROUNDING: Final = 1e-6
"""A generous bound on how far outside its range an honest number can come out."""


@dataclass(frozen=True)
class Range:
    """A run of `count` entries, each from `low` to `high`. ConfigError for no such run."""

    count: int
    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, float(getattr(self, name)))  # 1 and 1.0 are one declaration
        if self.count < 1 or not -inf < self.low <= self.high < inf:
            raise ConfigError(
                f"Expected one entry or more with low <= high, both finite, got {self.count} from {self.low} "
                f"to {self.high}."
            )

    def text(self) -> str:
        """Canonical text, part of that of the bounds."""
        return f"{self.count}*[{self.low!r},{self.high!r}]"


@dataclass(frozen=True, kw_only=True)
class LinearBounds:
    """Public bounds of a linear query. Clients keep to them; keys are sized by them.

    Attributes:
        hidden_length: h >= 1, entries that travel concealed.
        clear: runs of entries that travel beside them in plaintext, c in all.
        norm: largest ||x||_2 of a client's h + c entries.
        weight_norm: largest ||w_hidden||_2. A query above it is refused: flooding hangs on it.
        row_norm: largest norm of [w_hidden, w_clear, offset / scale], for queries that are encrypted too.
        product: largest |<hidden, w_hidden>|, for which the ring has room.
        scale: numbers and their error bounds are in units of it.
        least, most: the range of an honest number.

    Raises ConfigError for bounds that are not finite and above 0, and for an empty range.
    """

    hidden_length: int
    clear: tuple[Range, ...] = ()
    norm: float
    weight_norm: float
    row_norm: float
    product: float
    scale: float = 1.0
    least: float = -inf
    most: float = inf

    def __post_init__(self) -> None:
        if self.hidden_length < 1:
            raise ConfigError(f"Expected one hidden entry or more, got {self.hidden_length}.")
        for name in ("norm", "weight_norm", "row_norm", "product", "scale", "least", "most"):
            object.__setattr__(self, name, float(getattr(self, name)))
        sizes = (self.norm, self.weight_norm, self.row_norm, self.product, self.scale)
        if not all(isfinite(size) and size > 0 for size in sizes):
            raise ConfigError(f"Expected finite norms, product and scale above 0, got {self.text()}.")
        if not self.least < self.most:
            raise ConfigError(f"Expected least < most, got {self.least} and {self.most}.")

    @property
    def clear_length(self) -> int:
        """c, the number of entries in plaintext."""
        return sum(run.count for run in self.clear)

    def holds_clear(self, values: Floats) -> bool:
        """Whether these are c entries, each inside its range. False for nan."""
        if values.shape != (self.clear_length,):
            return False
        low = np.repeat([run.low for run in self.clear], [run.count for run in self.clear])
        high = np.repeat([run.high for run in self.clear], [run.count for run in self.clear])
        # Comparisons with nan are false, so nan is outside.
        return bool(((values >= low) & (values <= high)).all())

    def holds_hidden(self, values: Floats) -> bool:
        """Whether these are h entries of a client that keeps to the norm. False for nan."""
        # `<=` refuses nan. The billionth is room for rounding.
        fits = values.shape == (self.hidden_length,)
        return fits and float(np.linalg.norm(values)) <= self.norm * (1 + 1e-9)

    def allows(self, number: float, error: float) -> bool:
        """Whether a number that is known up to `error` can be an honest one. False for nan."""
        return self.least - error <= number <= self.most + error

    def text(self) -> str:
        """Canonical text, which digests of terms hold. Its words and their order stay as they are."""
        clear = ",".join(run.text() for run in self.clear)
        return (
            f"linear/1(hidden={self.hidden_length},clear={clear},norm={self.norm!r},"
            f"weights={self.weight_norm!r},row={self.row_norm!r},product={self.product!r},"
            f"scale={self.scale!r},least={self.least!r},most={self.most!r})"
        )


@dataclass(frozen=True, eq=False)
class LinearQuery:
    """The server's weights. They never leave the server, or their owner where they are encrypted too.

    Shapes: hidden (h,), clear (c,), both float64. Raises ConfigError for other shapes, and DataError for
    weights that are not finite.
    """

    bounds: LinearBounds
    hidden: Floats
    clear: Floats = field(default_factory=lambda: np.zeros(0))
    offset: float = 0.0

    def __post_init__(self) -> None:
        wanted = (self.bounds.hidden_length, self.bounds.clear_length)
        if (self.hidden.shape, self.clear.shape) != ((wanted[0],), (wanted[1],)):
            raise ConfigError(
                f"Expected weights of {wanted[0]} hidden and {wanted[1]} clear entries, got shapes "
                f"{self.hidden.shape} and {self.clear.shape}."
            )
        if not (np.isfinite(self.hidden).all() and np.isfinite(self.clear).all() and isfinite(self.offset)):
            raise DataError("Expected finite weights and offset of a query, got some that are not.")

    def number(self, hidden: Floats, clear: Floats) -> float:
        """What a client's vector in the clear answers with."""
        product = float(hidden @ self.hidden) + float(clear @ self.clear)
        return (product + self.offset) / self.bounds.scale

    def allows(self, number: float) -> bool:
        """Whether an honest client's number could be this one. False for nan."""
        bounds = self.bounds
        inside = abs(number * bounds.scale - self.offset) <= bounds.product
        return bounds.allows(number, ROUNDING) and inside

    def row(self, *, encrypted: bool) -> Floats:
        """The weights that are multiplied under encryption: hidden; encrypted, all of them and the offset.

        Raises ConfigError for weights above the declared norm.
        """
        bounds = self.bounds
        row, largest = self.hidden, bounds.weight_norm
        if encrypted:
            row = np.concatenate([row, self.clear, [self.offset / bounds.scale]])
            largest = bounds.row_norm
        if not (norm := float(np.linalg.norm(row))) <= largest:
            raise ConfigError(
                f"Expected weights of norm up to {largest:.3g}, got {norm:.3g}: use a public anchor nearer "
                "to the baseline, or declare a larger norm (of profiles: Bounds.weight; scores get as much "
                "noisier)."
            )
        return row
