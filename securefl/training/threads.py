"""Pinning a study's process, or a computation, to one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def single_thread() -> None:
    """Pin torch, in this process, to one thread within and one thread between operations.

    Worker processes of a study call it. Models this small run no faster on several threads. With one thread
    results do not depend on how a machine splits a sum, and workers do not fight over cores.
    """
    torch.set_num_threads(1)
    # torch refuses the second pin once the process has run anything in parallel; then it is left out
    if torch.get_num_interop_threads() != 1:
        with contextlib.suppress(RuntimeError):
            torch.set_num_interop_threads(1)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread within operations for a while; afterwards torch has as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
