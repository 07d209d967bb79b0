"""A mapping that grows by one entry at a time, as the state of a machine does with every message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class AppendMap(Mapping[K, V]):
    """An immutable mapping. `having` gives a larger one, and this one stays as it is.

    A copy for each message would make a cohort quadratic. So successive mappings share one table, of which
    each sees as many entries as it had. Whoever grows an older mapping a second time gets a table of its own.
    """

    def __init__(self) -> None:
        self._table: dict[K, tuple[int, V]] = {}
        self._size = 0

    def having(self, key: K, value: V) -> AppendMap[K, V]:
        """This mapping with one more entry. ValueError for a key that it has."""
        if key in self:
            raise ValueError(f"Expected a new key, got {key!r} again.")
        larger: AppendMap[K, V] = AppendMap()
        newest = len(self._table) == self._size
        larger._table = self._table if newest else dict(islice(self._table.items(), self._size))
        larger._table[key] = (self._size, value)
        larger._size = self._size + 1
        return larger

    def __getitem__(self, key: K) -> V:
        place, value = self._table[key]
        if place >= self._size:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[K]:
        # A copy of the keys: the table may grow while somebody reads this state.
        return iter(tuple(islice(self._table, self._size)))

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"Grown({dict(self)!r})"
