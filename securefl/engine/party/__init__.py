"""Parties that only messages reach: clients, and the key holder.

clients        records, ledger, journal, identity, kept state: of one client, or of a study's at once
contributing   what a client computes, charges and protects when it is asked
fitting        only what the server called for is concealed
key_holder     its keys, and what it opened

A party is called to a place of a session and gets a drive there. It takes its session's public keys from a
directory that was made beforehand, and nothing else from anybody but by messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from securefl.core.agreement import Directory
from securefl.engine.drive import Driver
from securefl.engine.observer import Log

__all__ = ["Party"]


class Party(Protocol):
    """Whoever takes part in a run beside the server.

    Attributes:
        names: the parties that it stands for. It is one, except in a simulation.
        drive: its machines at the place that it was called to last. None before any call.
        log: what it noted, for the person at its machine.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def drive(self) -> Driver | None: ...

    @property
    def log(self) -> Log: ...

    def enter(self, directory: Directory, *, after: int = 0) -> None:
        """Take part in the session of this directory, and in no other any more.

        after: the newest round that it was in before it was started again. It takes part from the next on.
        """
        ...

    def call(self, to: Sequence[str], data: bytes) -> bytes:
        """Take the server's call to a place. Returns what the party says of its own key, mostly nothing.

        RemoteProtocolError for a call that no server makes. The party then stays where it is.
        """
        ...
