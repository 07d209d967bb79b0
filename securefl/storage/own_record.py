"""One party's pages of a journal: what it may read and write of the record, and nothing of anybody else's."""

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
    """A party's record. In a simulation the parties' records share one file, and each has this door to it.

    enrolled: lasting keys that a roster has; without them every session has keys of its own.
    LocalProtocolError where it is asked for what is another party's.
    """

    party: str
    journal: Journal
    enrolled: Identity | None = None

    def lasting(self, session: bytes) -> SecretKey:
        """What this party's own keys are made from, the same for the whole session, durably."""
        (secret,) = self.journal.lasting([self.party], session)
        return secret

    def identity(self, session: bytes) -> Identity:
        """This party's own keys in a session."""
        return self.enrolled or Identity.of(self.party, self.lasting(session))

    def secret(self, session: bytes, number: int) -> SecretKey | None:
        """What this party draws from in a round, durably; None for a round below its newest."""
        (secret,) = self.journal.secrets([self.party], session, number)
        return secret

    def said(self, at: Header, name: str, make: Callable[[], bytes]) -> bytes:
        """What this party says under this name in a round: made once, then the same."""
        return self.journal.said(self.party, at, name, make)

    def record(self, acts: Sequence[Begin | RecordAct]) -> list[Answer]:
        """Write a wave of acts in one durable transaction."""
        others = {act.client for act in acts} - {self.party}
        if others:
            raise LocalProtocolError(f"Expected acts of {self.party}, got acts of {sorted(others)}.")
        return self.journal.record(acts)


@dataclass(frozen=True, repr=False)
class Own:
    """What server or key holder have to themselves in a session, and the pinned keys of all."""

    identity: Identity
    record: OwnRecord
    directory: Directory
