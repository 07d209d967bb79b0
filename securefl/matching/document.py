"""The format of every file of a matching.

    securefl <version> <kind>\n      a line for people and for `file`
    {"session": ...}\n               JSON, in one line
    body                             bytes
    32 bytes                         SHA-256 of everything before

The digest detects damage and mix-ups, not forgeries. Parts that must be safe from forgers are sealed or
signed inside. A file may be renamed, since nothing in it depends on its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, TypeVar

from securefl.core.errors import ConfigError, DataError, of_another_version
from securefl.core.formats import VERSION, first_line
from securefl.core.keys import Guarded
from securefl.storage import files
from securefl.storage.inputs import opened
from securefl.storage.texts import MOST_ELEMENTS, elements

LIMITS: Final[Mapping[str, int]] = {
    "secret-key": 2**21,
    "public-key": 2**21,
    "evaluator-key": 2**12,
    "evaluator-public": 2**12,
    "client-key": 2**12,
    "client-public": 2**12,
    "declared-baseline": 2**25,
    "encrypted-profile": 2**26,
    "encrypted-baseline": 2**26,
    "encrypted-scores": 2**29,
}
"""The largest file of each kind, in bytes: a profile of 300,000 elements, 1,300 scores under `strong`."""
LARGEST_HEADER: Final = 2**24
_MADE_BY: Final[Mapping[str, str]] = {
    "secret-key": "securefl keygen --role key-holder makes it",
    "public-key": "securefl keygen --role key-holder makes it",
    "evaluator-key": "securefl keygen --role evaluator makes it",
    "evaluator-public": "securefl keygen --role evaluator makes it",
    "client-key": "securefl keygen --role client makes it",
    "client-public": "securefl keygen --role client makes it",
    "encrypted-profile": "securefl encrypt --profile makes it",
    "declared-baseline": "securefl declare makes it",
    "encrypted-baseline": "securefl encrypt --params strong-encrypted --baseline makes it",
    "encrypted-scores": "securefl match makes it",
}
_SECRET: Final = ("secret-key", "evaluator-key", "client-key")
_LONGEST_LINE: Final = 80
_BEGIN: Final = b"securefl "
_DIGEST: Final = 32


@dataclass(frozen=True)
class Document(Guarded):
    """The content of a file: kind, public header and body. In files of keys the body is secret."""

    _instead: ClassVar[str] = "take its `to_bytes`"

    kind: str
    header: Mapping[str, Any]
    body: bytes = field(repr=False)

    def signed_part(self) -> bytes:
        """All bytes except the digest. Signatures are over these."""
        return first_line(self.kind) + _json(self.header) + self.body

    def to_bytes(self) -> bytes:
        """The file's bytes. Raises DataError if `from_bytes` would refuse their size or header."""
        whole = self.signed_part()
        _check_size(self.kind, len(whole) + _DIGEST)
        header_bytes(self.header)
        return whole + hashlib.sha256(whole).digest()

    @classmethod
    def from_bytes(cls, raw: bytes, kind: str) -> Document:
        """The inverse of `to_bytes`. Raises DataError for all other bytes."""
        return cls.from_stream(BytesIO(raw), len(raw), kind)

    @classmethod
    def from_stream(cls, source: BinaryIO, size: int, kind: str) -> Document:
        """Read a file of `size` bytes. Its kind and size are checked before its body is read."""
        first = source.readline(_LONGEST_LINE)
        if not first:
            raise DataError(f"Expected {_article(kind)}, got an empty file. Get it again.")
        _check_line(first, kind)
        _check_size(kind, size)
        header = source.readline(LARGEST_HEADER + 1)
        _check_header(header)
        body = source.read(max(0, size - len(first) - len(header) - _DIGEST))
        checksum = hashlib.sha256(first + header)
        checksum.update(body)
        if source.read(_DIGEST + 1) != checksum.digest():
            raise DataError(
                "Expected a matching checksum, got a file that is damaged or truncated. Get it again."
            )
        return cls(kind, _parsed(header), body)


def _check_line(first: bytes, kind: str) -> None:
    """Raises DataError unless this is the first line of a file of the kind."""
    words = first[:-1].decode("ascii", errors="replace").split(" ")
    if not first.endswith(b"\n") or len(words) != 3 or words[0] != "securefl":
        raise DataError(
            f"Expected {_article(kind)}, got a file that securefl did not write: {_MADE_BY[kind]}."
        )
    if words[1] != str(VERSION):
        raise DataError(
            of_another_version(f"a file of version {VERSION}", f"version {words[1]!r}", "make the file again")
        )
    if words[2] != kind:
        found = _article(words[2]) if words[2] in LIMITS else "a file of another kind"
        raise DataError(f"Expected {_article(kind)}, got {found}: {_MADE_BY[kind]}.")


def _check_size(kind: str, size: int) -> None:
    if size > LIMITS[kind]:
        raise DataError(
            f"Expected {_article(kind)} of at most {LIMITS[kind]:,} bytes, got {size:,}. "
            "Get it again; of many profiles, match fewer at a time."
        )


def _check_header(header: bytes) -> None:
    if len(header) > LARGEST_HEADER or elements(header) > MOST_ELEMENTS:
        raise DataError(
            f"Expected a header of at most {LARGEST_HEADER:,} bytes and {MOST_ELEMENTS:,} values, got "
            f"{len(header):,} bytes and {elements(header):,} values. Make it again, of fewer elements."
        )


def header_bytes(header: Mapping[str, Any]) -> int:
    """The length of a header in a file. Raises DataError if a reader would refuse it."""
    raw = _json(header)
    _check_header(raw)
    return len(raw)


def _json(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _parsed(header: bytes) -> Mapping[str, Any]:
    try:
        if not header.endswith(b"\n"):
            raise ValueError("cut")
        found = json.loads(header, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DataError(
            "Expected a header in the form that securefl writes, got another. Get the file again."
        )
    return found


def _finite(word: str) -> float:
    """A finite number. Raises ValueError for NaN and 1e999."""
    # a signature check writes the header again, and neither can be written
    if not isfinite(number := float(word)):
        raise ValueError(word)
    return number


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} file"


def write(path: Path, content: Document, *, secret: bool = False) -> None:
    """Write a file in one step. Only its owner can read a secret one."""
    raw = content.to_bytes()
    require_replaceable(path, content.kind)
    files.write(path, raw, secret=secret)


def require_replaceable(path: Path, kind: str) -> None:
    """Raises ConfigError or DataError if anything but a file of this kind is at `path`."""
    files.require_replaceable(path)
    if not path.exists():
        return
    with opened(path) as there:
        first = there.readline(_LONGEST_LINE)
    # a mistake such as `-o p1.json` must not destroy a profile or a key
    if first != first_line(kind):
        raise ConfigError(
            f"Expected {_article(kind)} or nothing at {path}, got another file. Choose another path."
        )


def read(path: Path, kind: str) -> Document:
    """Read a file of this kind.

    Raises DataError with the path if the file is not as it was written, or is a key that others can read.
    """
    with opened(path) as source:
        about = os.fstat(source.fileno())
        found = Document.from_stream(source, about.st_size, kind)
        if kind in _SECRET and about.st_mode & 0o077:
            raise DataError(
                f"Expected a key for its owner alone, got mode {about.st_mode & 0o777:04o}: others may have "
                "read it. Make new keys (securefl keygen), or, if nobody did: chmod 600 "
                f"{shlex.quote(str(path))}"
            )
    return found


T = TypeVar("T")


def load(path: Path, cls: type[T]) -> T:
    """What a file holds, of a class that names its KIND. Raises DataError as `read` and the class do."""
    found: T = cls.from_document(read(path, cls.KIND))  # type: ignore[attr-defined]
    return found


def is_document(path: Path) -> bool:
    """Whether a file begins as `write` begins it. Raises DataError with the path if it cannot be read."""
    with opened(path) as source:
        return source.read(len(_BEGIN)) == _BEGIN
