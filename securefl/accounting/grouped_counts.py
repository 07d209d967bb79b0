"""Counts of releases, with data holders grouped by equal history.

A study has many clients and few different histories.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Generic, TypeVar

H = TypeVar("H")
Item = tuple[str, str]
"""The name of a release and its charge as text."""
Counts = frozenset[tuple[Item, int]]
"""The number of releases of each item."""
NOTHING: Counts = frozenset()


class GroupedCounts(Generic[H]):
    """The counts of each holder, and for each history the holders that share it.

    The time of `add` does not grow with the number of holders. A caller that needs the cost of every holder
    composes each history once.
    """

    def __init__(self, holders: Iterable[H] = ()) -> None:
        self._of: dict[H, Counts] = {}
        self._groups: dict[Counts, set[H]] = {}
        if everybody := set(holders):
            self._groups[NOTHING] = everybody

    def counted(self, holder: H) -> Counts:
        """Return the counts of this holder."""
        return self._of.get(holder, NOTHING)

    def add(self, holder: H, item: Item, times: int = 1) -> None:
        """Count a release of this holder `times` more."""
        before = self.counted(holder)
        counts = dict(before)
        counts[item] = counts.get(item, 0) + times
        self._of[holder] = after = frozenset(counts.items())
        self._groups.setdefault(before, set()).discard(holder)  # a new holder is in no group
        if not self._groups[before]:
            del self._groups[before]
        self._groups.setdefault(after, set()).add(holder)

    def histories(self) -> Iterator[Counts]:
        """Iterate over the different histories, each once."""
        return iter(self._groups)

    def groups(self) -> Iterator[tuple[Counts, Set[H]]]:
        """Iterate over the different histories, each with its holders."""
        return iter(self._groups.items())
