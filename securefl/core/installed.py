"""What installed distributions add to this package: the entry points of a group."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import metadata
from importlib.metadata import EntryPoint
from typing import Any


def entry_points(*, group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, in the order of `sys.path`.

    The metadata of all distributions is read once for a search path: it takes 15 ms, and a plan asks for
    several groups. A distribution that is installed while the process runs is seen by the next process.
    """
    return tuple(_all(tuple(sys.path)).select(group=group))


@lru_cache(maxsize=8)
def _all(path: tuple[str, ...]) -> Any:
    """All groups. path: what the metadata is read from, the key of the cache."""
    # `EntryPoints` from Python 3.12 on, and before it a class of its own; both have `select`.
    return metadata.entry_points()
