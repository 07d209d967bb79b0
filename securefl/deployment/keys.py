"""A party's long-term keys: one secret, in a file that only its owner can read."""

from __future__ import annotations

import os
from pathlib import Path

from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.storage.files import write

NAME = "identity.key"
_BYTES = 32


def make(folder: Path, name: str) -> Identity:
    """Make new keys, and replace the old ones. A copy of the old keys no longer identifies the party."""
    # The old secret is overwritten: once it is gone, nobody can decrypt shares sent under its channel key.
    secret = SecretKey(os.urandom(_BYTES))
    write(folder / NAME, secret.reveal(), secret=True)
    return Identity.of(name, secret)


def read(folder: Path, name: str) -> Identity:
    """The party's keys. Raises ConfigError if the file is missing, cut, or readable by other users."""
    path = folder / NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(
            f"Expected the party's keys in {path}, got {error.strerror}. Restore the file, or make new keys: "
            "securefl party rotate."
        ) from None
    with os.fdopen(file, "rb") as source:
        mode = os.fstat(source.fileno()).st_mode & 0o777
        raw = source.read(_BYTES + 1)
    if mode & 0o077:
        raise ConfigError(
            f"Expected {path} for its owner alone, got mode {mode:04o}: other users may have read the keys. "
            "Make new ones: securefl party rotate."
        )
    if len(raw) != _BYTES:
        raise ConfigError(
            f"Expected {_BYTES} bytes of keys in {path}, got {len(raw)} or more: the file is damaged. "
            "Restore it, or make new keys: securefl party rotate."
        )
    return Identity.of(name, SecretKey(raw))
