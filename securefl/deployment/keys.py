"""A party's long-term keys: one secret, in a file that only its owner can read."""

from __future__ import annotations

import os
from pathlib import Path

from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError
from securefl.core.formats import first_line
from securefl.core.keys import SecretKey
from securefl.storage import owned
from securefl.storage.files import write

NAME = "identity.key"
_BYTES = 32
_KIND = "identity"


def make(folder: Path, name: str) -> Identity:
    """Make new keys, and replace the old ones. A copy of the old keys no longer identifies the party."""
    # The old secret is overwritten: once it is gone, nobody can decrypt shares sent under its channel key.
    secret = SecretKey(os.urandom(_BYTES))
    write(folder / NAME, first_line(_KIND) + secret.reveal(), secret=True)
    return Identity.of(name, secret)


def read(folder: Path, name: str) -> Identity:
    """The party's keys. Raises ConfigError if the file is missing, cut, or readable by other users."""
    raw = owned.secret(
        folder / NAME,
        _BYTES,
        lost="these are the party's keys. Restore the file, or make new keys: securefl party rotate.",
        seen="other users may have read the party's keys. Make new ones: securefl party rotate.",
        error=ConfigError,
        kind=_KIND,
        anew="make new keys: securefl party rotate",
    )
    return Identity.of(name, SecretKey(raw))
