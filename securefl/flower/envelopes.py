"""A frame of bytes as the content of a Flower message. Nothing of the frame is read here."""

from __future__ import annotations

from typing import Final

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from securefl.core.errors import RemoteProtocolError

MOST: Final = 2**30
"""Bytes of the largest frame. Flower bears less than 2 GiB a message."""
_RECORD, _FRAME, _KIND = "securefl", "frame", "securefl-frame"
# Above it Flower's arrays, which travel in chunks, are faster than its configuration values.
_LARGE: Final = 100_000


def wrapped(frame: bytes) -> RecordDict:
    """The content of a message with this frame. ValueError for one above MOST bytes."""
    if len(frame) > MOST:
        raise ValueError(f"Expected a frame of at most {MOST} bytes, got {len(frame)}. Send smaller values.")
    if len(frame) < _LARGE:
        return RecordDict({_RECORD: ConfigRecord({_FRAME: frame})})
    array = Array(dtype="uint8", shape=(len(frame),), stype=_KIND, data=frame)
    return RecordDict({_RECORD: ArrayRecord({_FRAME: array})})


def unwrapped(content: RecordDict, *, sender: str) -> bytes:
    """The frame in the content of a message. RemoteProtocolError for any other content."""
    record = content.get(_RECORD)
    found: object = None
    if len(content) == 1 and isinstance(record, ConfigRecord | ArrayRecord) and len(record) == 1:
        found = record.get(_FRAME)
    # What an array says of its own shape and type is not looked at: its bytes are what there is.
    data = found.data if isinstance(found, Array) else found
    if not isinstance(data, bytes) or len(data) > MOST:
        raise RemoteProtocolError(
            f"Expected one frame of at most {MOST} bytes in a Flower message, got other content.",
            sender=sender,
        )
    return data
