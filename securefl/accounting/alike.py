"""Holders that were charged alike, together: a study has many clients and few histories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Generic, TypeVar

H = TypeVar("H")
Item = tuple[str, str]
"""A release by name and written charge."""
Counts = frozenset[tuple[Item, int]]
"""How often each was counted."""
NOTHING: Counts = frozenset()


class GroupedCounts(Generic[H]):
    """What was counted of each holder, and the holders of equal counts.

    To count costs the same however many holders there are. Whoever asks what each history costs looks at the
    histories, and not at the holders.
    """

    def __init__(self, holders: Iterable[H] = ()) -> None:
        self._of: dict[H, Counts] = {}
        self._groups: dict[Counts, set[H]] = {}
        if everybody := set(holders):
            self._groups[NOTHING] = everybody

    def of(self, holder: H) -> Counts:
        """What was counted of this holder."""
        return self._of.get(holder, NOTHING)

    def add(self, holder: H, item: Item, times: int = 1) -> None:
        """Count a release of this holder, so many times more."""
        before = self.of(holder)
        counts = dict(before)
        counts[item] = counts.get(item, 0) + times
        after = frozenset(counts.items())
        self._leave(holder, before)
        self._groups.setdefault(after, set()).add(holder)
        self._of[holder] = after

    def _leave(self, holder: H, counts: Counts) -> None:
        group = self._groups.get(counts)
        if group is None:  # nothing was known of this holder
            return
        group.discard(holder)
        if not group:
            del self._groups[counts]

    def histories(self) -> Iterator[Counts]:
        """Every count that some holder has, once."""
        return iter(self._groups)

    def groups(self) -> Iterator[tuple[Counts, Set[H]]]:
        """Every count that some holder has, with its holders."""
        return iter(self._groups.items())
