"""Loggers of the package, and lines on stderr.

The loggers are silent unless the caller configures `logging`.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

_ROOT: Final = logging.getLogger("securefl")
# without a handler, Python prints a library's warnings on stderr
_ROOT.addHandler(logging.NullHandler())


def logger(name: str) -> logging.Logger:
    """Return the logger of a module below "securefl". A finished round is INFO; a fallback is a WARNING."""
    return logging.getLogger(name)


def to_stderr(line: str) -> None:
    """Print a line on stderr for a person."""
    print(line, file=sys.stderr, flush=True)
