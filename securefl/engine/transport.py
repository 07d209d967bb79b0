"""How a server reaches the other parties of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from securefl.engine.drive import Drive


class Transport(Protocol):
    """How a server reaches the other parties. It moves bytes, and reads none."""

    def call(self, to: Sequence[str], data: bytes) -> Mapping[str, bytes]:
        """Give a call to these parties. Returns what each said of its own key; an absent one is silent."""
        ...

    def run(self, drive: Drive) -> None:
        """Move messages between this drive and the parties that were called, until the drive is finished."""
        ...
