"""Binary frames between the parties of a deployment.

A frame is its magic, its kind, and parts, each with its length in front. `parts_of` checks the lengths
against the frame before it copies a part, and refuses bytes after the last part. The reader of a part checks
its content.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from securefl.core.errors import RemoteProtocolError

MAGIC = b"SFLP\x01"
MOST_PARTS = 2**20
_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_REFUSED = b"R"


def packed(kind: bytes, parts: Sequence[bytes]) -> bytes:
    """Encode a frame of one kind, a byte, with these parts."""
    sized = [piece for part in parts for piece in (_LENGTH.pack(len(part)), part)]
    return b"".join([MAGIC, kind, _COUNT.pack(len(parts)), *sized])


def is_of(kind: bytes, data: bytes) -> bool:
    """Whether a frame's head has this kind. The rest of the frame is not checked."""
    return data[: len(MAGIC) + 1] == MAGIC + kind


def parts_of(kind: bytes, data: bytes, *, sender: str) -> list[bytes]:
    """The parts of a frame of this kind. Raises RemoteProtocolError for a refusal and for other bytes."""
    if data == REFUSED:
        raise RemoteProtocolError("It refused, and tells the reason to its owner alone.", sender=sender)
    head = MAGIC + kind
    at = len(head) + _COUNT.size
    if data[: len(head)] != head or len(data) < at:
        raise other(sender)
    (count,) = _COUNT.unpack_from(data, len(head))
    if count > MOST_PARTS:
        raise other(sender)
    parts = []
    for _ in range(count):
        if at + _LENGTH.size > len(data):
            raise other(sender)
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > len(data) - at:
            raise other(sender)
        parts.append(data[at : at + length])
        at += length
    if at != len(data):
        raise other(sender)
    return parts


def other(sender: str) -> RemoteProtocolError:
    """The error for bytes that are no frame of the expected kind."""
    return RemoteProtocolError("Expected a frame of this version, whole, got other bytes.", sender=sender)


REFUSED = packed(_REFUSED, [])
"""A party's reply to every refused request. It is constant, because a reason could reveal records."""
