"""The client's states in secure aggregation, and its reaction to each event.

`phases` maps events to these functions. The host is the program that drives this machine. The record is the
client's journal on disk: the host writes an act to it before the client does the act, and refuses an act that
contradicts an earlier one. Everything that the client draws is derived from a secret that the record keeps
for the attempt. So a restarted client sends the same messages, or none. This machine asks its host to compute
and mask the values, and never sees them unmasked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from securefl.core.acts import Act, Begin, RecordAct, entering
from securefl.core.agreement import digest
from securefl.core.entropy import Random, drawn
from securefl.core.errors import CryptoError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.keys import Commitment, SecretKey, Share
from securefl.core.machine import Need, Outgoing, Step
from securefl.core.release import SERVER, Release, require_releases
from securefl.core.signing import AgreementKey
from securefl.secagg import checks
from securefl.secagg.agreement import Agreement, Channels, ClosedRoster, advertised, alive
from securefl.secagg.dealing import Pair, deal
from securefl.secagg.messages import (
    Advertise,
    Complaint,
    Confirmed,
    Consistent,
    Dealt,
    MaskedInput,
    Quorum,
    RosterClosed,
    Survivors,
    Unmask,
)
from securefl.secagg.packing import Masker
from securefl.secagg.quorum import View
from securefl.secagg.shamir import SECRET_BYTES

Awaited = type[Any] | Act
"""A class of message, a class of order to the host, or the act of a `RecordAct`."""

# States -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Base of all states. `waited` counts the deadlines that passed in this state."""

    waited: int = 0

    @property
    def awaits(self) -> tuple[Awaited, ...]:
        """The one event that moves the client on: a message, or the host's answer. Empty at the end."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Beginning(Waiting):
    """The client has asked the record whether it may enter."""

    @property
    def awaits(self) -> tuple[Awaited, ...]:
        return (Begin,)


@dataclass(frozen=True, kw_only=True)
class Advertised(Waiting):
    """The client has sent its keys.

    `closed` is set while the host records that the client deals under this roster of the server.
    """

    secret: SecretKey
    key: AgreementKey
    entry: Advertise
    closed: ClosedRoster | None = field(default=None, repr=False)

    @property
    def awaits(self) -> tuple[Awaited, ...]:
        return (RosterClosed if self.closed is None else "deal",)


@dataclass(frozen=True, kw_only=True)
class Dealing(Waiting):
    """The client has sent its shares.

    `opened` is set while the host writes to the record which dealers' masks the client will use. It holds the
    other clients' decrypted shares.
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
    """The client holds the shares of its dealers. `sent` says whether it has sent its masked input."""

    closed: ClosedRoster = field(repr=False)
    dealers: tuple[int, ...]
    pairs: Mapping[int, Pair] = field(repr=False)
    sent: bool = False

    @property
    def awaits(self) -> tuple[Awaited, ...]:
        return (Survivors if self.sent else ComputeAndConceal,)


@dataclass(frozen=True, kw_only=True)
class Agreeing(Waiting):
    """The server has shown the survivors.

    `signed` and `answered` say whether the client has signed them and has opened its shares. `confirmed` are
    the neighbours whose tags confirm the same survivors.
    """

    held: Holding
    survivors: tuple[int, ...]
    signed: bool = False
    confirmed: frozenset[int] = frozenset()
    answered: bool = False

    @property
    def awaits(self) -> tuple[Awaited, ...]:
        if self.answered:
            return ()
        return (Quorum, Confirmed) if self.signed else ("sign",)


@dataclass(frozen=True, kw_only=True)
class Finished(Waiting):
    """The client takes no further part in the attempt."""


ClientState = Beginning | Advertised | Dealing | Holding | Agreeing | Finished


# Events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The client's reactions: one function for each event.

    Each function takes the state and a message or the host's answer.

    Args:
        agreement: built from this client's own plan and the server's order, never taken from the server.
        channels: the client's keys and its secrets with the other members, for all rounds of a session.
        random: the source of the sample of a quorum. A server that could predict it would know which
            signatures to forge.
    """

    agreement: Agreement
    channels: Channels
    random: Random = os.urandom

    @property
    def name(self) -> str:
        return self.channels.identity.name

    def begin(self) -> Step[ClientState]:
        """Ask the record whether the client may enter, and for its secret."""
        order = entering(self.name, self.agreement, self.agreement.parameters.signers)
        return Step(Beginning(), need=Need(order))

    def advertise(self, state: Beginning, secret: SecretKey | bool | None) -> Step[ClientState]:
        """The client may enter. Send its keys."""
        if not isinstance(secret, SecretKey):
            return _refused()
        own = self.channels.own
        random = drawn(secret, b"advertise" + self.agreement.context)
        key = AgreementKey(SecretKey(random(SECRET_BYTES)))
        nonce = Commitment(random(SECRET_BYTES))
        text = advertised(self.agreement.context, own, key.public, nonce)
        signature = self.channels.identity.signing.sign(text)
        said = Advertise(key.public, nonce, signature)
        return self._say(Advertised(secret=secret, key=key, entry=said), said)

    def shown_roster(self, state: Advertised, came: RosterClosed) -> Step[ClientState]:
        """The server closed the roster. Check it."""
        closed = checks.read_roster(self.agreement, self.channels.own, state.entry, came)
        # Recorded before a share is sent, so that a restarted client does not deal under another roster.
        need = self._record("deal", digest(b"record", b"", closed.context))
        return Step(replace(state, closed=closed, waited=0), need=need)

    def deal(self, state: Advertised, recorded: bool | None) -> Step[ClientState]:
        """The roster is on record. Send the shares."""
        if not recorded:
            return _refused()
        closed = state.closed
        assert closed is not None
        random = drawn(state.secret, b"deal" + closed.context)
        seed = SecretKey(random(SECRET_BYTES))
        try:
            said, own = deal(closed, self.channels, seed, state.key.secret, random)
        except CryptoError:
            raise checks.refusal(
                checks.SHARE,
                "Expected usable channel keys in the roster, got one that cannot be agreed with.",
            ) from None
        return self._say(Dealing(key=state.key, seed=seed, closed=closed, own=own), said)

    def open(self, state: Dealing, dealt: Dealt) -> Step[ClientState]:
        """The others' shares came. Check them, and accuse the dealer of any wrong share."""
        opened = checks.read_dealt(state.closed, self.channels, dealt)
        if opened.complaints:
            return self._say(Finished(), Complaint(keys=opened.complaints), result="complained")
        text = state.closed.input_of(self.channels.own, opened.dealers)
        return Step(
            replace(state, opened=opened, waited=0),
            need=self._record("mask", digest(b"record", b"", text)),
        )

    def hold(self, state: Dealing, recorded: bool | None) -> Step[ClientState]:
        """The dealers are on record. Order masked releases from the host."""
        if not recorded:
            return _refused()
        opened = state.opened
        assert opened is not None
        pairs = {**opened.pairs, self.channels.own: state.own}
        held = Holding(closed=state.closed, dealers=opened.dealers, pairs=pairs)
        conceal = self._masker(state, [*opened.pairs]).by_name()
        order = ComputeAndConceal(client=self.name, header=self.agreement.header, conceal=conceal)
        return Step(held, need=Need(order))

    def _masker(self, state: Dealing, near: Sequence[int]) -> Masker:
        own = self.channels.own
        try:
            seeds = {other: state.closed.mask_seed(own, state.key, other) for other in near}
        except CryptoError:
            raise checks.refusal(
                checks.MASK, "Expected usable mask keys of neighbours, got one that cannot be agreed with."
            ) from None
        # In a pair, the member with the smaller number adds the mask and the other one subtracts it, so it
        # cancels in their sum. An input can arrive after the pairwise masks of its sender were opened, since
        # the sender counted as dropped. The self-mask protects such an input.
        plus = [seed for other, seed in seeds.items() if own < other]
        minus = [seed for other, seed in seeds.items() if other < own]
        vectors = self.agreement.vectors
        return Masker(vectors, [((*plus, state.seed), minus)] * len(vectors))

    def send(self, state: Holding, releases: tuple[Release, ...] | None) -> Step[ClientState]:
        """The host masked the values. Send the masked input."""
        if releases is None:
            return Step(Finished(), result="abstained")
        require_releases(releases, self.agreement.names, "masked")
        text = state.closed.input_of(self.channels.own, state.dealers)
        said = MaskedInput(releases=releases, signature=self.channels.identity.signing.sign(text))
        return self._say(replace(state, sent=True, waited=0), said)

    def shown(self, state: Holding, came: Survivors) -> Step[ClientState]:
        """The server named the survivors. Check them."""
        survivors = checks.read_survivors(state.closed, self.channels.own, state.dealers, came)
        text = state.closed.survival(state.dealers, survivors)
        shown = Agreeing(held=replace(state, waited=0), survivors=survivors)
        return Step(shown, need=self._record("sign", digest(b"record", b"", text)))

    def shown_again(self, state: Agreeing, came: Survivors) -> Step[ClientState]:
        """The server named survivors again. Refuse a different set."""
        dropped = tuple(dealer for dealer in state.held.dealers if dealer not in state.survivors)
        if (came.survivors, came.dropped) != (state.survivors, dropped):
            raise checks.refusal(
                checks.UNMASK, "Expected one set of survivors, but the server showed other survivors before."
            )
        return Step(state)

    def _shares(self, state: Agreeing) -> tuple[Share, ...]:
        """Return a share for every dealer: of its seed if it survived, of its key if it dropped."""
        # Never both: a client's key and seed together open its input. After a restart, the survivors on
        # record still decide which of the two is opened.
        survived = alive(state.survivors)
        return tuple(
            Share(pair.seed if dealer in survived else pair.key)
            for dealer, pair in sorted(state.held.pairs.items())
        )

    def sign(self, state: Agreeing, recorded: bool | None) -> Step[ClientState]:
        """The survivors are on record. Sign them, or in semi-honest mode open the shares at once."""
        if not recorded:
            return _refused()
        if self.agreement.parameters.mode == "semi-honest":
            return self._unmask(state)
        view = self._view(state)
        said = Consistent(signature=self.channels.identity.signing.sign(view.text), tags=view.tags())
        return self._say(replace(state, signed=True, waited=0), said)

    def confirmed(self, state: Agreeing, came: Confirmed) -> Step[ClientState]:
        """The neighbours' tags came. Without them, their signatures are verified."""
        return Step(replace(state, confirmed=self._view(state).confirmed_by(came.tags)))

    def unmask(self, state: Agreeing, came: Quorum) -> Step[ClientState]:
        """A quorum signed the same survivors. Open the shares."""
        self._view(state).require_quorum(came, state.confirmed, self.random)
        return self._unmask(state)

    def miss(self, state: ClientState) -> Step[ClientState]:
        """Too many deadlines passed. End the attempt for this client."""
        return Step(Finished(), result="missed")

    # Parts of the rounds ----------------------------------------------------------------------------

    def _view(self, state: Agreeing) -> View:
        held = state.held
        return View(
            closed=held.closed, channels=self.channels, dealers=held.dealers, survivors=state.survivors
        )

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
    """End the attempt: the record forbids the act."""
    return Step(Finished(), result="refused")
