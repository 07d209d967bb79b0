"""A long-running party. It joins one session at a time, and only if plan and roster equal its own.

    request                       what the party does
    Enter, of a new session       compares plan and roster with its own; then the earlier session is over
    Enter, of the current one     tells its visit and the next number again, and changes nothing
    Enter, after a restart        takes part from the round after the newest one in ledger or journal
    Enter, of an earlier session  refuses it as a replay
    Enter, of one too many        refuses it (`session_cap`), and stays in its session
    SignedTurn                    answers it once, if the pinned server signed it for this party and visit

A signature is checked before a turn is decoded, so that only the pinned server can move the party's machines.
The reply to every refused request is one constant envelope. The reason is in the diary, for the owner. The
diary also has the reasons why a message within a turn was refused, and why the party abstained.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState
from securefl.core.errors import ConfigError, CryptoError, RemoteProtocolError, SecureFLError
from securefl.core.keys import Signature
from securefl.core.logs import logger
from securefl.core.release import SERVER
from securefl.core.signing import verify
from securefl.deployment.messages import (
    REFUSED,
    VISIT_BYTES,
    Enter,
    Entered,
    Parcel,
    SignedTurn,
    Turn,
    TurnReply,
    decode_envelope,
    encode_envelope,
)
from securefl.deployment.roster import PinnedRoster, differences
from securefl.deployment.session_store import BLANK, CUT, NO_VALUE, SessionStore
from securefl.engine.calls import by_server
from securefl.engine.drive import Driver, Packet
from securefl.engine.party import Party
from securefl.engine.party.clients import ClientParty

_LOG = logger(__name__)
Make = Callable[[bytes, Mapping[int, ClientState]], Party]
"""Makes a session's party from the session and its stored client state.

All sessions share ledger, journal and keys."""
_OLD_ROSTER = (
    " If the other parties have a newer roster, pin it: securefl party pin. If this folder is from a backup, "
    "its keys may be void: put the newest folder back, or make new keys: securefl party rotate."
)
_MOST_LOST = 1024
"""The most turns between two that arrive. More would let a lie about a number use all numbers up."""


@dataclass
class _Visit:
    """The party in the session that it has entered.

    Attributes:
        visit: 16 bytes, which the server signs with each turn.
        next: the number of the next turn. A turn below it was answered, or came too late.
    """

    party: Party
    visit: bytes
    next: int = 0


@dataclass(eq=False, repr=False)
class PartySession:
    """One client, or the key holder, over all its sessions.

        >>> from securefl import Plan
        >>> from securefl.deployment import PinnedRoster, PartySession
        >>> from securefl.deployment.session_store import BLANK, NO_VALUE, SessionStore
        >>> from securefl.sums import Identity
        >>> names = ("server", "client-0000")
        >>> roster = PinnedRoster({name: Identity.generate(name).member() for name in names})
        >>> args = ("client-0000", Plan(delta=1e-5, max_rounds=1), bytes(32), roster, SessionStore())
        >>> party = PartySession(*args, lambda session, kept: None, newest=lambda session: 0)
        >>> party.answer(b"no frame") == party.answer(b"another"), party.diary.refusals()[0].times
        (True, 2)

    Args:
        name: the party's.
        plan: its own; a session of another plan is refused.
        work: digest of its computation (see `messages.Enter`); a session of other work is refused.
        pinned: its own roster, which has the party with its own keys.
        diary: of this party alone.
        make: see `Make`.
        newest: gives the newest round of a session in the party's ledger or journal, or 0.
        barred: gives the reason why the party does not enter this session; empty if it does.
        note: writes the party's progress into its counter. It is called before each reply leaves: otherwise a
            restored backup could make the party forget a reply that another party has.
        random: gives so many random bytes, for visits; by default from the operating system.

    Raises:
        ConfigError: the roster does not have the party, or has it with other keys.
    """

    name: str
    plan: Plan
    work: bytes
    pinned: PinnedRoster
    diary: SessionStore
    make: Make
    _: KW_ONLY
    newest: Callable[[bytes], int]
    barred: Callable[[bytes], str] = lambda session: ""
    note: Callable[[], None] = lambda: None
    random: Callable[[int], bytes] = secrets.token_bytes
    _session: bytes = field(default=b"", init=False)
    _visit: _Visit | None = field(default=None, init=False)
    _kept: dict[int, ClientState] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.name not in self.pinned.members:
            raise ConfigError(
                f"Expected {self.name} in the roster, got {', '.join(sorted(self.pinned.members))}: it is "
                "not enrolled. Have its line added, and pin the new roster."
            )

    @property
    def session(self) -> bytes:
        """The current session, 32 bytes; empty before the first `Enter` of this process."""
        return self._session

    def answer(self, request: bytes) -> bytes:
        """The reply to a request. Every refusal has the same bytes, and its reason is noted in the diary.

        After an error that is not the server's fault, the party leaves its session, as after a restart.
        """
        try:
            found = decode_envelope(request, Enter, SignedTurn, sender=SERVER)
            own = self._enter(found) if isinstance(found, Enter) else self._answer_turn(found)
            reply = encode_envelope(own)
        except RemoteProtocolError as error:
            reply = self._refused(error)
        except SecureFLError as error:
            # The server did not cause this error. A machine may have stopped halfway through a step, so the
            # party leaves the session.
            self._visit = None
            reply = self._refused(error)
        except BaseException:
            self._visit = None
            raise
        self.note()
        return reply

    def prepare(self) -> bool:
        """Work beforehand for the next answer, for some milliseconds. Returns whether more is to be done."""
        party = None if self._visit is None else self._visit.party
        return isinstance(party, ClientParty) and party.prepare()

    def _refused(self, error: SecureFLError) -> bytes:
        _LOG.warning("%s refused: %s", self.name, error)
        self.diary.refuse(str(error))
        return REFUSED

    # Turns --------------------------------------------------------------------------------------------

    def _answer_turn(self, signed: SignedTurn) -> TurnReply:
        """The reply to a turn. Nothing changes unless the pinned server signed it for this place."""
        if (here := self._visit) is None:
            raise by_server(
                "Expected a session that was entered, got a message before any, or after a restart."
            )
        self._require_due(signed, here)
        here.next = signed.number + 1
        turn = decode_envelope(signed.turn, Turn, sender=SERVER)
        reply = answer_turn(here.party, turn)
        for why in _noted(here.party):
            self.diary.refuse(why)
        self._keep(here.party)
        return reply

    def _require_due(self, signed: SignedTurn, here: _Visit) -> None:
        """Raise RemoteProtocolError unless the server signed this turn for this visit, and it is due."""
        if signed.visit != here.visit:
            raise by_server(
                "Expected a turn for this visit, got one from before a restart, or of another session."
            )
        self._require_signed(
            signed.signature,
            signed.text(self._session, self.name),
            f"Expected a turn that the server signed for this party and session, got turn {signed.number} "
            "without such a signature: it is another party's, or was changed on its way.",
        )
        if not 0 <= signed.number - here.next < _MOST_LOST:
            raise by_server(
                f"Expected turn {here.next}, or a later one near it, got turn {signed.number}: an old one "
                "was replayed, or came late."
            )

    def _require_signed(self, signature: bytes, text: bytes, refusal: str) -> None:
        """Raise RemoteProtocolError, with this refusal, unless the pinned server signed the text."""
        try:
            verify(self.pinned.members[SERVER].identity, Signature(signature), text)
        except CryptoError:
            raise by_server(refusal) from None

    def _keep(self, party: Party) -> None:
        if not isinstance(party, ClientParty):
            return
        for number, own in party.kept.items():
            if own is not self._kept.get(number):
                self.diary.keep(self._session, number, own)
                self._kept[number] = own

    # Entering -----------------------------------------------------------------------------------------

    def _enter(self, enter: Enter) -> Entered:
        session = self._checked(enter)
        if self._visit is None or session != self._session:
            self._visit = self._begun(session, enter.study)
        return Entered(visit=self._visit.visit, number=self._visit.next)

    def _begun(self, session: bytes, study: str) -> _Visit:
        """A new visit to a session. RemoteProtocolError for a session that is over."""
        known, (newest, _) = self.diary.number(session), self.diary.newest()
        if 0 < known < newest:
            raise by_server(
                "Expected a new session, got one that ended when the party entered another: an old request "
                "was replayed, or the server used a nonce twice."
            )
        if why := self.barred(session):
            raise by_server(why)
        if not known:
            # Written before the party acts in the session. Otherwise, after a crash, it would take the
            # session for a new one and run its rounds again.
            self.diary.enter(session, study)
        self._visit, self._kept = None, dict(self.diary.kept(session))
        party = self.make(session, self._kept)
        party.enter(self.pinned.directory(session), after=self.newest(session))
        self._session = session
        _LOG.info("%s entered session %s of %r", self.name, session.hex()[:16], study)
        return _Visit(party, self.random(VISIT_BYTES))

    def _checked(self, enter: Enter) -> bytes:
        """The session under the party's own plan and roster. RemoteProtocolError if the request differs."""
        self._require_signed(
            enter.signature,
            enter.text(),
            "Expected a request signed by the server of the roster, got one that it did not sign: it is "
            "another server's, or was changed on its way.",
        )
        found = differences(
            {**json.loads(self.plan.text()), **_digests(self.pinned.digest, self.work)},
            {**enter.table(sender=SERVER), **_digests(enter.roster, enter.work)},
        )
        if found:
            raise by_server(
                f"Expected this party's plan and roster for {enter.study!r}, got {'; '.join(found)}."
                f"{_OLD_ROSTER if self.pinned.digest != enter.roster else ''}"
            )
        return self.pinned.session(self.plan, enter.nonce)


def _digests(roster: bytes, work: bytes) -> Mapping[str, str]:
    return {"roster": roster.hex(), "study (its text, arm, seed, initial weights or own code)": work.hex()}


# A turn -------------------------------------------------------------------------------------------------


def answer_turn(party: Party, turn: Turn) -> TurnReply:
    """The reply of a party that stands for one name. RemoteProtocolError leaves it at its place."""
    (name,), key = party.names, b""
    out: list[Packet] = []
    if turn.call:
        key = party.call([name], turn.call)
        out += _driver(party).begin()
    if turn.packets or turn.deadline:
        driver = _driver(party)
        for own in turn.packets:
            out += driver.deliver(Packet(own.name, name, own.data))
        out += _worked(driver)
        if turn.deadline:
            out += driver.deadline()[1]
    if party.drive is not None:
        out += _worked(party.drive)
    return TurnReply(key=key, packets=tuple(Parcel(packet.to, packet.data) for packet in out))


def _noted(party: Party) -> list[str]:
    """For its owner, since the last call: what it refused of peers, why it abstained, what it cut."""
    own, drive = party.log.take(), party.drive
    rejected_from: dict[str, str] = {} if drive is None else drive.traffic.rejected_from
    reasons = [f"{sender}: {why}" for sender, why in rejected_from.items()]
    rejected_from.clear()
    return [
        *reasons,
        *(f"{NO_VALUE}: {why}" for why in own.abstained.values()),
        *(f"{BLANK}: {why}" for why in own.blank.values()),
        *(f"{CUT}: {why}" for why in own.cut.values()),
    ]


def _driver(party: Party) -> Driver:
    if party.drive is None:
        raise by_server("Expected a call before any message, got none.")
    return party.drive


def _worked(driver: Driver) -> list[Packet]:
    out: list[Packet] = []
    while driver.working:
        out += driver.work()
    return out
