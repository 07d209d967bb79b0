"""What the server and the key holder have alike: keys of their own, and a durable record of their acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Directory, Member
from securefl.core.errors import ConfigError
from securefl.engine.drive import Worker
from securefl.engine.observer import Log
from securefl.storage.own_record import OwnRecord, PartyKeys


class RecordedParty(Worker):
    """A party of which a run has one.

    Args:
        record: the durable record of its acts. It stops the party from an act with other content.
    """

    def __init__(self, record: OwnRecord) -> None:
        self._record = record
        self.log = Log()

    def member(self, session: bytes) -> Member:
        """The party's public keys of a session, for the directory."""
        return self._record.identity(session).member()

    def own(self, directory: Directory, pinned: Member | None) -> PartyKeys:
        """Its keys and record in the session of this directory. Raises ConfigError if others are pinned."""
        own = PartyKeys(self._record.identity(directory.session), self._record, directory)
        if pinned != own.identity.member():  # nothing of this party would ever open, or be opened
            raise ConfigError(
                f"Expected this {self._record.party}'s own keys in the directory, got another's. Pin its "
                "roster line again, or restore its folder."
            )
        return own

    def work(self, needs: Sequence[tuple[str, Any]]) -> list[Any]:
        """Do slow work. Acts are recorded before what follows them; other orders carry all their inputs."""
        return [
            self._record.record([order])[0] if isinstance(order, Begin | RecordAct) else order.run()
            for _, order in needs
        ]
