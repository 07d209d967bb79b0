"""Wire format: versioned, bounded encoding of messages, without pickle.

A message is a frozen dataclass marked with `message`. Its bytes are

    "SFL" version | kind | kind version | session | round | attempt | stage | field | field ...

A field that is another message, or a frozen dataclass, is encoded in place: its fields, one after the other.
The numbers of an array begin at a multiple of their size. Zero bytes fill the gap before them.
"""

from securefl.core.wire.coding import MAGIC, begins_as, decode, encode, peek
from securefl.core.wire.kinds import Header, Limit, Sender, message

__all__ = ["MAGIC", "Header", "Limit", "Sender", "begins_as", "decode", "encode", "message", "peek"]
