"""A client of secure aggregation.

It begins an attempt, advertises, deals shares, sends its masked input, signs the survivors (in active mode)
and answers one request to unmask. Everything it draws comes from a secret that its record keeps for the
attempt. So a client that is started again says the same, or nothing. The host trains, quantises, adds noise
and keeps the ledger. The client asks for masked releases and never sees an integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from securefl.core.acts import Act, RecordAct, entering
from securefl.core.agreement import digest
from securefl.core.entropy import drawn
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.hiding import Hide
from securefl.core.keys import Commitment, SecretKey, Share
from securefl.core.machine import Envelope, Expects, Need, Step
from securefl.core.release import SERVER, Release
from securefl.core.signing import AgreementKey
from securefl.secagg import checks
from securefl.secagg.agreement import Agreement, Channels, ClosedRoster, Entry, advertised
from securefl.secagg.client_states import (
    ORDER,
    Advertised,
    Agreeing,
    Beginning,
    ClientState,
    Dealing,
    Finished,
    Holding,
)
from securefl.secagg.dealing import deal
from securefl.secagg.messages import (
    Advertise,
    Complaint,
    Consistent,
    Dealt,
    MaskedInput,
    Quorum,
    RosterClosed,
    Shares,
    Survivors,
    Unmask,
    from_server,
)
from securefl.secagg.packing import Masker
from securefl.secagg.parameters import Policy
from securefl.secagg.shamir import SECRET_BYTES


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client of one aggregation.

    Args:
        agreement: from this client's own configuration and the order it was given, not from the server.
        channels: its keys and its secrets with the others, kept over the rounds of a session.
        policy: what it insists on. With weaker parameters it does not begin (ConfigError).
        patience: deadlines that may pass in one state before it gives up.

    Results: "answered", "abstained", "missed", "complained" (a dealer was bad), "refused" (on record).
    """

    agreement: Agreement
    channels: Channels
    policy: Policy
    patience: int = 16

    def __post_init__(self) -> None:
        header = self.agreement.header
        self.policy.check(self.agreement.parameters)
        if self.channels.session != header.session or self.channels.roster != self.agreement.roster:
            raise ConfigError("Expected channels of this session and this roster.")

    @property
    def name(self) -> str:
        return self.channels.identity.name

    def begin(self) -> Step[ClientState]:
        order = entering(self.name, self.agreement, self.agreement.parameters.signers)
        return Step(Beginning(), need=Need(order))

    def expects(self, state: ClientState) -> Expects:
        return Expects(self.agreement.header, from_server(self.agreement))

    def receive(self, state: ClientState, sender: str, message: Any) -> Step[ClientState]:
        """Take in a message of the server.

        A message that came before is ignored. RemoteProtocolError for one that is not due, not signed, or
        contradicts what was shown before.
        """
        if sender != SERVER:
            raise RemoteProtocolError(
                f"Expected messages from the server, got one from {sender}.", sender=sender, phase="client"
            )
        match state, message:
            case Advertised(closed=None), RosterClosed():
                closed = checks.read_roster(self.agreement, self.channels.own, state.entry, message)
                # On record before any share leaves: after a restart it may not deal under another roster.
                return Step(
                    replace(state, closed=closed, waited=0, due=1),
                    need=self._record("deal", digest(b"record", b"", closed.context)),
                )
            case Dealing(opened=None), Dealt():
                return self._open(state, message)
            case Holding(sent=True), Survivors():
                return self._shown(state, message)
            case Agreeing(), Survivors():
                return self._shown_again(state, message)
            case Agreeing(signed=True, answered=False), Quorum():
                checks.read_quorum(
                    state.held.closed, self.channels.own, state.held.dealers, state.survivors, message
                )
                return self._unmask(state)
        if ORDER.index(type(message)) >= state.due:
            raise checks.refusal(
                "client", f"Expected {ORDER[state.due].__name__}, got {type(message).__name__}, not due yet."
            )
        return Step(state)

    def provide(self, state: ClientState, answer: Any) -> Step[ClientState]:
        """Take in the host's answer to the last need. It is ignored once the client is out."""
        match state:
            case Finished():
                return Step(state)
            case Holding(sent=False):
                return self._send(state, answer)
            case Beginning() | Advertised() | Dealing() | Agreeing() if answer is None or answer is False:
                return Step(Finished(), result="refused")
            case Beginning():
                return self._advertise(answer)
            case Advertised(closed=ClosedRoster() as closed):
                return self._deal(state, closed)
            case Dealing(opened=checks.Opened() as opened):
                return self._hold(state, opened)
            case Agreeing(signed=False) if self.agreement.parameters.mode == "semi-honest":
                return self._unmask(state)
            case Agreeing(signed=False):
                text = state.held.closed.survival(state.held.dealers, state.survivors)
                signature = self.channels.identity.signing.sign(text)
                return self._say(replace(state, signed=True, waited=0), Consistent(signature=signature))
        raise LocalProtocolError(
            f"Expected an answer only to a need, got one in {type(state).__name__}. Provide what a step "
            "asked for."
        )

    def deadline(self, state: ClientState) -> Step[ClientState]:
        """A deadline passed. The client gives up once more than `patience` passed in one state."""
        # An answered client cannot miss anything more, and `answered` is its result already.
        if isinstance(state, Finished) or (isinstance(state, Agreeing) and state.answered):
            return Step(state)
        if state.waited < self.patience:
            return Step(replace(state, waited=state.waited + 1))
        return Step(Finished(), result="missed")

    # The rounds -------------------------------------------------------------------------------------

    def _advertise(self, secret: SecretKey) -> Step[ClientState]:
        own = self.channels.own
        random = drawn(secret, b"advertise" + self.agreement.context)
        key = AgreementKey(SecretKey(random(SECRET_BYTES)))
        nonce = Commitment(random(SECRET_BYTES))
        signature = self.channels.identity.signing.sign(advertised(self.agreement, own, key.public, nonce))
        said = Advertise(key=key.public, nonce=nonce, signature=signature)
        return self._say(Advertised(secret=secret, key=key, entry=Entry(key.public, nonce, signature)), said)

    def _deal(self, state: Advertised, closed: ClosedRoster) -> Step[ClientState]:
        random = drawn(state.secret, b"deal" + closed.context)
        seed = SecretKey(random(SECRET_BYTES))
        try:
            dealing, own = deal(closed, self.channels, seed, state.key.secret, random)
        except CryptoError:
            raise checks.refusal(checks.SHARE, "A pinned channel key cannot be agreed with.") from None
        said = Shares(
            seed=dealing.seed, marks=dealing.marks, sealed=dealing.sealed, signature=dealing.signature
        )
        return self._say(Dealing(key=state.key, seed=seed, closed=closed, own=own), said)

    def _open(self, state: Dealing, dealt: Dealt) -> Step[ClientState]:
        opened = checks.read_dealt(state.closed, self.channels, dealt)
        if opened.complaints:
            return self._say(Finished(), Complaint(keys=opened.complaints), result="complained")
        text = state.closed.input_of(self.channels.own, opened.dealers)
        return Step(
            replace(state, opened=opened, waited=0, due=2),
            need=self._record("mask", digest(b"record", b"", text)),
        )

    def _hold(self, state: Dealing, opened: checks.Opened) -> Step[ClientState]:
        pairs = {**opened.pairs, self.channels.own: state.own}
        held = Holding(closed=state.closed, dealers=opened.dealers, pairs=pairs)
        masker = self._masker(state, [dealer for dealer in pairs if dealer != self.channels.own])
        conceal = {vector.name: partial(masker, i) for i, vector in enumerate(self.agreement.vectors)}
        order = Hide(client=self.name, header=self.agreement.header, conceal=conceal)
        return Step(held, need=Need(order))

    def _masker(self, state: Dealing, near: Sequence[int]) -> Masker:
        own = self.channels.own
        try:
            seeds = {other: state.closed.mask_seed(own, state.key, other) for other in near}
        except CryptoError:
            raise checks.refusal(checks.MASK, "A mask key cannot be agreed with.") from None
        # Of a pair the member with the smaller number adds the mask and the other one subtracts it, so that
        # it falls out of their sum. The self-mask covers an input that arrives after its sender was called
        # dropped.
        plus = [seed for other, seed in seeds.items() if own < other]
        minus = [seed for other, seed in seeds.items() if other < own]
        return Masker(self.agreement.vectors, (*plus, state.seed), tuple(minus))

    def _send(self, state: Holding, releases: tuple[Release, ...] | None) -> Step[ClientState]:
        if releases is None:
            return Step(Finished(), result="abstained")
        wanted = [(vector.name, "masked") for vector in self.agreement.vectors]
        if [(release.key.name, release.form) for release in releases] != wanted:
            raise LocalProtocolError(f"Expected one masked release for each of {wanted}, got {releases}.")
        text = state.closed.input_of(self.channels.own, state.dealers)
        said = MaskedInput(releases=releases, signature=self.channels.identity.signing.sign(text))
        return self._say(replace(state, sent=True, waited=0), said)

    def _shown(self, state: Holding, came: Survivors) -> Step[ClientState]:
        survivors = checks.read_survivors(state.closed, self.channels.own, state.dealers, came)
        text = state.closed.survival(state.dealers, survivors)
        shown = Agreeing(held=replace(state, waited=0), survivors=survivors)
        return Step(shown, need=self._record("sign", digest(b"record", b"", text)))

    def _shown_again(self, state: Agreeing, came: Survivors) -> Step[ClientState]:
        dropped = tuple(dealer for dealer in state.held.dealers if dealer not in state.survivors)
        if (came.survivors, came.dropped) != (state.survivors, dropped):
            raise checks.refusal(checks.UNMASK, "We were shown other survivors before; one set is opened.")
        return Step(state)

    def _shares(self, state: Agreeing) -> tuple[Share, ...]:
        """For every dealer whose shares are held: of its seed if it survived, of its key if it dropped."""
        # Never both: a survivor's key and seed together open its input. The record of the survivors, made
        # before this, holds that over restarts.
        alive = set(state.survivors)
        return tuple(
            Share(pair.seed if dealer in alive else pair.key)
            for dealer, pair in sorted(state.held.pairs.items())
        )

    def _unmask(self, state: Agreeing) -> Step[ClientState]:
        done = replace(state, signed=True, answered=True, waited=0, due=len(ORDER))
        return self._say(done, Unmask(shares=self._shares(state)), result="answered")

    def _record(self, act: Act, what: bytes) -> Need:
        return Need(
            RecordAct(
                client=self.name,
                header=self.agreement.header,
                questions=self.agreement.questions,
                act=act,
                digest=what,
            )
        )

    @staticmethod
    def _say(state: ClientState, message: Any, result: str | None = None) -> Step[ClientState]:
        return Step(state, out=(Envelope((SERVER,), message),), result=result)
