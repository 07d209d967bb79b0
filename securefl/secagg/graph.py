"""The masking graph: the neighbours with which each client masks, derived from the closed, signed roster.

The graph is complete for small cohorts. For larger ones it is the union of independent random rings: each
ring puts all members into a random circular order, and joins those beside each other. Bell et al. 2020,
section 4, take one ring and join each member to the k/2 next ones on both sides. A lying server can cut that
graph in two: it drops two arcs of k/2 members each. Random rings have no such place (`rings`, SPEC.md,
section 5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from securefl.core.errors import LocalProtocolError


class Graph(Mapping[int, tuple[int, ...]]):
    """The neighbours of each member, ascending, without the member itself.

    They are made into a tuple when they are looked up, since a client needs few of them.

    Args:
        members: the members, ascending.
        orders: (rings, members), the places of members in the order of each ring. None for the complete
            graph.
    """

    def __init__(self, members: Sequence[int], orders: NDArray[np.intp] | None) -> None:
        self._members, self._orders = members, orders
        self._places = {member: at for at, member in enumerate(members)}
        self._known: dict[int, tuple[int, ...]] = {}

    def __getitem__(self, member: int) -> tuple[int, ...]:
        if member not in self._known:
            self._known[member] = self._row(self._places[member])
        return self._known[member]

    def _row(self, at: int) -> tuple[int, ...]:
        members = self._members
        if self._orders is None:
            return (*members[:at], *members[at + 1 :])
        beside, first = self._beside
        return tuple([members[other] for other in beside[at, first[at]].tolist()])

    @cached_property
    def _beside(self) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The places beside each member in all rings, ascending, and which of them stand there first."""
        assert self._orders is not None
        beside = np.empty((len(self._members), 2 * len(self._orders)), np.intp)
        for number, order in enumerate(self._orders):
            beside[order, 2 * number] = np.roll(order, 1)
            beside[order, 2 * number + 1] = np.roll(order, -1)
        beside.sort(axis=1)
        first = np.ones(beside.shape, np.bool_)
        first[:, 1:] = beside[:, 1:] != beside[:, :-1]
        return beside, first

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def holders(self, member: int) -> tuple[int, ...]:
        """Return the holders of this member's shares: its neighbours and itself, ascending."""
        return tuple(sorted((*self[member], member)))

    def degrees(self, alive: Sequence[int]) -> NDArray[np.int64]:
        """Return how many neighbours each member of `alive` has in `alive`, in the order of `alive`."""
        if self._orders is None:
            return np.full(len(alive), len(alive) - 1)
        # every member at once: a row by row count in Python would be most of a client's time
        there = np.zeros(len(self._members), np.bool_)
        places = np.array([self._places[member] for member in alive], np.intp)
        there[places] = True
        beside, first = self._beside
        return np.asarray((there[beside[places]] & first[places]).sum(axis=1))


# Cached, since a process may simulate many members. What it returns follows from the arguments.
@lru_cache(maxsize=4)
def draw(members: tuple[int, ...], degree: int, seed: bytes) -> Graph:
    """The graph over `members` (ascending numbers) from a 32-byte seed.

    It is complete if `degree` is at least the number of other members. Otherwise it has degree/2 rings: every
    member has at most `degree` neighbours, fewer if another one is beside it in two rings.
    """
    count = len(members)
    if degree >= count - 1:
        return Graph(members, None)
    if degree % 2 or degree < 2:
        raise LocalProtocolError(
            f"Expected an even degree of 2 or more for a sparse graph, got {degree}. Take the degree that "
            "`policy.parameters` returns."
        )
    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    words = np.frombuffer(stream.update(bytes(8 * count * (degree // 2))), "<u8")
    # Equal words keep the members' order. That happens to one ring in 2^64 / count^2, and makes no order
    # likelier than a uniform one by more than that (SPEC.md, section 5).
    return Graph(members, np.argsort(words.reshape(-1, count), axis=1, kind="stable"))
