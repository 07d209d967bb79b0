"""Loggers of the package, and lines on stderr.

The loggers are silent unless the caller configures `logging`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_ROOT: Final = logging.getLogger("securefl")
# without a handler, Python prints a library's warnings on stderr
_ROOT.addHandler(logging.NullHandler())


def logger(name: str) -> logging.Logger:
    """Return the logger of a module below "securefl". A finished round is INFO; a fallback is a WARNING."""
    found = logging.getLogger(name)
    found.addFilter(_passes)  # a filter that is there already is not added again
    return found


_kept: Final[ContextVar[list[logging.LogRecord] | None]] = ContextVar("kept", default=None)
"""The records that are held back in this thread, or None."""


def _passes(record: logging.LogRecord) -> bool:
    if (kept := _kept.get()) is None:
        return True
    kept.append(record)
    return False


@contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Hold this thread's log records of the package back. Yields a function that logs them.

    Records for which it is not called are dropped: they may tell of what was not written.
    """
    kept: list[logging.LogRecord] = []
    before = _kept.set(kept)

    def let_go() -> None:
        _kept.set(None)
        for record in kept:
            logging.getLogger(record.name).handle(record)

    try:
        yield let_go
    finally:
        _kept.reset(before)


def to_stderr(line: str) -> None:
    """Print a line on stderr for a person."""
    print(line, file=sys.stderr, flush=True)
