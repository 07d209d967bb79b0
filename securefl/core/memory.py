"""Keeping freed memory in the process: a round allocates vectors of the same sizes as the round before it."""

from __future__ import annotations

from typing import Final

_LARGEST: Final = 31 * 2**20
"""Below 32 MB, the largest block that glibc takes from the memory that a process keeps."""


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
