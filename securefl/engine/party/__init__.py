"""The parties beside the server: clients and the key holder. Only messages reach them.

clients        a client's records, ledger, journal, identity and state; one client, or all of a simulation
computing      computes a client's values, each once for a query
contributing   charges, computes and protects a client's values
recorded       what the key holder and the server have alike: keys of their own, and a record of acts
key_holder     the key holder's keys, and the record of its openings

The server calls a party to a place of a session. The party then makes a driver for that place. It takes its
session's public keys from a directory that was made beforehand. All other inputs come in messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from securefl.core.agreement import Directory
from securefl.engine.drive import Driver
from securefl.engine.observer import Log

__all__ = ["Party"]


class Party(Protocol):
    """A party of a run beside the server.

    Attributes:
        names: of the party. In a simulation one object runs several clients, and has all their names.
        drive: the driver of its machines at the place of the last call. None before any call.
        log: its notes for the person at its machine.
    """

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def drive(self) -> Driver | None: ...

    @property
    def log(self) -> Log: ...

    def enter(self, directory: Directory, *, after: int = 0) -> None:
        """Join the session of this directory, and leave any session before it.

        after: the newest round of the session before the party was restarted. It takes part from the next
            round on.
        """
        ...

    def call(self, to: Sequence[str], data: bytes) -> bytes:
        """Take the server's call to a place. Returns the key holder's key; other parties return nothing.

        Raises RemoteProtocolError for an invalid call. The party then stays at its place.
        """
        ...
