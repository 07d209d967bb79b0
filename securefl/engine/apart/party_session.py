"""A party that outlives its sessions. It enters them by its own plan and roster, one after the other.

    request                     what the party does
    Enter, of a new session     compares plan and roster with its own; the session before is over for good
    Enter, of the one at hand   says that it entered, and changes nothing
    Enter, after a restart      takes part from the round after the newest that ledger or journal know
    Enter, of one that is over  refused: a replay
    Turn                        goes to the session at hand; refused before any

A reply to whatever is refused is one constant frame. The owner finds the reason in the diary. With it
stands why a message within a turn was refused, or why the party abstained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState
from securefl.core.errors import ConfigError, CryptoError, RemoteProtocolError, SecureFLError
from securefl.core.logs import logger
from securefl.core.release import SERVER
from securefl.engine.apart.entering import ENTERED, Enter, is_enter, unpack_enter
from securefl.engine.apart.frames import REFUSED
from securefl.engine.apart.host import Host
from securefl.engine.apart.roster import Pinned, differences
from securefl.engine.apart.session_store import SessionStore
from securefl.engine.party import Party
from securefl.engine.party.clients import ClientParty

_LOG = logger(__name__)
Make = Callable[[Mapping[int, ClientState]], Party]
"""Makes the party of a session, from what it keeps: the same ledger, journal and keys for all of them."""


class PartySession:
    """One client, or the key holder, over all its sessions.

    Args:
        name: the party's.
        plan: its own; a session of another plan is refused.
        work: digest of what it computes (see `entering.Enter`); a session of other work is refused.
        pinned: its own roster, in which it stands with its own keys.
        diary: of this party alone.
        make: see `Make`.
        newest: the newest round of a session that the party's ledger or journal know, or 0.

    Raises ConfigError for a party that the roster has not, or has with other keys.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        work: bytes,
        pinned: Pinned,
        diary: SessionStore,
        make: Make,
        *,
        newest: Callable[[bytes], int],
    ) -> None:
        if name not in pinned.members:
            raise ConfigError(
                f"Expected {name} in the roster, got {', '.join(sorted(pinned.members))}: it is not "
                "enrolled. Have its line added, and pin the new roster."
            )
        self.name = name
        self.diary = diary
        self._plan = plan
        self._work = work
        self._pinned = pinned
        self._make = make
        self._newest = newest
        self._session = b""
        self._host: Host | None = None
        self._kept: dict[int, ClientState] = {}

    @property
    def session(self) -> bytes:
        """The session at hand, 32 bytes; empty before the first Enter of this process."""
        return self._session

    def answer(self, request: bytes) -> bytes:
        """The reply to a request. Whatever is refused gets the same bytes, and the reason is noted here.

        After an error that is not the server's, the party has left its session, as after a restart.
        """
        try:
            if is_enter(request):
                self._enter(unpack_enter(request, sender=SERVER))
                return ENTERED
            return self._turn(request)
        except RemoteProtocolError as error:
            return self._refused(error)
        except SecureFLError as error:
            # It is not the peer's error, and the machines may stand between two states.
            self._host = None
            return self._refused(error)
        except BaseException:
            self._host = None
            raise

    def _refused(self, error: SecureFLError) -> bytes:
        _LOG.warning("%s refused: %s", self.name, error)
        self.diary.refuse(str(error))
        return REFUSED

    def _turn(self, request: bytes) -> bytes:
        if self._host is None:
            raise RemoteProtocolError(
                "Expected a session that was entered, got a message before any, or after a restart.",
                sender=SERVER,
            )
        reply = self._host.answer(request)
        for why in self._host.noted():
            self.diary.refuse(why)
        self._keep(self._host.party)
        return reply

    def _keep(self, party: Party) -> None:
        if not isinstance(party, ClientParty):
            return
        for number, own in party.kept.items():
            if own is not self._kept.get(number):
                self.diary.keep(self._session, number, own)
                self._kept[number] = own

    # Entering -----------------------------------------------------------------------------------------

    def _enter(self, enter: Enter) -> None:
        session = self._checked(enter)
        if self._host is not None and session == self._session:
            return
        known, (newest, _) = self.diary.number(session), self.diary.newest()
        if 0 < known < newest:
            raise RemoteProtocolError(
                "Expected a new session, got one that was over when the party entered another: it is an old "
                "request that somebody sends again, or the server began to use a nonce twice.",
                sender=SERVER,
            )
        if not known:
            if self._newest(session):
                raise ConfigError(
                    "Expected a session that the diary knows, got one in which the ledger or the journal has "
                    "acts: the diary is from a backup. Restore the folder from one backup."
                )
            # Before the party acts in it: a session that is entered twice would have its rounds twice.
            self.diary.enter(session, enter.study)
        self._host, self._kept = None, dict(self.diary.kept(session))
        party = self._make(self._kept)
        party.enter(self._pinned.directory(session), after=self._newest(session))
        self._session, self._host = session, Host(party)
        _LOG.info("%s entered session %s of %r", self.name, session.hex()[:16], enter.study)

    def _checked(self, enter: Enter) -> bytes:
        """The session, by the party's own plan and roster. Raises RemoteProtocolError for another's."""
        try:
            enter.require_signed(self._pinned.members[SERVER].identity)
        except CryptoError:
            raise RemoteProtocolError(
                "Expected a request signed by the server of the roster, got one that it did not sign: it is "
                "another server's, or was changed on its way.",
                sender=SERVER,
            ) from None
        found = differences(
            {**json.loads(self._plan.text()), **_digests(self._pinned.digest, self._work)},
            {**enter.table(sender=SERVER), **_digests(enter.roster, enter.work)},
        )
        if found:
            raise RemoteProtocolError(
                f"Expected this party's plan and roster for {enter.study!r}, got others. {'; '.join(found)}.",
                sender=SERVER,
            )
        return self._pinned.session(self._plan, enter.nonce)


def _digests(roster: bytes, work: bytes) -> Mapping[str, str]:
    return {"roster": roster.hex(), "study (its text, arm or seed)": work.hex()}
