"""Processes that this one starts: how many there may be, which signals they hear, and how they ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MOST_WORKERS = 1024
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C, the signal of service managers, and that of a closed terminal. They ask a study to stop."""


def processors() -> int:
    """The number of processors that this process may use."""
    # a container, or taskset, may allow fewer of them than the machine has
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether a process here may go on in a copy of itself."""
    # macOS has fork, but its own libraries, the one of linear algebra among them, may crash in the copy.
    return hasattr(os, "fork") and sys.platform != "darwin"


@contextmanager
def unheard() -> Iterator[None]:
    """A signal that comes within arrives at the end. A process that is started within hears none of them.

    Terminals and service managers signal a whole group. The process that started the others hears the signal,
    and tells them.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def for_workers() -> Iterator[None]:
    """Processes started within have one thread each, and signals stop them only through this process."""
    name = "OMP_NUM_THREADS"
    old = os.environ.get(name)
    os.environ[name] = "1"
    try:
        with unheard():
            yield
    finally:
        if old is None:
            del os.environ[name]
        else:
            os.environ[name] = old


@contextmanager
def scriptless() -> Iterator[None]:
    """Hide where the main module is from `multiprocessing`, which would import it in every worker.

    A worker needs nothing of it. A script that calls a sweep at its top level would begin another one there.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)
    }
    main.__spec__ = None
    try:
        yield
    finally:
        del main.__spec__
        vars(main).update(hidden)


@contextmanager
def forking() -> Iterator[None]:
    """`unheard`, for processes that are forked within."""
    with unheard(), warnings.catch_warnings():
        # Python 3.12 warns where there are several threads: one of them may hold a lock that nobody opens in
        # the copy. Those here draw bars on a terminal. The copies never print, and leave by `os._exit`.
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        yield


def silent() -> None:
    """In a forked process: print nowhere from now on.

    Whoever draws bars has put a writer with a lock in the place of these files. In the copy that lock may be
    held for ever, and a warning would wait for it.
    """
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives


def end_with_parent() -> None:
    """In a process of `multiprocessing`: end at once when the process that started this one has ended.

    A worker whose study was killed would go on writing into a folder that the next one resumes.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def ending(code: int) -> str:
    """An exit code in words. As in `subprocess` and `multiprocessing`, a signal's number is negative."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was ended by signal {-code}"
