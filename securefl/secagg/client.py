"""A client of secure aggregation.

It begins once per place, advertises, deals shares, sends its masked input, signs the survivors (in
active mode) and answers one request to unmask, once. Training, quantising, noise and the ledger are the
host's: the client asks for masked releases and never sees an integer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.errors import ConfigError, CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.keys import Commitment, SecretKey, Share
from securefl.machine import Envelope, Expects, Need, Step
from securefl.release import SERVER, Release
from securefl.secagg import checks
from securefl.secagg.agreement import Agreement, Channels, Closed, Entry, Vector, advertised, digest
from securefl.secagg.dealing import Pair, deal
from securefl.secagg.masks import apply
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
from securefl.secagg.packing import pack, reduce, words
from securefl.secagg.shamir import SECRET_BYTES, Random
from securefl.signing import AgreementKey
from securefl.wire import Header

Act = Literal["begin", "sign", "unmask"]
_ORDER: Final = (RosterClosed, Dealt, Survivors, Quorum)


@dataclass(frozen=True, kw_only=True)
class Durable:
    """Guarded work: put on record, durably, that `client` is about to do this here.

    The host answers True if it has just written the record, and False if one stood there already for the
    same client, header and act, whatever its digest: then the act is not done a second time.
    """

    client: str
    header: Header
    act: Act
    digest: bytes


@dataclass(frozen=True, kw_only=True, repr=False)
class Masked:
    """Slow work: compute, charge and mask one release per vector; None abstains.

    `mask(i, integers)` gives the packed bytes (uint8) of vector i from a flat vector of integers, for the
    `_numbers` of a release of form "masked" and of the vector's name. It works once per vector: two
    values under one mask would tell their difference.
    """

    client: str
    header: Header
    vectors: tuple[Vector, ...]
    mask: Callable[[int, NDArray[Any]], NDArray[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """`due` is the place in the order of the server's messages; `waited` counts deadlines that passed."""

    due: int = 0
    waited: int = 0


@dataclass(frozen=True, kw_only=True)
class Beginning(Waiting):
    pass


@dataclass(frozen=True, kw_only=True)
class Advertised(Waiting):
    key: AgreementKey
    entry: Entry


@dataclass(frozen=True, kw_only=True)
class Dealing(Waiting):
    """Its shares are out; it waits for those of the others."""

    due: int = 1
    key: AgreementKey
    seed: SecretKey
    closed: Closed = field(repr=False)
    own: Pair


@dataclass(frozen=True, kw_only=True)
class Holding(Waiting):
    """It holds the shares of its dealers. The host masks, or the input is out and the server's turn comes."""

    due: int = 2
    closed: Closed = field(repr=False)
    dealers: tuple[int, ...]
    pairs: Mapping[int, Pair] = field(repr=False)
    sent: bool = False


@dataclass(frozen=True, kw_only=True)
class Agreeing(Waiting):
    """It was shown the survivors. The host records an act; `signed` and `answered` are what was done."""

    due: int = 3
    held: Holding
    survivors: tuple[int, ...]
    act: Act
    signed: bool = False
    answered: bool = False


@dataclass(frozen=True, kw_only=True)
class Finished(Waiting):
    due: int = len(_ORDER)


ClientState = Beginning | Advertised | Dealing | Holding | Agreeing | Finished


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client of one aggregation.

    Args:
        agreement: from this client's own configuration, not from the server.
        channels: its keys and its secrets with the others, kept over the rounds of a session.
        least_threshold, least_survivors: below its own minimum it does not begin (ConfigError).
        patience: deadlines that may pass in one state before it counts itself out.
        random: uniform bytes; anything but the default is for tests and vectors.

    Results: "answered", "abstained", "missed", "complained" (a dealer was bad), "refused" (on record).
    """

    agreement: Agreement
    channels: Channels
    least_threshold: int = 2
    least_survivors: int = 2
    patience: int = 16
    random: Random = os.urandom

    def __post_init__(self) -> None:
        parameters, header = self.agreement.parameters, self.agreement.header
        if parameters.threshold < self.least_threshold or parameters.least_survivors < self.least_survivors:
            raise ConfigError(
                f"Expected a threshold of at least {self.least_threshold} and at least "
                f"{self.least_survivors} survivors, got {parameters.threshold} and "
                f"{parameters.least_survivors}: these parameters protect less than this client asks for."
            )
        if self.channels.session != header.session or self.channels.roster != self.agreement.roster:
            raise ConfigError("Expected channels of this session and this roster.")

    @property
    def name(self) -> str:
        return self.channels.identity.name

    def begin(self) -> Step[ClientState]:
        return Step(Beginning(), need=self._record("begin", self.agreement.context))

    def expects(self, state: ClientState) -> Expects:
        return Expects(self.agreement.header, from_server(self.agreement))

    def receive(self, state: ClientState, sender: str, message: Any) -> Step[ClientState]:
        """Harmless: what came before. Refused: what is not due, not signed, or not what was shown."""
        if sender != SERVER:
            raise RemoteProtocolError("Only the server speaks to clients.", sender=sender, phase="client")
        match state, message:
            case Advertised(), RosterClosed():
                return self._deal(state, message)
            case Dealing(), Dealt():
                return self._open(state, message)
            case Holding(sent=True), Survivors():
                return self._shown(state, message)
            case Agreeing(), Survivors():
                return self._shown_again(state, message)
            case Agreeing(signed=True, act="sign"), Quorum():
                checks.read_quorum(
                    state.held.closed, self.channels.own, state.held.dealers, state.survivors, message
                )
                return self._ask(replace(state, due=len(_ORDER)), "unmask")
        if _ORDER.index(type(message)) >= state.due:
            raise checks.refusal("client", f"A {type(message).__name__} is not due yet.")
        return Step(state)

    def provide(self, state: ClientState, answer: Any) -> Step[ClientState]:
        """The host's answer to the last need; it comes to nothing once the client is out."""
        match state:
            case Finished():
                return Step(state)
            case Holding(sent=False):
                return self._send(state, answer)
            case Beginning() | Agreeing() if answer is not True:
                return Step(Finished(), result="refused")
            case Beginning():
                return self._advertise()
            case Agreeing(act="sign", signed=False):
                text = state.held.closed.survival(state.held.dealers, state.survivors)
                signature = self.channels.identity.signing.sign(text)
                return self._say(replace(state, signed=True, waited=0), Consistent(signature=signature))
            case Agreeing(act="unmask", answered=False):
                done = replace(state, answered=True, waited=0)
                return self._say(done, Unmask(shares=self._shares(state)), result="answered")
        raise LocalProtocolError(f"Nothing was asked of the host in {type(state).__name__}.")

    def deadline(self, state: ClientState) -> Step[ClientState]:
        """A phase of somebody's is over; only after `patience` of them does this client give up."""
        if isinstance(state, Finished) or (isinstance(state, Agreeing) and state.answered):
            return Step(state)
        if state.waited < self.patience:
            return Step(replace(state, waited=state.waited + 1))
        return Step(Finished(), result="missed")

    # The rounds -------------------------------------------------------------------------------------

    def _advertise(self) -> Step[ClientState]:
        own = self.channels.own
        key = AgreementKey(SecretKey(self.random(SECRET_BYTES)))
        nonce = Commitment(self.random(SECRET_BYTES))
        signature = self.channels.identity.signing.sign(advertised(self.agreement, own, key.public, nonce))
        said = Advertise(key=key.public, nonce=nonce, signature=signature)
        return self._say(Advertised(key=key, entry=Entry(key.public, nonce, signature)), said)

    def _deal(self, state: Advertised, roster: RosterClosed) -> Step[ClientState]:
        closed = checks.read_roster(self.agreement, self.channels.own, state.entry, roster)
        seed = SecretKey(self.random(SECRET_BYTES))
        try:
            dealing, own = deal(closed, self.channels, seed, state.key.secret, self.random)
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
        pairs = {**opened.pairs, self.channels.own: state.own}
        held = Holding(closed=state.closed, dealers=opened.dealers, pairs=pairs)
        masker = self._masker(state, [dealer for dealer in pairs if dealer != self.channels.own])
        order = Masked(
            client=self.name, header=self.agreement.header, vectors=self.agreement.vectors, mask=masker
        )
        return Step(held, need=Need(order))

    def _masker(self, state: Dealing, near: Sequence[int]) -> _Masker:
        own = self.channels.own
        try:
            seeds = {other: state.closed.mask_seed(own, state.key, other) for other in near}
        except CryptoError:
            raise checks.refusal(checks.MASK, "A mask key cannot be agreed with.") from None
        plus = [seed for other, seed in seeds.items() if own < other]
        minus = [seed for other, seed in seeds.items() if other < own]
        return _Masker(self.agreement.vectors, (*plus, state.seed), tuple(minus))

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
        act: Act = "sign" if self.agreement.parameters.mode == "active" else "unmask"
        return self._ask(Agreeing(held=state, survivors=survivors, act=act), act)

    def _shown_again(self, state: Agreeing, came: Survivors) -> Step[ClientState]:
        dropped = tuple(dealer for dealer in state.held.dealers if dealer not in state.survivors)
        if (came.survivors, came.dropped) != (state.survivors, dropped):
            raise checks.refusal(checks.UNMASK, "We were shown other survivors before; one set is opened.")
        return Step(state)

    def _shares(self, state: Agreeing) -> tuple[Share, ...]:
        """For every dealer whose shares are held: of its seed if it survived, of its key if it dropped."""
        alive = set(state.survivors)
        return tuple(
            Share(pair.seed if dealer in alive else pair.key)
            for dealer, pair in sorted(state.held.pairs.items())
        )

    def _ask(self, state: Agreeing, act: Act) -> Step[ClientState]:
        text = state.held.closed.survival(state.held.dealers, state.survivors)
        return Step(replace(state, act=act, waited=0), need=self._record(act, digest(b"record", b"", text)))

    def _record(self, act: Act, what: bytes) -> Need:
        return Need(Durable(client=self.name, header=self.agreement.header, act=act, digest=what))

    @staticmethod
    def _say(state: ClientState, message: Any, result: str | None = None) -> Step[ClientState]:
        return Step(state, out=(Envelope((SERVER,), message),), result=result)


class _Masker:
    """Masks each vector once."""

    def __init__(
        self, vectors: tuple[Vector, ...], add: tuple[SecretKey, ...], subtract: tuple[SecretKey, ...]
    ) -> None:
        self._vectors = vectors
        self._add = add
        self._subtract = subtract
        self._left = set(range(len(vectors)))

    def __call__(self, number: int, integers: NDArray[Any]) -> NDArray[np.uint8]:
        if number not in self._left:
            raise LocalProtocolError(f"Vector {number} is masked already, or unknown: a mask serves once.")
        vector = self._vectors[number]
        if integers.shape != (vector.length,):
            raise LocalProtocolError(f"Expected {vector.length} integers, got the shape {integers.shape}.")
        if int(integers.max()) > vector.bound or int(integers.min()) < -vector.bound:
            raise LocalProtocolError(f"Expected magnitudes up to {vector.bound} in {vector.name!r}.")
        fresh = words(integers, vector.bits)
        self._left.remove(number)
        apply(fresh, number, add=self._add, subtract=self._subtract)
        reduce(fresh, vector.bits)
        return pack(fresh, vector.bits)
