"""Probabilities of random rings, from which `policy` computes how many a masking graph needs.

A ring puts m members into a uniformly random circular order. Whoever stands beside each other is joined. The
rings of a graph are independent of each other. All counts here are exact for one ring: members of three kinds
are placed between each other, and the placements are counted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_SLOPES: Final = np.arange(0.0, 32.0, 0.5)
"""The exponents of Chernoff's bound, in bits a link. Each gives a bound, and the least one counts."""
_SMALL: Final = 64
"""The largest group for which links within it are counted. In a larger one they are no rare event."""


class Met:
    """The law of how many marked members, each counted once, stand beside one member in some ring.

    Args:
        others: the number of other members.
        marked: how many of them are marked.

    >>> met = Met(4, 2)
    >>> met.turn()
    >>> met.law.round(3).tolist()  # both, or one, or none of two neighbours
    [0.167, 0.667, 0.167]
    """

    def __init__(self, others: int, marked: int) -> None:
        self._others, self._marked = others, marked
        self.law: Floats = np.ones(1)

    def turn(self) -> None:
        """Count one more ring. Its two neighbours are a uniformly random pair of the others."""
        new = np.maximum(self._marked - np.arange(len(self.law), dtype=np.float64), 0.0)
        old = self._others - new
        pairs = self._others * (self._others - 1)
        law = np.zeros(len(self.law) + 2)
        law[:-2] += self.law * old * (old - 1) / pairs
        law[1:-1] += self.law * 2 * new * old / pairs
        law[2:] += self.law * new * (new - 1) / pairs
        self.law = law

    @property
    def at_least(self) -> Floats:
        """P[i or more], for each i up to one more than there can be."""
        # from the far end: as 1 minus the rest, a tail of 2^-100 would round to 0
        return np.cumsum(np.append(self.law, 0.0)[::-1])[::-1]

    @property
    def at_most(self) -> Floats:
        """P[i or fewer], for each i."""
        return np.cumsum(self.law)


def log2_apart(clients: int, survivors: int, corrupt: int, rings: int, within: int) -> float:
    """Bound log2 of the probability that a group of honest survivors can be made to stand apart.

    The server sees the rings, and then drops members until `survivors` are left. Each member of the group has
    at least `within` neighbours in it. SPEC.md, section 5, has the proof.
    """
    honest = survivors - corrupt
    if honest < 2 or clients == honest:
        return -np.inf  # one honest survivor has nobody to stand apart from; a ring with all of them holds
    half, size = honest // 2, np.arange(1, honest // 2 + 1)
    cut = _log2_ways(clients, survivors, corrupt) + rings * _log2_unmixed(clients, honest)
    dense = _log2_factorials(clients)[-1] - _log2_factorials(clients)[size]
    dense = dense - _log2_factorials(clients)[clients - size] + _log2_dense(survivors, rings, within, half)
    each = np.minimum(cut, dense)[within:]
    return float(np.logaddexp2.reduce(np.append(each, cut[-1])))


def _log2_ways(clients: int, survivors: int, corrupt: int) -> Floats:
    """log2 of the ways to choose a group, and the honest members that drop, for each size of the group."""
    size = np.arange(1, (survivors - corrupt) // 2 + 1)
    return _log2_choose(clients, size) + _log2_choose(clients - corrupt - size, clients - survivors)


@lru_cache(maxsize=8)
def _log2_unmixed(members: int, honest: int) -> Floats:
    """log2 P[no member of a group is beside an honest one outside of it, in one ring], for each size.

    The other members are neither. Between them are as many gaps. Each of the gaps has members of the group
    alone, or honest ones outside of it alone, or nobody.
    """
    barred = members - honest
    size = np.arange(1, honest // 2 + 1)[:, None]
    runs, outside = np.arange(1, barred + 1)[None, :], honest - size
    placed = _log2_choose(barred, runs) + _log2_choose(size - 1, runs - 1)
    placed = placed + _log2_choose(outside + barred - runs - 1, outside)
    logs = _log2_factorials(members)
    everything = logs[members - 1] - logs[size] - logs[outside] - logs[barred - 1]
    return np.asarray(np.logaddexp2.reduce(placed - everything, axis=1))


def _log2_dense(members: int, rings: int, within: int, half: int) -> Floats:
    """log2 of Chernoff's bound on P[a group has within / 2 links a member], for each size up to `half`."""
    found = np.zeros(half)
    least = min(half, _SMALL)
    size = np.arange(1, least + 1)
    needed = np.ceil(size * within / 2)
    found[:least] = (rings * _log2_moments(members, least) - np.outer(_SLOPES, needed)).min(axis=0)
    return found


@lru_cache(maxsize=8)
def _log2_moments(members: int, most: int) -> Floats:
    """log2 E[2^(slope * links within a group)] of one ring, for each slope and each size up to `most`."""
    size, runs = np.arange(1, most + 1)[:, None], np.arange(1, most + 1)[None, :]
    # a group in so many runs has one link less than members in each run
    placed = _log2_choose(members - size, runs) + _log2_choose(size - 1, runs - 1)
    placed = placed - _log2_choose(members - 1, size)
    links = size - runs
    return np.array([np.logaddexp2.reduce(placed + slope * links, axis=1) for slope in _SLOPES])


def _log2_choose(whole: int | NDArray[np.int64], part: int | NDArray[np.int64]) -> Floats:
    """log2 of the binomial coefficients; minus infinity where there are none."""
    whole, part = np.broadcast_arrays(whole, part)
    there = (part >= 0) & (part <= whole)
    logs = _log2_factorials(max(int(whole.max()), 1))
    chosen, of = np.where(there, part, 0), np.where(there, whole, 0)
    return np.where(there, logs[of] - logs[chosen] - logs[of - chosen], -np.inf)


@lru_cache(maxsize=8)
def _log2_factorials(last: int) -> Floats:
    """log2(i!) for i = 0 .. last."""
    return np.concatenate([[0.0], np.cumsum(np.log2(np.arange(1, last + 1)))])
