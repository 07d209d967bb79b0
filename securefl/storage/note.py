"""Small sealed notes in files of one length.

One write replaces a note, so a reader finds the old one or the new one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final

from securefl.storage import inputs
from securefl.storage.database import Damaged, seal

_LARGEST: Final = 2**10


@dataclass(frozen=True)
class SealedNote:
    """The note at a path. kind: a word that the seal covers. layout: of the values in front of the seal."""

    path: Path
    kind: str
    layout: Struct

    def write(self, *values: Any) -> None:
        """Write the values in place of the old ones. It is not synced."""
        body = self.layout.pack(*values)
        # O_NOFOLLOW: an attacker's link at this path would otherwise redirect the write to another file
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(file, body + seal(self.kind, body), 0)
        finally:
            os.close(file)

    def read(self) -> tuple[Any, ...] | None:
        """Return the values, or None if none were written. Raises Damaged if they were changed."""
        content = inputs.content(self.path, _LARGEST) if self.path.exists() else b""
        if not content:  # not there, or created but not written yet
            return None
        body = content[: self.layout.size]
        if content[self.layout.size :] != seal(self.kind, body):
            raise Damaged(f"its note {self.path.name} is not as it was written")
        return self.layout.unpack(body)
