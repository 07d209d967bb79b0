"""Linear queries: one inner product of a client's private vector with the server's weights, in public bounds.

A client answers a `LinearQuery` with x = [hidden, clear]. The server learns the clear part and one number,

    (<hidden, w_hidden> + <clear, w_clear> + offset) / scale

If the plan conceals scores, the hidden part never leaves the client in the clear. Keys, flooding noise,
capacity and error bounds follow from `LinearBounds` alone, which are public and fixed before any query.

**What this does not hide.** Every number is one linear equation in x. A server with as many queries as x has
hidden entries can solve for them. So a value's spec declares the largest number of queries.

**What is not checked.** The opened product is checked. The norm of x is not: a client that lies can exceed
`norm`, and spoils its own number only.
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
"""A generous bound on how far rounding can move an honest number out of its range."""
LARGEST: Final = 1e100
"""The largest size in bounds, and 1 / LARGEST is the smallest, so no quotient of two is 0 or infinite."""


@dataclass(frozen=True)
class Range:
    """A run of `count` entries, each from `low` to `high`.

    Raises ConfigError unless count >= 1 and low <= high, both finite.
    """

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
        """Return the canonical text, which is part of the canonical text of `LinearBounds`."""
        return f"{self.count}*[{self.low!r},{self.high!r}]"


@dataclass(frozen=True, kw_only=True)
class LinearBounds:
    """Public bounds of a linear query. Honest clients' vectors obey them; key parameters follow from them.

    Attributes:
        hidden_length: h >= 1, the number of entries that travel concealed.
        clear: runs of entries that travel in plaintext, c entries in all.
        norm: largest ||x||_2 of a client's h + c entries.
        weight_norm: largest ||w_hidden||_2. A query above it is refused, because the flooding noise is sized
            by it.
        row_norm: largest norm of [w_hidden, w_clear, offset / scale], for queries that are encrypted too.
        product: largest |<hidden, w_hidden>|. The ring has room for it.
        scale: the unit of numbers and of their error bounds.
        least, most: the range of an honest number.
        weights: runs of ranges that the hidden weights lie in, h entries in all; () for none. A key holder
            that sees the weights refuses others.
        spread: largest size of a hidden weight over the root mean square of all. A query near the root of h
            reads one entry. Whoever sees the weights refuses one above it; inf is no bound.

    Raises:
        ConfigError: if a norm, the product or the scale is not from 1e-100 to 1e100, if
            hidden_length < 1, if least >= most, if spread < 1, or if the ranges of the weights are not of h
            entries.

    >>> from securefl.linear import LinearBounds
    >>> bounds = LinearBounds(hidden_length=2, norm=5.0, weight_norm=1.0, row_norm=1.0, product=5.0)
    >>> bounds.clear_length, bounds.scale
    (0, 1.0)
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
    weights: tuple[Range, ...] = ()
    spread: float = inf

    def __post_init__(self) -> None:
        if self.weights and sum(run.count for run in self.weights) != self.hidden_length:
            raise ConfigError(
                f"Expected ranges of {self.hidden_length} hidden weights, got of "
                f"{sum(run.count for run in self.weights)}."
            )
        if self.hidden_length < 1:
            raise ConfigError(f"Expected one hidden entry or more, got {self.hidden_length}.")
        for name in ("norm", "weight_norm", "row_norm", "product", "scale", "least", "most", "spread"):
            object.__setattr__(self, name, float(getattr(self, name)))
        sizes = (self.norm, self.weight_norm, self.row_norm, self.product, self.scale)
        if not all(1 / LARGEST <= size <= LARGEST for size in sizes):
            raise ConfigError(
                f"Expected norms, product and scale from {1 / LARGEST:g} to {LARGEST:g}, got {self.text()}."
            )
        if not self.spread >= 1:
            raise ConfigError(
                f"Expected a spread of weights from 1, that of weights of one size, got {self.spread}."
            )
        if not self.least < self.most:
            raise ConfigError(f"Expected least < most, got {self.least} and {self.most}.")

    @property
    def clear_length(self) -> int:
        """The number c of entries in plaintext."""
        return sum(run.count for run in self.clear)

    def holds_clear(self, values: Floats) -> bool:
        """Whether each entry in plaintext lies in its range.

        Args:
            values: the entries, (c,). Those of another shape do not, and none that is nan does.
        """
        if values.shape != (self.clear_length,):
            return False
        low = np.repeat([run.low for run in self.clear], [run.count for run in self.clear])
        high = np.repeat([run.high for run in self.clear], [run.count for run in self.clear])
        # Comparisons with nan are false, so nan is outside.
        return bool(((values >= low) & (values <= high)).all())

    def require_hidden(self, values: Floats) -> None:
        """Check a vector before it is concealed.

        Every cipher calls this: flooding noise and the room of the ring are sized by the norm.

        Args:
            values: the entries that travel concealed, (h,).

        Raises:
            DataError: the shape is another one, the norm is above `norm`, or an entry is nan.
        """
        norm = float(np.linalg.norm(values))
        # `<=` is false for nan. The factor 1 + 1e-9 allows for rounding.
        if values.shape != (self.hidden_length,) or not norm <= self.norm * (1 + 1e-9):
            raise DataError(
                f"Expected, as declared, {self.hidden_length} hidden values of norm up to {self.norm:.6g}, "
                f"got {values.size} of norm {norm:.6g}. Clip them first (for profiles, take `features`)."
            )

    def allows(self, number: float, error: float) -> bool:
        """Whether an honest number can differ from `number` by at most `error`. False if it is nan."""
        return self.least - error <= number <= self.most + error

    def text(self) -> str:
        """Return the canonical text of all fields, which digests of terms contain."""
        clear, weights = (",".join(run.text() for run in runs) for runs in (self.clear, self.weights))
        return (
            f"LinearBounds(hidden_length={self.hidden_length}, clear={clear}, norm={self.norm!r}, "
            f"weight_norm={self.weight_norm!r}, row_norm={self.row_norm!r}, product={self.product!r}, "
            f"scale={self.scale!r}, least={self.least!r}, most={self.most!r}, weights={weights}, "
            f"spread={self.spread!r})"
        )


@dataclass(frozen=True, eq=False)
class LinearQuery:
    """The server's weights for one inner product with each client's vector.

    In differential privacy a "linear query" is a sum over records. This one is a sum over the entries of one
    client's vector. The weights never leave the server. If the query is encrypted too, they never leave its
    owner.

    Attributes:
        bounds: the public bounds, which fix h and c.
        hidden: (h,) float64, the weights of the concealed entries.
        clear: (c,) float64, the weights of the plaintext entries.
        offset: a constant that is added to the products.

    Raises:
        ConfigError: if an array has another shape.
        DataError: if a weight or the offset is not finite.

    >>> import numpy as np
    >>> from securefl.linear import LinearBounds, LinearQuery
    >>> bounds = LinearBounds(hidden_length=2, norm=5.0, weight_norm=1.0, row_norm=1.0, product=5.0)
    >>> LinearQuery(bounds, np.array([0.5, 0.5])).number(np.array([1.0, 3.0]), np.zeros(0))
    2.0
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
        """Return the number that follows from a client's vector in the clear.

        Args:
            hidden: (h,) float64, the client's concealed entries.
            clear: (c,) float64, the client's plaintext entries.
        """
        product = float(hidden @ self.hidden) + float(clear @ self.clear)
        return (product + self.offset) / self.bounds.scale

    def allows(self, number: float) -> bool:
        """Whether an honest client can have this number. False if it is nan."""
        bounds = self.bounds
        inside = abs(number * bounds.scale - self.offset) <= bounds.product
        return bounds.allows(number, ROUNDING) and inside

    def row(self, *, encrypted: bool) -> Floats:
        """Return the weights that are multiplied under encryption.

        Args:
            encrypted: whether the query itself is encrypted.

        Returns:
            (h,) float64, the hidden weights; if `encrypted`, (h + c + 1,) float64: all weights and
            offset / scale.

        Raises:
            ConfigError: if the norm of the result exceeds the declared norm, or is 0.
        """
        bounds = self.bounds
        row, largest = self.hidden, bounds.weight_norm
        if encrypted:
            row = np.concatenate([row, self.clear, [self.offset / bounds.scale]])
            largest = bounds.row_norm
        if not row.any():
            raise ConfigError(
                "Expected a weight that is not 0, got none: the number is known without asking. Ask nobody."
            )
        if not (norm := float(np.linalg.norm(row))) <= largest:
            raise ConfigError(
                f"Expected weights of norm up to {largest:.3g}, got {norm:.3g}. Use a public anchor nearer "
                "to the baseline, or declare a larger norm (for profiles: Bounds.weight). The noise of the "
                "scores grows in proportion to it."
            )
        if not spread_of(self.hidden) <= bounds.spread:
            raise ConfigError(too_sharp(self.hidden, bounds))
        return row


def spread_of(weights: Floats) -> float:
    """The largest size of a weight over the root mean square of all: 1 if all are alike, at most sqrt(h).

    weights: float64 (h,), finite and not all 0. Denormal ones lose nothing by it.
    """
    sizes = np.abs(weights)
    with np.errstate(under="ignore"):
        return 1 / float(np.sqrt(np.mean((sizes / sizes.max()) ** 2)))


def too_sharp(weights: Floats, bounds: LinearBounds) -> str:
    """What to say of weights whose spread is above the bound."""
    return (
        f"Expected weights of which the largest is up to {bounds.spread:.4g} times their root mean square, "
        f"got {spread_of(weights):.4g} times (number {int(np.abs(weights).argmax())}): their score is nearly "
        "that one entry. Use a public anchor nearer to the baseline, or declare a larger spread (for "
        "profiles: Bounds.spread)."
    )
