"""A binary hash tree: one signature over its root vouches for every leaf."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from securefl.core.agreement import LABEL

_EMPTY_LEAF: Final = bytes(32)


@dataclass(frozen=True)
class Tree:
    """A binary hash tree, leaves first. Its leaves are filled up with zero hashes to a power of two."""

    levels: tuple[tuple[bytes, ...], ...]

    @classmethod
    def of(cls, leaves: Sequence[bytes]) -> Tree:
        width = 1 << max(len(leaves) - 1, 0).bit_length()
        level = (*leaves, *[_EMPTY_LEAF] * (width - len(leaves)))
        levels = [level]
        while len(level) > 1:
            level = tuple(_node(level[at], level[at + 1]) for at in range(0, len(level), 2))
            levels.append(level)
        return cls(tuple(levels))

    @property
    def root(self) -> bytes:
        return self.levels[-1][0]

    def path(self, at: int) -> bytes:
        """The sibling hashes from the leaf up."""
        # The last bit says left or right. Turned, it names the sibling.
        return b"".join(level[(at >> depth) ^ 1] for depth, level in enumerate(self.levels[:-1]))


def root_of(leaf: bytes, at: int, path: bytes) -> bytes:
    """The root that a leaf at place `at` and its path lead to."""
    for start in range(0, len(path), 32):
        sibling = path[start : start + 32]
        leaf = _node(sibling, leaf) if at & 1 else _node(leaf, sibling)
        at >>= 1
    return leaf


def _node(left: bytes, right: bytes) -> bytes:
    # another label than the leaves have: an inner node cannot be passed off as a leaf
    return node_hash(b"node|", left, right)


def node_hash(*parts: bytes) -> bytes:
    """SHA-256 of labelled parts."""
    return hashlib.sha256(LABEL + b"".join(parts)).digest()
