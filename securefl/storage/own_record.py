"""Access to one party's own entries of a journal, and to no other party's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Directory, Identity
from securefl.core.errors import LocalProtocolError
from securefl.core.keys import SecretKey
from securefl.core.wire import Header
from securefl.storage.journal import Answer, Journal


@dataclass(frozen=True, repr=False)
class OwnRecord:
    """One party's view of a journal. In a simulation the records of all parties share one file.

    enrolled: long-term keys that a roster pins. Without them, every session has its own keys.
    Raises LocalProtocolError if the caller asks for another party's entries.
    """

    party: str
    journal: Journal
    enrolled: Identity | None = None

    def lasting(self, session: bytes) -> SecretKey:
        """Return the stored secret from which this party's keys of a session are derived."""
        (secret,) = self.journal.lasting([self.party], session)
        return secret

    def identity(self, session: bytes) -> Identity:
        """Return this party's own keys in a session."""
        return self.enrolled or Identity.of(self.party, self.lasting(session))

    def secret(self, session: bytes, number: int) -> SecretKey | None:
        """Return the stored secret for this party's draws in a round; None for a round below its newest."""
        (secret,) = self.journal.secrets([self.party], session, number)
        return secret

    def said(self, at: Header, name: str, make: Callable[[], bytes]) -> bytes:
        """Return this party's bytes of this name in a round. They are made once, and stored."""
        return self.journal.said(self.party, at, name, make)

    def row(self, at: Header, name: str, digest: bytes) -> int | None:
        """Bind this party's row of correlated noise to one total (`Journal.row`)."""
        return self.journal.row(self.party, at, name, digest)

    def record(self, acts: Sequence[Begin | RecordAct]) -> list[Answer]:
        """Write a batch of acts in one durable transaction."""
        others = {act.client for act in acts} - {self.party}
        if others:
            raise LocalProtocolError(
                f"Expected acts of {self.party}, got acts of {sorted(others)}. Record each party's acts in "
                "its own record."
            )
        return self.journal.record(acts)


@dataclass(frozen=True, repr=False)
class PartyKeys:
    """The server's or the key holder's own keys and record in a session, and the pinned keys of all parties.

    Raises nothing.

    >>> from securefl.sums import PartyKeys
    >>> list(PartyKeys.__annotations__)
    ['identity', 'record', 'directory']
    """

    identity: Identity
    record: OwnRecord
    directory: Directory
