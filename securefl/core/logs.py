"""The package's logging: quiet unless the caller configures `logging`."""

from __future__ import annotations

import logging
from typing import Final

_ROOT: Final = logging.getLogger("securefl")
# without a handler, Python prints warnings of a library on stderr by itself
_ROOT.addHandler(logging.NullHandler())


def logger(name: str) -> logging.Logger:
    """The logger of a module, below "securefl". A finished round is INFO; what falls back is a WARNING."""
    return logging.getLogger(name)
