"""Memory of a process that plays rounds: it keeps what is freed, and rarely searches for cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

_LARGEST: Final = 31 * 2**20
"""Below 32 MB, the largest block that glibc takes from the memory that a process keeps."""
FULL_SEARCHES_APART: Final = 100
"""Searches of the middle generation between two full ones; Python's own number is 10."""
NEW_OBJECTS: Final = 10_000
"""In a run, the new objects between two searches among them; Python's own number is 700."""


@cache  # a second call would take the block from memory in use, and write 31 MB of zeros
def keep_freed_memory() -> None:
    """Let the C library keep up to 62 MB of freed memory, instead of giving it back to the system.

    A round of many clients frees tens of megabytes at its end. If they go back, the next round fetches them
    again page by page, which takes longer than the arithmetic on them. The call changes no result.

    Raises nothing.
    """
    # When a block is freed that was mapped on its own, glibc from then on takes blocks up to its size from
    # the memory that it keeps, and keeps twice as much (mallopt(3), M_MMAP_THRESHOLD). Other libraries ignore
    # it.
    # Zeroed by the system, the block's own pages are never touched, so it takes neither memory nor time.
    bytes(_LARGEST)


@contextmanager
def searches_apart() -> Iterator[None]:
    """Make searches for reference cycles rare.

    A search among new objects begins after 10,000 of them, not Python's 700, and a full one after a million.
    A full search looks through all loaded modules and all clients' data. A round's own objects refer to each
    other in no cycle: they are freed as the round ends.

    If searches are off, or rarer already, nothing changes.
    """
    usual = gc.get_threshold()
    if 0 < usual[0] < NEW_OBJECTS:
        gc.set_threshold(NEW_OBJECTS, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def free_cycles() -> None:
    """Free what only reference cycles hold: a full search, which takes a tenth of a second.

    For a process that runs one study after the other. The first picture with a text leaves exceptions of the
    parser of texts, which refer to the frames of their callers, and so to all records of the study. Until
    the next full search these would stay beside the next study's.

    Raises nothing.
    """
    gc.collect()
