"""What every file of a matching looks like.

    securefl <version> <kind>\n      a line for people and for `file`
    {"name": ..., "session": ...}\n  JSON, in one line
    body                             bytes
    32 bytes                         SHA-256 of all that stands before

The digest is against damage and mix-ups, not against forgers: what must hold against those is sealed or
signed inside. The name is the file's own, so that two files that were swapped are told apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from securefl.errors import ConfigError, DataError

VERSION: Final = 1
LARGEST: Final = 2**32
KINDS: Final = (
    "secret-key",
    "public-key",
    "evaluator-key",
    "evaluator-public",
    "encrypted-profile",
    "encrypted-baseline",
    "encrypted-scores",
)
_LARGEST_HEADER: Final = 2**24
_DIGEST: Final = 32


@dataclass(frozen=True)
class Envelope:
    """A file's content: its kind, its public header and its body."""

    kind: str
    header: Mapping[str, Any]
    body: bytes = field(repr=False)

    def signed_part(self) -> bytes:
        """Header without the file's name, and body: what signatures are over."""
        return _line(self.kind) + _json({k: v for k, v in self.header.items() if k != "name"}) + self.body

    def to_bytes(self, name: str) -> bytes:
        """The file of this name."""
        whole = _line(self.kind) + _json({**self.header, "name": name}) + self.body
        return whole + hashlib.sha256(whole).digest()

    @classmethod
    def from_bytes(cls, raw: bytes, kind: str) -> Envelope:
        """The inverse of `to_bytes`. Raises DataError for anything else."""
        first, newline, rest = raw.partition(b"\n")
        words = first[:80].decode("ascii", errors="replace").split(" ")
        if not newline or len(words) != 3 or words[0] != "securefl":
            raise DataError(f"Expected {_article(kind)}, this is no file of securefl.")
        if words[1] != str(VERSION):
            raise DataError(f"Expected version {VERSION} of the format, version {words[1]!r} came.")
        if hashlib.sha256(raw[:-_DIGEST]).digest() != raw[-_DIGEST:]:
            raise DataError("The file is damaged or cut off: its checksum does not fit. Get it again.")
        if words[2] != kind:
            found = _article(words[2]) if words[2] in KINDS else "a file of another kind"
            raise DataError(f"Expected {_article(kind)}, this is {found}.")
        header, newline, body = rest[:-_DIGEST].partition(b"\n")
        return cls(kind, _parsed(header), body)


def _line(kind: str) -> bytes:
    return f"securefl {VERSION} {kind}\n".encode("ascii")


def _json(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _parsed(header: bytes) -> Mapping[str, Any]:
    try:
        if len(header) > _LARGEST_HEADER:
            raise ValueError("too long")
        found = json.loads(header, parse_constant=_no_number)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DataError("The file's header is not what this package writes; get the file again.")
    return found


def _no_number(word: str) -> float:
    raise ValueError(word)


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} file"


def write(path: Path, content: Envelope, *, secret: bool = False) -> None:
    """Write a file in one step; a secret one is readable by its owner only."""
    _replaceable(path, content.kind)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(descriptor, "wb") as target:
            target.write(content.to_bytes(path.name))
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _replaceable(path: Path, kind: str) -> None:
    """ConfigError where something stands at `path` that is no file of this kind."""
    if not path.exists():
        return
    first = b""
    if path.is_file():
        with path.open("rb") as there:
            first = there.read(80).partition(b"\n")[0]
    if first != _line(kind).rstrip():
        raise ConfigError(f"{path} exists and is no {kind} file; write to another file.")


def read(path: Path, kind: str) -> Envelope:
    """A file of this kind. Raises DataError, naming the path, for one that is not as it was written."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise DataError(f"Expected a file of at most {LARGEST:,} bytes.")
        content = Envelope.from_bytes(path.read_bytes(), kind)
        if content.header.get("name") != path.name:
            raise DataError(
                f"The file was written as {content.header.get('name')!r}; it is renamed or swapped. "
                "Give it its name back."
            )
        return content
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
