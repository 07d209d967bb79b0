"""The masking graph: the neighbours with which each client masks, derived from the closed, signed roster.

The graph is complete for small cohorts. For larger ones it is circulant: position p is joined to p + o and
p - o for each of k/2 offsets. A permutation from the public seed assigns the positions to the members, after
Bell et al. 2020, section 4. Their Harary graph is a ring with the offsets 1 .. k/2. A lying server can cut
it in two: it drops two arcs of k/2 members each. Here the offsets are drawn from all distances. The graph
then has a spectral gap, which `spectral_ratio` measures and on which `policy` relies.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from securefl.core.errors import LocalProtocolError

_LABEL: Final = b"securefl/secagg/3|offsets|"


class Rows(Mapping[int, tuple[int, ...]]):
    """The neighbours of each member, computed when they are looked up. A client needs a few rows only.

    Args:
        seats: the members, in the order of their positions.
        offsets: the distances between neighbours. None for the complete graph.
    """

    def __init__(self, seats: Sequence[int], offsets: Sequence[int] | None) -> None:
        self._seats, self._offsets = seats, offsets
        self._places = {member: at for at, member in enumerate(seats)}
        self._known: dict[int, tuple[int, ...]] = {}

    def __getitem__(self, member: int) -> tuple[int, ...]:
        if member not in self._known:
            self._known[member] = self._row(self._places[member])
        return self._known[member]

    def _row(self, at: int) -> tuple[int, ...]:
        seats, offsets = self._seats, self._offsets
        if offsets is None:
            return tuple(sorted((*seats[:at], *seats[at + 1 :])))
        count = len(seats)
        return tuple(sorted([seats[(at + o) % count] for offset in offsets for o in (offset, -offset)]))

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def degrees(self, alive: Sequence[int]) -> NDArray[np.int64]:
        """Return how many neighbours each member of `alive` has in `alive`, in the order of `alive`."""
        if self._offsets is None:
            return np.full(len(alive), len(alive) - 1)
        there = np.zeros(len(self._seats), np.int32)
        places = np.array([self._places[member] for member in alive], np.intp)
        there[places] = 1
        # every position at once: a row by row count in Python would be most of a client's time
        around = np.concatenate([there, there])
        count, total = len(there), np.zeros(len(there), np.int64)
        for offset in self._offsets:
            total += around[offset : offset + count]
            total += around[count - offset : 2 * count - offset]
        return total[places]


@dataclass(frozen=True)
class Graph:
    """The neighbours of each member, ascending, without the member itself."""

    neighbours: Rows

    def holders(self, member: int) -> tuple[int, ...]:
        """Return the holders of this member's shares: its neighbours and itself, ascending."""
        return tuple(sorted((*self.neighbours[member], member)))


def draw(members: Sequence[int], degree: int, seed: bytes) -> Graph:
    """The graph over `members` (ascending numbers) from a 32-byte seed.

    It is complete if `degree` is at least the number of other members. Otherwise every member has `degree`
    neighbours, an even number.
    """
    return Graph(_rows(tuple(members), degree, seed))


# Cached, since a process may simulate many members. What it returns follows from the arguments.
@lru_cache(maxsize=4)
def _rows(members: tuple[int, ...], degree: int, seed: bytes) -> Rows:
    count = len(members)
    if degree >= count - 1:
        return Rows(members, None)
    offsets = offsets_of(count, degree)
    stream = Integers(seed)
    seats = list(members)
    for last in range(count - 1, 0, -1):  # Fisher-Yates
        other = stream.below(last + 1)
        seats[last], seats[other] = seats[other], seats[last]
    return Rows(seats, offsets)


@lru_cache(maxsize=4096)
def offsets_of(count: int, degree: int) -> tuple[int, ...]:
    """degree/2 distinct offsets of the circulant graph on `count` positions, the same in all sessions."""
    # The offsets are fixed, so that the spectral gap is known when the parameters are chosen.
    choices = list(range(1, (count - 1) // 2 + 1))
    if degree % 2 or not 0 < degree // 2 <= len(choices):
        raise LocalProtocolError(
            f"Expected an even degree from 2 to {count - 1} for {count} positions, got {degree}. Take the "
            "degree that `policy.parameters` returns."
        )
    stream = Integers(hashlib.sha256(_LABEL + struct.pack("<II", count, degree)).digest())
    for at in range(degree // 2):
        other = at + stream.below(len(choices) - at)
        choices[at], choices[other] = choices[other], choices[at]
    return tuple(sorted(choices[: degree // 2]))


@lru_cache(maxsize=4096)
def spectral_ratio(count: int, degree: int) -> float:
    """The second largest absolute eigenvalue over the degree. If it is small, many edges cross every cut."""
    # the eigenvalues of a circulant matrix are the Fourier transform of its first row
    row = np.zeros(count)
    for offset in offsets_of(count, degree):
        row[offset] = row[-offset] = 1
    return float(np.abs(np.fft.rfft(row).real[1:]).max() / degree)


_WORDS: Final = 512
"""How many words of the keystream are drawn at once."""


class Integers:
    """Uniform integers from AES-256-CTR under a 32-byte seed.

    SPEC.md fixes every draw, so that all parties get the same graph.
    """

    def __init__(self, seed: bytes) -> None:
        self._stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
        self._words: Iterator[int] = iter(())

    def _word(self) -> int:
        word = next(self._words, None)
        if word is None:
            self._words = iter(struct.unpack(f"<{_WORDS}Q", self._stream.update(bytes(8 * _WORDS))))
            word = next(self._words)
        return word

    def below(self, bound: int) -> int:
        # A word at or above the largest multiple of the bound is drawn again. Otherwise small remainders
        # would be more likely.
        limit = 2**64 - 2**64 % bound
        while True:
            word = self._word()
            if word < limit:
                return word % bound
