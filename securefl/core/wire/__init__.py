"""Versioned, bounded, pickle-free encoding of messages.

A message is a frozen dataclass marked with `message`. Its bytes are

    "SFL" version | kind | kind version | session | round | attempt | stage | field | field ...

Numbers of an array begin at a multiple of their size, behind zeros.
"""

from securefl.core.wire.coding import MAGIC, decode, encode, peek
from securefl.core.wire.kinds import Header, Limit, Sender, message

__all__ = ["MAGIC", "Header", "Limit", "Sender", "decode", "encode", "message", "peek"]
