"""The server of secure aggregation: closes each phase when everybody answered or at its deadline.

A client that is silent in a phase has dropped from there on. Vectors are added as they arrive, and late ones
are discarded. A bad message costs its sender its place. A proof against a dealer ends the attempt with the
dealer's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from securefl.core.errors import CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.keys import SecretKey, Share, Signature
from securefl.core.machine import Envelope, Expects, Need, Step
from securefl.core.release import Delivered
from securefl.core.signing import AgreementKey
from securefl.secagg import complaints
from securefl.secagg.agreement import Agreement, ClosedRoster, Entry
from securefl.secagg.checks import ADVERTISE, CONSISTENCY, MASK, SHARE, UNMASK
from securefl.secagg.dealing import KEY, OPENED_BYTES, SALT_BYTES, SEED, Dealing, Published, mark, published
from securefl.secagg.masks import Words
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
    from_clients,
)
from securefl.secagg.packing import unpack, word
from securefl.secagg.unmasking import Aborted, Summed, Unmasking

_DUE: Final = {Advertise: 0, Shares: 1, Complaint: 2, MaskedInput: 2, Consistent: 3, Unmask: 4}
_PROBE: Final = AgreementKey(SecretKey(bytes(31) + b"\x40"))  # any key tells a weak one of the other side


@dataclass(frozen=True)
class Advertising:
    """Round 0: the members' advertisements. In every phase `waited` counts the deadlines that passed."""

    phase = 0
    entries: Mapping[int, Entry]
    waited: int = 0


@dataclass(frozen=True)
class Sharing:
    """Round 1: the dealings of the closed roster's members."""

    phase = 1
    closed: ClosedRoster = field(repr=False)
    dealt: Mapping[int, Published] = field(repr=False)
    waited: int = 0


@dataclass(frozen=True, kw_only=True)
class Summing:
    """Round 2: the running sums, and the signature of each input in them.

    `gone` are the holders that complained and left. `accused` has, for each dealer, who accused it without
    proof.
    """

    phase = 2
    closed: ClosedRoster = field(repr=False)
    dealt: Mapping[int, Published] = field(repr=False)
    sums: tuple[Words, ...] = field(repr=False)
    inputs: Mapping[int, Signature] = field(repr=False)
    gone: frozenset[int] = frozenset()
    accused: Mapping[int, frozenset[int]] = field(default_factory=dict)
    waited: int = 0

    @property
    def dealers(self) -> tuple[int, ...]:
        return tuple(sorted(self.dealt))

    @property
    def survivors(self) -> tuple[int, ...]:
        return tuple(sorted(self.inputs))


@dataclass(frozen=True)
class Agreeing:
    """Round 3: the signatures on the one set of survivors."""

    phase = 3
    summed: Summing
    signatures: Mapping[int, Signature] = field(repr=False)
    waited: int = 0


@dataclass(frozen=True)
class Opening:
    """Round 4: who answered, and the opened shares of each dealer by holder."""

    phase = 4
    summed: Summing
    asked: tuple[int, ...]
    answered: frozenset[int]
    shares: Mapping[int, Mapping[int, bytes]] = field(repr=False)
    waited: int = 0


@dataclass(frozen=True)
class Working:
    """The host takes the masks off."""

    phase = 5


@dataclass(frozen=True)
class Closing:
    """It is over."""

    phase = 6


ServerState = Advertising | Sharing | Summing | Agreeing | Opening | Working | Closing


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server of one aggregation. Its result is `Summed` or `Aborted`.

    `patience` is how many deadlines a phase lets pass: 0 for an engine that starts its clock with each phase.
    An engine whose clock runs through needs 1, so that no phase is cut short.
    """

    agreement: Agreement
    patience: int = 1

    def begin(self) -> Step[ServerState]:
        """Wait for advertisements. Every client begins by itself."""
        return Step(Advertising({}))

    def expects(self, state: ServerState) -> Expects:
        return Expects(self.agreement.header, from_clients(self.agreement))

    def receive(self, state: ServerState, sender: str, message: Any) -> Step[ServerState]:
        """Take in a client's message.

        A message that came before, or comes late, is ignored. RemoteProtocolError for one that is not due or
        fails a check: it costs its sender the place in the attempt.
        """
        number = self.agreement.roster.numbers.get(sender)
        if number is None:
            raise RemoteProtocolError(
                f"Expected a member of the pinned roster, got {sender}.", sender=sender, phase="server"
            )
        try:
            match state, message:
                case Advertising(), Advertise():
                    return self._advertised(state, number, message)
                case Sharing(), Shares():
                    return self._shared(state, number, message)
                case Summing(), Complaint():
                    return self._complained(state, number, message)
                case Summing(), MaskedInput():
                    return self._masked(state, number, message)
                case Agreeing(), Consistent():
                    return self._signed(state, number, message)
                case Opening(), Unmask():
                    return self._opened(state, number, message)
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=sender, phase=_phase(state)) from None
        if _DUE[type(message)] > state.phase:
            raise RemoteProtocolError(
                f"Expected a message of phase {_phase(state)!r}, got {type(message).__name__}, not due yet.",
                sender=sender,
                phase=_phase(state),
            )
        return Step(state)

    def provide(self, state: ServerState, answer: Summed | Aborted) -> Step[ServerState]:
        """Take in what `Unmasking.run` returned."""
        if not isinstance(state, Working):
            raise LocalProtocolError(
                f"Expected an answer only to a need, got one in {type(state).__name__}. Provide what a step "
                "asked for."
            )
        return Step(Closing(), result=answer)

    def deadline(self, state: ServerState) -> Step[ServerState]:
        """Go on with the clients that answered, or abort with the reason."""
        if isinstance(state, Working | Closing):
            return Step(state)
        if state.waited < self.patience:
            return Step(replace(state, waited=state.waited + 1))
        match state:
            case Advertising():
                return self._close_roster(state)
            case Sharing():
                return self._close_dealing(state)
            case Summing():
                return self._close_sums(state)
            case Agreeing():
                return self._close_signatures(state)
            case Opening():
                return self._close_shares(state)

    # Round 0 ----------------------------------------------------------------------------------------

    def _advertised(self, state: Advertising, number: int, said: Advertise) -> Step[ServerState]:
        if number in state.entries:
            return Step(state)
        entry = Entry(said.key, said.nonce, said.signature)
        entry.check(self.agreement, number)
        # A weak key would fail at every neighbour, after the roster closed; here it costs its sender alone.
        _PROBE.agree(said.key, b"probe")
        state = replace(state, entries={**state.entries, number: entry})
        everybody = len(state.entries) == self.agreement.parameters.clients
        return self._close_roster(state) if everybody else Step(state)

    def _close_roster(self, state: Advertising) -> Step[ServerState]:
        if len(state.entries) < self.agreement.parameters.least_survivors:
            return self._too_few(ADVERTISE, "advertised", len(state.entries))
        closed = ClosedRoster(self.agreement, state.entries)
        entries = [closed.entries[member] for member in closed.members]
        roster = RosterClosed(
            members=closed.members,
            keys=tuple(entry.key for entry in entries),
            nonces=tuple(entry.nonce for entry in entries),
            signatures=tuple(entry.signature for entry in entries),
        )
        return Step(Sharing(closed, {}), out=(self._to(closed.members, roster),))

    # Round 1 ----------------------------------------------------------------------------------------

    def _shared(self, state: Sharing, number: int, said: Shares) -> Step[ServerState]:
        if number in state.dealt:
            return Step(state)
        self._admit(number, state.closed.members, SHARE)
        dealing = Dealing(said.seed, said.marks, said.sealed, said.signature)
        dealt = {**state.dealt, number: published(state.closed, number, dealing)}
        state = replace(state, dealt=dealt)
        return self._close_dealing(state) if len(dealt) == len(state.closed.members) else Step(state)

    def _close_dealing(self, state: Sharing) -> Step[ServerState]:
        dealers = tuple(sorted(state.dealt))
        if len(dealers) < self.agreement.parameters.least_survivors:
            return self._too_few(SHARE, "dealt shares", len(dealers))
        out = tuple(self._to((holder,), self._dealt(state, holder, dealers)) for holder in dealers)
        sums = tuple(np.zeros(vector.length, word(vector.bits)) for vector in self.agreement.vectors)
        return Step(Summing(closed=state.closed, dealt=state.dealt, sums=sums, inputs={}), out=out)

    def _dealt(self, state: Sharing, holder: int, dealers: tuple[int, ...]) -> Dealt:
        near = [state.dealt[m] for m in state.closed.graph.neighbours[holder] if m in state.dealt]
        return Dealt(
            dealers=dealers,
            sealed=tuple(of.boxes[holder] for of in near),
            marks=tuple(of.marks(holder) for of in near),
            evidence=tuple(of.evidence(holder) for of in near),
        )

    def _complained(self, state: Summing, number: int, said: Complaint) -> Step[ServerState]:
        """A proof ends the attempt. Without a proof the holder leaves. More accusers than may lie are a
        proof.

        A single accuser is never a proof, even if `corrupt` is 0: it is one word against another.
        """
        if number in state.gone or number in state.inputs:
            return Step(state)
        self._admit(number, state.dealers, SHARE)
        accused, liars = dict(state.accused), max(self.agreement.parameters.corrupt, 1)
        for dealer, proven in complaints.judge(state.closed, state.dealt, number, said.keys):
            accused[dealer] = accused.get(dealer, frozenset()) | {number}
            # If there are more accusers than liars, one of them is honest.
            if proven or len(accused[dealer]) > liars:
                name = self.agreement.roster.members[dealer].name
                reason = f"{name} dealt shares that do not match what it signed, or cannot be opened."
                return self._abort(SHARE, reason, name)
        state = replace(state, gone=state.gone | {number}, accused=accused)
        return self._close_sums(state) if self._all_in(state) else Step(state)

    # Round 2 ----------------------------------------------------------------------------------------

    def _masked(self, state: Summing, number: int, said: MaskedInput) -> Step[ServerState]:
        if number in state.inputs or number in state.gone:
            return Step(state)
        self._admit(number, state.dealers, MASK)
        vectors: tuple[Any, ...] = said.releases
        pieces = self._unpacked(vectors)
        # The clients ask for this signature in round 3, for a survivor that did not sign. An input whose
        # sender was shown other dealers would stop the whole opening there, so it is left out here.
        text = state.closed.input_of(number, state.dealers)
        self.agreement.check(number, said.signature, text)
        sums = tuple(total + piece for total, piece in zip(state.sums, pieces, strict=True))
        state = replace(state, sums=sums, inputs={**state.inputs, number: said.signature})
        return self._close_sums(state) if self._all_in(state) else Step(state)

    def _unpacked(self, came: tuple[Delivered, ...]) -> list[Words]:
        wanted = [(vector.name, "masked", b"") for vector in self.agreement.vectors]
        if [(one.name, one.form, one.sealed) for one in came] != wanted:
            raise CryptoError(f"Expected one masked release for each of {[name for name, *_ in wanted]}.")
        return [
            unpack(one.numbers, vector.length, vector.bits)  # type: ignore[arg-type]  # checked there
            for one, vector in zip(came, self.agreement.vectors, strict=True)
        ]

    def _all_in(self, state: Summing) -> bool:
        return len(state.inputs) + len(state.gone) == len(state.dealt)

    def _close_sums(self, state: Summing) -> Step[ServerState]:
        survivors = state.survivors
        if len(survivors) < self.agreement.parameters.least_survivors:
            return self._too_few(MASK, "sent a masked input", len(survivors))
        if state.closed.lonely(survivors) is not None:
            return self._abort(MASK, "A survivor has too few surviving neighbours; nobody would unmask it.")
        dropped = tuple(dealer for dealer in state.dealers if dealer not in state.inputs)
        out = (self._to(survivors, Survivors(survivors=survivors, dropped=dropped)),)
        if self.agreement.parameters.mode == "active":
            return Step(Agreeing(state, {}), out=out)
        return Step(self._opening(state, survivors), out=out)

    # Round 3 ----------------------------------------------------------------------------------------

    def _signed(self, state: Agreeing, number: int, said: Consistent) -> Step[ServerState]:
        if number in state.signatures:
            return Step(state)
        summed = state.summed
        self._admit(number, summed.survivors, CONSISTENCY)
        self.agreement.check(number, said.signature, summed.closed.survival(summed.dealers, summed.survivors))
        state = replace(state, signatures={**state.signatures, number: said.signature})
        everybody = len(state.signatures) == len(summed.survivors)
        return self._close_signatures(state) if everybody else Step(state)

    def _close_signatures(self, state: Agreeing) -> Step[ServerState]:
        if len(state.signatures) < self.agreement.parameters.quorum:
            return self._abort(
                CONSISTENCY,
                f"Expected {self.agreement.parameters.quorum} signatures on the survivors, "
                f"got {len(state.signatures)}.",
            )
        signers = tuple(sorted(state.signatures))
        others = tuple(member for member in state.summed.survivors if member not in state.signatures)
        quorum = Quorum(
            signers=signers,
            signatures=tuple(state.signatures[member] for member in signers),
            others=others,
            inputs=tuple(state.summed.inputs[member] for member in others),
        )
        return Step(self._opening(state.summed, signers), out=(self._to(signers, quorum),))

    # Round 4 ----------------------------------------------------------------------------------------

    def _opening(self, state: Summing, asked: tuple[int, ...]) -> Opening:
        return Opening(state, asked, frozenset(), {dealer: {} for dealer in state.dealers})

    def _opened(self, state: Opening, number: int, said: Unmask) -> Step[ServerState]:
        if number in state.answered:
            return Step(state)
        self._admit(number, state.asked, UNMASK)
        summed = state.summed
        held = [dealer for dealer in summed.closed.graph.holders(number) if dealer in summed.dealt]
        if len(said.shares) != len(held):
            raise CryptoError(f"Expected {len(held)} shares, got {len(said.shares)}.")
        shares = dict(state.shares)
        for dealer, share in zip(held, said.shares, strict=True):
            self._check_share(summed, dealer, number, share)
            shares[dealer] = {**shares[dealer], number + 1: share.raw[SALT_BYTES:]}
        state = replace(state, answered=state.answered | {number}, shares=shares)
        return self._close_shares(state) if len(state.answered) == len(state.asked) else Step(state)

    @staticmethod
    def _check_share(state: Summing, dealer: int, holder: int, share: Share) -> None:
        """Raises CryptoError for a share without its dealer's published hash. That is the holder's fault."""
        marks = state.dealt[dealer].marks(holder).raw
        kind, wanted = (SEED, marks[:32]) if dealer in state.inputs else (KEY, marks[32:])
        if len(share.raw) != OPENED_BYTES:
            raise CryptoError(f"Expected {OPENED_BYTES} bytes of salt and share, got {len(share.raw)}.")
        if mark(kind, state.closed.context, dealer, holder, share.raw) != wanted:
            raise CryptoError(f"The share of {dealer} is not the one whose hash its dealer published.")

    def _close_shares(self, state: Opening) -> Step[ServerState]:
        summed, threshold = state.summed, self.agreement.parameters.threshold
        fewest = min(len(shares) for shares in state.shares.values())
        if fewest < threshold:
            return self._abort(UNMASK, f"Expected {threshold} shares of every secret, got {fewest} of one.")
        work = Unmasking(
            closed=summed.closed,
            dealers=summed.dealers,
            survivors=summed.survivors,
            seeds={dealer: of.dealing.seed for dealer, of in summed.dealt.items()},
            shares=state.shares,
            sums=summed.sums,
        )
        return Step(Working(), need=Need(work))

    # All rounds -------------------------------------------------------------------------------------

    def _admit(self, number: int, allowed: tuple[int, ...], phase: str) -> None:
        if number not in allowed:
            name = self.agreement.roster.members[number].name
            raise RemoteProtocolError(
                f"Expected a member that takes part in {phase!r}, got {name}, which dropped out before.",
                sender=name,
                phase=phase,
            )

    def _to(self, members: tuple[int, ...], message: Any) -> Envelope:
        return Envelope(self.agreement.roster.names(members), message)

    def _too_few(self, phase: str, did: str, number: int) -> Step[ServerState]:
        least = self.agreement.parameters.least_survivors
        return self._abort(phase, f"Expected at least {least} clients, got {number} that {did}.")

    @staticmethod
    def _abort(phase: str, reason: str, culprit: str | None = None) -> Step[ServerState]:
        return Step(Closing(), result=Aborted(phase=phase, reason=reason, culprit=culprit))


def _phase(state: ServerState) -> str:
    return (ADVERTISE, SHARE, MASK, CONSISTENCY, UNMASK, "unmasking", "closed")[state.phase]
