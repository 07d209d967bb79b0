"""The sums of a closed-form head as one vector of grid integers, and the sensitivity of that vector.

A record with features phi, |phi| <= 1, and class y adds up to three blocks:

    counts   c onehot(y)               of norm c
    sums     s onehot(y) (x) phi       of norm at most s
    moments  m phi phi^T               of Frobenius norm at most m

Of the symmetric third block the upper triangle is sent once. Its off-diagonals are scaled by sqrt 2, so that
the norm of what is sent is the Frobenius norm.

Adding or removing a record moves the vector by at most sqrt(c^2 + s^2 + m^2). Replacing (phi, y) by (psi, z)
moves it by less than twice that. With t = phi . psi and norms of 1 (shorter records move it less):

    y != z:  2 c^2 + 2 s^2 + m^2 (2 - 2 t^2), largest at t = 0
    y  = z:  s^2 (2 - 2 t) + m^2 (2 - 2 t^2), largest at t = -s^2 / (2 m^2), or at -1 if that is beyond
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import Adjacency, Floats, Grid
from securefl.errors import ConfigError

UNIT = 2**14
"""The norm 1 in the integers of a row. Products of two rows of it sum exactly in float64 for 2^25 records."""

Integers = NDArray[np.int64]
_FRACTION = 30
"""Bits of a scale behind the point. A grid has as many, so products of the two stay below 2^62."""
_FINEST = 18
"""Bits of the finest step behind the point. Shares of noise at epsilon 0.05 have room on such a grid."""
_CROWD = 4
"""A client may have this many times the mean number of records before the grid's bound cuts its sums."""


def grid_of(records: int, clients: int) -> Grid:
    """The finest public grid that holds the sums of a client.

    Args:
        records: the declared number of records of all clients, at least 1. It is public.
        clients: the number of clients, at least 1.

    Returns:
        The grid. A client may have four times the mean number of records before its sums are cut.

    Raises nothing.

    >>> from securefl.protocols.heads import grid_of
    >>> grid_of(records=100, clients=2).bound
    4096.0
    """
    most = _CROWD * ceil(records / clients)
    bits = min(_FINEST, _FRACTION - ceil(log2(most)))
    return Grid(step=2.0**-bits, bound=2.0 ** (_FRACTION - bits))


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Sums over the records of all clients, noise included. Blocks that were not sent are empty.

    Attributes:
        counts: the records of each class, float64 (C,).
        sums: the summed features of each class, float64 (C, k).
        moments: the sum of phi phi^T, float64 (k, k), symmetric.
        counts_noise: the standard deviation of the noise in an entry of `counts`.
        moments_noise: the same for an entry of the diagonal of `moments`. Off the diagonal it is smaller by
            sqrt 2.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.heads import Parts
    >>> phi, member = np.array([[1.0, 0.0], [0.0, 1.0]]), np.eye(2)
    >>> Parts(counts=member.sum(0), sums=member.T @ phi, moments=phi.T @ phi).sums.shape
    (2, 2)
    """

    counts: Floats
    sums: Floats
    moments: Floats
    counts_noise: float = 0.0
    moments_noise: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Which sums are sent, each with its weight. A weight of 0 leaves a block out.

    classes, width: C and k, the length of phi. grid: see `grid_of`.

    Raises ConfigError for a weight of the moments that the grid cannot hold.

    >>> from securefl.protocols.heads import Blocks, grid_of
    >>> Blocks(classes=3, width=4, grid=grid_of(records=90, clients=3), counts=0.25, moments=1.0).size
    25
    """

    classes: int
    width: int
    grid: Grid
    counts: float = 0.0
    sums: float = 1.0
    moments: float = 0.0

    def __post_init__(self) -> None:
        if self.moments and not self._scale(self.moments / UNIT**2):
            raise ConfigError(
                f"Expected moments that the grid of step {self.grid.step:g} can hold, got a weight of "
                f'{self.moments:g}. Raise it, or take head = "prototypes".'
            )

    @property
    def size(self) -> int:
        """Number of values that are sent."""
        return sum(self._sizes())

    def _sizes(self) -> tuple[int, int, int]:
        triangle = self.width * (self.width + 1) // 2
        return (
            self.classes if self.counts else 0,
            self.classes * self.width if self.sums else 0,
            triangle if self.moments else 0,
        )

    def exact(self, rows: Integers, y: NDArray[np.integer[Any]]) -> Integers:
        """Sum records before the blocks are weighted. No division of the records changes their sum.

        Args:
            rows: features phi as integers, int64 (n, k), with norms up to UNIT.
            y: their classes, from 0 to below C, (n,).

        Returns:
            int64 (size,): counts, class sums and the triangle of moments, as far as they are sent.
        """
        numbers = rows.astype(np.float64)
        found: list[NDArray[Any]] = []
        # All sums stay below 2^53, so float64 adds the integers without rounding, in any order.
        if self.counts:
            found.append(np.bincount(y, minlength=self.classes))
        if self.sums:
            member = (y[:, None] == np.arange(self.classes)).astype(np.float64)
            found.append((member.T @ numbers).ravel())
        if self.moments:
            product = numbers.T @ numbers
            found += [np.diag(product), product[np.triu_indices(self.width, 1)]]
        return np.concatenate(found).astype(np.int64)

    def on_grid(self, exact: Integers) -> Integers:
        """Weigh the sums of all records of a client, and round them once.

        Args:
            exact: of `exact`, int64 (size,).

        Returns:
            int64 (size,), in grid units, within the grid's limit. One record moves it by at most
            `sensitivity`.
        """
        # Rounded once for all records: rounding in parts would move the sum by up to one for each part.
        counts, sums, moments = np.split(exact, np.cumsum(self._sizes())[:-1])
        scale = self.moments / UNIT**2
        found = [
            self._scaled(counts, self.counts),
            self._scaled(sums, self.sums / UNIT),
            self._scaled(moments[: self.width], scale),
            self._scaled(moments[self.width :], sqrt(2) * scale),
        ]
        return np.concatenate(found)

    def _scaled(self, sums: Integers, weight: float) -> Integers:
        """Integers times weight / step, rounded down, within the grid's bound."""
        if not sums.size:
            return sums
        scale = self._scale(weight)
        # Clipping to the bound first keeps products below 2^63, and moves no two sums further apart.
        most = (self.grid.limit << _FRACTION) // scale + 1
        scaled = np.clip(sums, -most, most) * scale >> _FRACTION
        return np.asarray(np.clip(scaled, -self.grid.limit, self.grid.limit))

    def _scale(self, weight: float) -> int:
        # Rounded down, so that the weight in use is never above the declared one.
        return floor(weight / self.grid.step * 2.0**_FRACTION)

    def _rounded(self) -> int:
        """The number of entries that are rounded. If a block's scale is a whole number, it is exact."""
        counts, sums, moments = self._sizes()
        whole = 1 << _FRACTION
        return sum(
            size
            for size, weight in ((counts, self.counts), (sums, self.sums / UNIT))
            if size and self._scale(weight) % whole
        ) + (moments if moments else 0)

    def sensitivity(self, adjacency: Adjacency) -> float:
        """The L2 sensitivity of the vector to one record."""
        # Two numbers that are d apart are at most d + 1 apart when both are rounded down.
        return self._moved(adjacency) + sqrt(self._rounded()) * self.grid.step

    def _moved(self, adjacency: Adjacency) -> float:
        c, s, m = self.counts**2, self.sums**2, self.moments**2
        if adjacency == "add-remove":
            return sqrt(c + s + m)
        same = 2 * s + 2 * m + s * s / (2 * m) if s <= 2 * m and m else 4 * s
        return sqrt(max(2 * (c + s + m), same))

    def parts(self, total: Floats, noise: float) -> Parts:
        """Return the blocks of a total, each without its weight.

        Args:
            total: the sum of the clients' vectors, in the grid's unit, float64 (size,).
            noise: the standard deviation of the noise in an entry of it.
        """
        counts, sums, moments = np.split(total, np.cumsum(self._sizes())[:-1])
        return Parts(
            counts=counts / self.counts if self.counts else counts,
            sums=sums.reshape(-1, self.width) / self.sums if self.sums else sums,
            moments=self._symmetric(moments / self.moments) if self.moments else moments,
            counts_noise=noise / self.counts if self.counts else 0.0,
            moments_noise=noise / self.moments if self.moments else 0.0,
        )

    def _symmetric(self, triangle: Floats) -> Floats:
        full = np.zeros((self.width, self.width))
        full[np.triu_indices(self.width, 1)] = triangle[self.width :] / sqrt(2)
        return full + full.T + np.diag(triangle[: self.width])
