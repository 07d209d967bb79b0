"""The package's logging, quiet unless the caller configures `logging`, and lines for a person."""

from __future__ import annotations

import logging
import sys
from typing import Final

_ROOT: Final = logging.getLogger("securefl")
# without a handler, Python prints warnings of a library on stderr by itself
_ROOT.addHandler(logging.NullHandler())


def logger(name: str) -> logging.Logger:
    """The logger of a module, below "securefl". A finished round is INFO; what falls back is a WARNING."""
    return logging.getLogger(name)


def to_stderr(line: str) -> None:
    """Print a line for a person."""
    print(line, file=sys.stderr, flush=True)
