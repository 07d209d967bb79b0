"""The version of what securefl writes, and the two places where bytes state it.

Files, messages and texts that are hashed or signed have one version, which none of them had before 0.2.0. So
the number alone says that an older release made something. A format that changes later gets a number of its
own, above this one.

    securefl/8|<purpose>|...        a text that is hashed, signed, or that a key is derived for
    securefl 8 <kind>\\n...          a file of bytes or lines

A table (SQLite, TOML, JSON) has the number in a field `version`, and a message in its mark.
"""

from __future__ import annotations

from typing import Final

from securefl.core.errors import ConfigError, of_another_version
from securefl.core.text_safety import excerpt

VERSION: Final = 8
LABEL: Final = f"securefl/{VERSION}|".encode()


def prefix(purpose: str) -> bytes:
    """The bytes in front of a text of one purpose. Texts of two purposes begin differently."""
    return LABEL + f"{purpose}|".encode()


def first_line(kind: str) -> bytes:
    """The first line of a file of this kind."""
    return f"securefl {VERSION} {kind}\n".encode()


def version_in(content: bytes) -> str:
    """The kind and version that the first line of a file states, in words."""
    words = content.partition(b"\n")[0].decode("ascii", "replace").split(" ")
    known = len(words) == 3 and words[0] == "securefl"
    return f"{excerpt(words[2])} of version {excerpt(words[1])}" if known else "no version"


def require_version(came: object, what: str, anew: str) -> None:
    """Raise ConfigError unless a table's `version` is that of its format.

    Args:
        came: the version in the table; None for none.
        what: the table, with its file.
        anew: what to do without the release that wrote it.
    """
    if came != VERSION:
        got = "no version" if came is None else f"version {excerpt(str(came))}"
        raise ConfigError(of_another_version(f"{what} of version {VERSION}", got, anew))
