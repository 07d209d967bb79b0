"""Versioned, bounded, pickle-free encoding of messages.

A message is a frozen dataclass marked with `message`. Its bytes are

    "SFL" version | kind | kind version | session | round | attempt | stage | field | field ...

all little-endian. Every length is checked against the bytes that are left before anything is allocated.
Nothing may follow the last field. The caller of `decode` says how many bytes a message may have, and how many
elements all its tuples together: an empty element takes a few bytes here and hundreds as an object. There is
one byte string per message: decode(encode(m)) = m and no other bytes decode to m.
"""

from securefl.core.wire.coding import MAGIC, decode, encode, peek
from securefl.core.wire.kinds import Header, Limit, Sender, message

__all__ = ["MAGIC", "Header", "Limit", "Sender", "decode", "encode", "message", "peek"]
