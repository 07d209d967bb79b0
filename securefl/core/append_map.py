"""An immutable append-only mapping, for machine states that grow by one entry per message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class AppendMap(Mapping[K, V]):
    """An immutable mapping. `having` returns a larger mapping and leaves this one unchanged.

    A copy for each message would take quadratic time in the size of the cohort. So successive mappings share
    one table, and each mapping sees its own first entries only. A second `having` of the same mapping copies
    the table.
    """

    def __init__(self) -> None:
        self._table: dict[K, tuple[int, V]] = {}
        self._size = 0

    def having(self, key: K, value: V) -> AppendMap[K, V]:
        """Return this mapping with one more entry. Raises ValueError if the key is already there."""
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

    def __contains__(self, key: object) -> bool:
        found = self._table.get(key)  # type: ignore[arg-type]  # as a dict: any key may be looked up
        return found is not None and found[0] < self._size

    def __iter__(self) -> Iterator[K]:
        # A copy of the keys: the shared table may grow while the caller iterates.
        return iter(tuple(islice(self._table, self._size)))

    def __len__(self) -> int:
        return self._size
