"""A long-running party. It joins one session at a time, and only if plan and roster equal its own.

    request                       what the party does
    Enter, of a new session       compares plan and roster with its own; then the earlier session is over
    Enter, of the current one     replies that it has entered, and changes nothing
    Enter, after a restart        takes part from the round after the newest one in ledger or journal
    Enter, of an earlier session  refuses it as a replay
    Turn                          gives it to the current session; refuses it before any session

The reply to every refused request is one constant frame. The reason is in the diary, for the owner. The diary
also has the reasons why a message within a turn was refused, and why the party abstained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState
from securefl.core.errors import ConfigError, CryptoError, RemoteProtocolError, SecureFLError
from securefl.core.logs import logger
from securefl.core.release import SERVER
from securefl.core.renamed import with_new_words
from securefl.deployment.entering import ENTERED, Enter, is_enter, unpack_enter
from securefl.deployment.frames import REFUSED
from securefl.deployment.host import Host
from securefl.deployment.roster import PinnedRoster, differences
from securefl.deployment.session_store import SessionStore
from securefl.engine.party import Party
from securefl.engine.party.clients import ClientParty

_LOG = logger(__name__)
Make = Callable[[Mapping[int, ClientState]], Party]
"""Makes a session's party from its stored client state. All sessions share ledger, journal and keys."""


class PartySession:
    """One client, or the key holder, over all its sessions.

        >>> from securefl import Plan
        >>> from securefl.deployment import PinnedRoster, PartySession
        >>> from securefl.deployment.session_store import SessionStore
        >>> from securefl.sums import Identity
        >>> names = ("server", "client-0000")
        >>> roster = PinnedRoster({name: Identity.generate(name).member() for name in names})
        >>> args = ("client-0000", Plan(delta=1e-5, max_rounds=1), bytes(32), roster, SessionStore())
        >>> party = PartySession(*args, lambda kept: None, newest=lambda session: 0)
        >>> party.answer(b"no frame") == party.answer(b"another"), party.diary.refusals()[0].times
        (True, 2)

    Args:
        name: the party's.
        plan: its own; a session of another plan is refused.
        work: digest of its computation (see `entering.Enter`); a session of other work is refused.
        pinned: its own roster, which has the party with its own keys.
        diary: of this party alone.
        make: see `Make`.
        newest: gives the newest round of a session in the party's ledger or journal, or 0.

    Raises:
        ConfigError: the roster does not have the party, or has it with other keys.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        work: bytes,
        pinned: PinnedRoster,
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
        """The current session, 32 bytes; empty before the first `Enter` of this process."""
        return self._session

    def answer(self, request: bytes) -> bytes:
        """The reply to a request. Every refusal has the same bytes, and its reason is noted in the diary.

        After an error that is not the server's fault, the party leaves its session, as after a restart.
        """
        try:
            if is_enter(request):
                self._enter(unpack_enter(request, sender=SERVER))
                return ENTERED
            return self._turn(request)
        except RemoteProtocolError as error:
            return self._refused(error)
        except SecureFLError as error:
            # The server did not cause this error. A machine may have stopped halfway through a step, so the
            # party leaves the session.
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
                "Expected a new session, got one that ended when the party entered another: an old request "
                "was replayed, or the server used a nonce twice.",
                sender=SERVER,
            )
        if not known:
            if self._newest(session):
                raise ConfigError(
                    "Expected a session that the diary knows, got one in which the ledger or the journal has "
                    "acts: the diary is from a backup. Restore the folder from one backup."
                )
            # Written before the party acts in the session. Otherwise, after a crash, it would take the
            # session for a new one and run its rounds again.
            self.diary.enter(session, enter.study)
        self._host, self._kept = None, dict(self.diary.kept(session))
        party = self._make(self._kept)
        party.enter(self._pinned.directory(session), after=self._newest(session))
        self._session, self._host = session, Host(party)
        _LOG.info("%s entered session %s of %r", self.name, session.hex()[:16], enter.study)

    def _checked(self, enter: Enter) -> bytes:
        """The session under the party's own plan and roster. RemoteProtocolError if the request differs."""
        try:
            enter.require_signed(self._pinned.members[SERVER].identity)
        except CryptoError:
            raise RemoteProtocolError(
                "Expected a request signed by the server of the roster, got one that it did not sign: it is "
                "another server's, or was changed on its way.",
                sender=SERVER,
            ) from None
        found = differences(
            {
                **with_new_words(Plan, json.loads(self._plan.text())),
                **_digests(self._pinned.digest, self._work),
            },
            {**with_new_words(Plan, enter.table(sender=SERVER)), **_digests(enter.roster, enter.work)},
        )
        if found:
            raise RemoteProtocolError(
                f"Expected this party's plan and roster for {enter.study!r}, got others. {'; '.join(found)}.",
                sender=SERVER,
            )
        return self._pinned.session(self._plan, enter.nonce)


def _digests(roster: bytes, work: bytes) -> Mapping[str, str]:
    return {"roster": roster.hex(), "study (its text, arm or seed)": work.hex()}
