"""What a client of secure aggregation knows in each phase, and what it does when an event comes.

`phases` has which event does what. Everything the client draws comes from a secret that its record keeps for
the attempt. So a client that is started again says the same, or nothing. It asks for masked releases and
never sees an integer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from securefl.core.acts import Act, Begin, RecordAct, entering
from securefl.core.agreement import digest
from securefl.core.entropy import drawn
from securefl.core.errors import CryptoError, LocalProtocolError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.keys import Commitment, SecretKey, Share
from securefl.core.machine import Need, Outgoing, Step
from securefl.core.release import SERVER, Release
from securefl.core.signing import AgreementKey
from securefl.secagg import checks
from securefl.secagg.agreement import Agreement, Channels, ClosedRoster, Entry, advertised
from securefl.secagg.dealing import Pair, deal
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
)
from securefl.secagg.packing import Masker
from securefl.secagg.shamir import SECRET_BYTES

Awaited = type[Any] | Act
"""A message, the order of slow or guarded work, or for a `RecordAct` its act."""

# What it knows ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """`waited` counts the deadlines that passed."""

    waited: int = 0

    @property
    def awaits(self) -> tuple[Awaited, ...]:
        """The one event that moves it on: a message, or the host's answer. None at the end."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Beginning(Waiting):
    @property
    def awaits(self) -> tuple[Awaited, ...]:
        return (Begin,)


@dataclass(frozen=True, kw_only=True)
class Advertised(Waiting):
    """Its keys are out.

    `closed` is the roster it was shown, while the host records that it deals under it.
    """

    secret: SecretKey
    key: AgreementKey
    entry: Entry
    closed: ClosedRoster | None = field(default=None, repr=False)

    @property
    def awaits(self) -> tuple[Awaited, ...]:
        return (RosterClosed if self.closed is None else "deal",)


@dataclass(frozen=True, kw_only=True)
class Dealing(Waiting):
    """Its shares are out.

    `opened` are the others' shares, while the host records under whose masks it sends.
    """

    key: AgreementKey
    seed: SecretKey
    closed: ClosedRoster = field(repr=False)
    own: Pair
    opened: checks.Opened | None = field(default=None, repr=False)

    @property
    def awaits(self) -> tuple[Awaited, ...]:
        return (Dealt if self.opened is None else "mask",)


@dataclass(frozen=True, kw_only=True)
class Holding(Waiting):
    """It holds the shares of its dealers. The host masks; with `sent` the input is out, and it waits."""

    closed: ClosedRoster = field(repr=False)
    dealers: tuple[int, ...]
    pairs: Mapping[int, Pair] = field(repr=False)
    sent: bool = False

    @property
    def awaits(self) -> tuple[Awaited, ...]:
        return (Survivors if self.sent else ComputeAndConceal,)


@dataclass(frozen=True, kw_only=True)
class Agreeing(Waiting):
    """It was shown the survivors.

    `signed` and `answered` say whether it signed them and opened its shares.
    """

    held: Holding
    survivors: tuple[int, ...]
    signed: bool = False
    answered: bool = False

    @property
    def awaits(self) -> tuple[Awaited, ...]:
        if self.answered:
            return ()
        return (Quorum if self.signed else "sign",)


@dataclass(frozen=True, kw_only=True)
class Finished(Waiting):
    pass


ClientState = Beginning | Advertised | Dealing | Holding | Agreeing | Finished


# What it does -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What a client does: one function for each event that moves it.

    Each is of the state and of what came, a message or the host's answer.

    Args:
        agreement: from this client's own configuration and the order it was given, not from the server.
        channels: its keys and its secrets with the others, kept over the rounds of a session.
    """

    agreement: Agreement
    channels: Channels

    @property
    def name(self) -> str:
        return self.channels.identity.name

    def begin(self) -> Step[ClientState]:
        """The record says whether it may enter, and keeps its secret."""
        order = entering(self.name, self.agreement, self.agreement.parameters.signers)
        return Step(Beginning(), need=Need(order))

    def advertise(self, state: Beginning, secret: SecretKey | bool | None) -> Step[ClientState]:
        """It may enter: its keys go out."""
        if not isinstance(secret, SecretKey):
            return _refused()
        own = self.channels.own
        random = drawn(secret, b"advertise" + self.agreement.context)
        key = AgreementKey(SecretKey(random(SECRET_BYTES)))
        nonce = Commitment(random(SECRET_BYTES))
        signature = self.channels.identity.signing.sign(advertised(self.agreement, own, key.public, nonce))
        said = Advertise(key=key.public, nonce=nonce, signature=signature)
        return self._say(Advertised(secret=secret, key=key, entry=Entry(key.public, nonce, signature)), said)

    def shown_roster(self, state: Advertised, came: RosterClosed) -> Step[ClientState]:
        """The roster is closed."""
        closed = checks.read_roster(self.agreement, self.channels.own, state.entry, came)
        # On record before any share leaves: after a restart it may not deal under another roster.
        need = self._record("deal", digest(b"record", b"", closed.context))
        return Step(replace(state, closed=closed, waited=0), need=need)

    def deal(self, state: Advertised, recorded: bool | None) -> Step[ClientState]:
        """The roster is on record: its shares go out."""
        if not recorded:
            return _refused()
        closed = state.closed
        assert closed is not None
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

    def open(self, state: Dealing, dealt: Dealt) -> Step[ClientState]:
        """The others' shares came: each is right, or its dealer is accused."""
        opened = checks.read_dealt(state.closed, self.channels, dealt)
        if opened.complaints:
            return self._say(Finished(), Complaint(keys=opened.complaints), result="complained")
        text = state.closed.input_of(self.channels.own, opened.dealers)
        return Step(
            replace(state, opened=opened, waited=0),
            need=self._record("mask", digest(b"record", b"", text)),
        )

    def hold(self, state: Dealing, recorded: bool | None) -> Step[ClientState]:
        """The dealers are on record: the host hides its values under their masks."""
        if not recorded:
            return _refused()
        opened = state.opened
        assert opened is not None
        pairs = {**opened.pairs, self.channels.own: state.own}
        held = Holding(closed=state.closed, dealers=opened.dealers, pairs=pairs)
        masker = self._masker(state, [dealer for dealer in pairs if dealer != self.channels.own])
        conceal = {vector.name: partial(masker, i) for i, vector in enumerate(self.agreement.vectors)}
        order = ComputeAndConceal(client=self.name, header=self.agreement.header, conceal=conceal)
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

    def send(self, state: Holding, releases: tuple[Release, ...] | None) -> Step[ClientState]:
        """Its masked input goes out."""
        if releases is None:
            return Step(Finished(), result="abstained")
        wanted = [(vector.name, "masked") for vector in self.agreement.vectors]
        if [(release.key.name, release.form) for release in releases] != wanted:
            raise LocalProtocolError(f"Expected one masked release for each of {wanted}, got {releases}.")
        text = state.closed.input_of(self.channels.own, state.dealers)
        said = MaskedInput(releases=releases, signature=self.channels.identity.signing.sign(text))
        return self._say(replace(state, sent=True, waited=0), said)

    def shown(self, state: Holding, came: Survivors) -> Step[ClientState]:
        """The survivors are named."""
        survivors = checks.read_survivors(state.closed, self.channels.own, state.dealers, came)
        text = state.closed.survival(state.dealers, survivors)
        shown = Agreeing(held=replace(state, waited=0), survivors=survivors)
        return Step(shown, need=self._record("sign", digest(b"record", b"", text)))

    def shown_again(self, state: Agreeing, came: Survivors) -> Step[ClientState]:
        """The survivors are named a second time."""
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

    def sign(self, state: Agreeing, recorded: bool | None) -> Step[ClientState]:
        """The survivors are on record: it signs them, or in semi-honest mode opens its shares at once."""
        if not recorded:
            return _refused()
        if self.agreement.parameters.mode == "semi-honest":
            return self._unmask(state)
        text = state.held.closed.survival(state.held.dealers, state.survivors)
        signature = self.channels.identity.signing.sign(text)
        return self._say(replace(state, signed=True, waited=0), Consistent(signature=signature))

    def unmask(self, state: Agreeing, came: Quorum) -> Step[ClientState]:
        """A quorum signed the same survivors: it opens its shares."""
        held = state.held
        checks.read_quorum(held.closed, self.channels.own, held.dealers, state.survivors, came)
        return self._unmask(state)

    def miss(self, state: ClientState) -> Step[ClientState]:
        """Its patience is over."""
        return Step(Finished(), result="missed")

    # Parts of the rounds ----------------------------------------------------------------------------

    def _unmask(self, state: Agreeing) -> Step[ClientState]:
        done = replace(state, signed=True, answered=True, waited=0)
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
        return Step(state, out=(Outgoing((SERVER,), message),), result=result)


def _refused() -> Step[ClientState]:
    """The record holds something else."""
    return Step(Finished(), result="refused")
