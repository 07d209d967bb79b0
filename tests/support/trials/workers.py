"""Trials side by side, each in a process of its own, and what they found in one line each."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

ClientContext = TypeVar("Job")
Found = TypeVar("Found")


def spread(
    work: Callable[[ClientContext], Found], jobs: Sequence[ClientContext], workers: int
) -> Iterator[Found]:
    """What each job finds, as they end. A worker forks its victims, so it is a fork itself."""
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(work, jobs)
