"""The server's states in secure aggregation, and its reaction to each event.

`phases` maps events to these functions. Each round has one function for its message and one for its end. A
function takes the agreement, the state and the message, and returns the next state. The host is the program
that drives this machine: it delivers messages, does slow work and reports deadlines. A client is a *dealer*
of shares of its own secrets, and a *holder* of its neighbours' shares.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np

from securefl.core.append_map import AppendMap
from securefl.core.errors import CryptoError
from securefl.core.keys import Commitment, Share, Signature
from securefl.core.machine import Need, Outgoing, Step
from securefl.core.release import delivered
from securefl.core.signing import cannot_agree
from securefl.secagg.agreement import TAG_BYTES, Agreement, ClosedRoster, alive
from securefl.secagg.checks import ADVERTISE, CONSISTENCY, MASK, SHARE, UNMASK
from securefl.secagg.dealing import (
    KEY,
    OPENED_BYTES,
    SALT_BYTES,
    SEED,
    Published,
    judge,
    mark,
    published,
)
from securefl.secagg.masks import Words
from securefl.secagg.messages import (
    Advertise,
    Complaint,
    Confirmed,
    Consistent,
    Dealt,
    MaskedInput,
    Quorum,
    RosterClosed,
    Shares,
    Survivors,
    Unmask,
)
from securefl.secagg.packing import unpack, word
from securefl.secagg.unmasking import Aborted, Summed, Unmasking

_NO_TAG: Final = Signature(b"")

# States -----------------------------------------------------------------------------------------


class Phase:
    """Base of all states: the phase's name, and the messages or the work that it awaits."""

    phase: ClassVar[str]
    awaits: ClassVar[tuple[type[Any], ...]] = ()


@dataclass(frozen=True)
class Advertising(Phase):
    """Round 0: the members' advertisements.

    In every phase, `awaits` names the messages, or the answer of the host, that move the server on. `waited`
    counts the deadlines that passed. If a member was `heard`, a second message of it is ignored.
    """

    phase = ADVERTISE
    awaits = (Advertise,)
    entries: AppendMap[int, Advertise]
    waited: int = 0

    def heard(self, number: int) -> bool:
        return number in self.entries


@dataclass(frozen=True)
class Sharing(Phase):
    """Round 1: the dealings of the closed roster's members."""

    phase = SHARE
    awaits = (Shares,)
    closed: ClosedRoster = field(repr=False)
    dealt: AppendMap[int, Published] = field(repr=False)
    waited: int = 0

    def heard(self, number: int) -> bool:
        return number in self.dealt


@dataclass(frozen=True, kw_only=True)
class Summing(Phase):
    """Round 2: the running sums, and the signature of each input in them.

    `marks` has, for each holder, the hashes of the shares that it holds, in the order of their dealers.
    `gone` are the holders that complained and left. `accused` has, for each dealer, the holders that accused
    it without proof.
    """

    phase = MASK
    awaits = (MaskedInput, Complaint)
    closed: ClosedRoster = field(repr=False)
    dealt: Mapping[int, Published] = field(repr=False)
    sums: tuple[Words, ...] = field(repr=False)
    inputs: AppendMap[int, Signature] = field(repr=False)
    marks: Mapping[int, tuple[Commitment, ...]] = field(default_factory=dict, repr=False)
    gone: frozenset[int] = frozenset()
    accused: Mapping[int, frozenset[int]] = field(default_factory=dict)
    waited: int = 0

    @cached_property
    def dealers(self) -> tuple[int, ...]:
        return tuple(sorted(self.dealt))

    @cached_property
    def survivors(self) -> tuple[int, ...]:
        return tuple(sorted(self.inputs))

    @cached_property
    def survival(self) -> bytes:
        """The text that every survivor signs."""
        return self.closed.survival(self.dealers, self.survivors)

    def heard(self, number: int) -> bool:
        return number in self.inputs or number in self.gone


@dataclass(frozen=True)
class Agreeing(Phase):
    """Round 3: the signatures on the one set of survivors, and each signer's tags for its neighbours."""

    phase = CONSISTENCY
    awaits = (Consistent,)
    summed: Summing
    signatures: AppendMap[int, Signature] = field(repr=False)
    tags: AppendMap[int, tuple[Signature, ...]] = field(repr=False)
    waited: int = 0

    def heard(self, number: int) -> bool:
        return number in self.signatures


@dataclass(frozen=True)
class Opening(Phase):
    """Round 4: the clients that answered, and the shares that each of them opened, by dealer."""

    phase = UNMASK
    awaits = (Unmask,)
    summed: Summing
    asked: tuple[int, ...]
    answers: AppendMap[int, Mapping[int, bytes]] = field(repr=False)
    waited: int = 0

    def heard(self, number: int) -> bool:
        return number in self.answers

    def shares(self) -> dict[int, dict[int, bytes]]:
        """Return, for each dealer, the opened shares by their Shamir points."""
        found: dict[int, dict[int, bytes]] = {dealer: {} for dealer in self.summed.dealers}
        for holder, opened in self.answers.items():
            for dealer, share in opened.items():
                # Shamir's points count from 1: the value at 0 is the secret.
                found[dealer][holder + 1] = share
        return found


@dataclass(frozen=True)
class Working(Phase):
    """The host removes the masks."""

    phase = "unmasking"
    awaits = (Unmasking,)


@dataclass(frozen=True)
class Closing(Phase):
    """The attempt is over."""

    phase = "closed"


ServerState = Advertising | Sharing | Summing | Agreeing | Opening | Working | Closing


# Round 0 ----------------------------------------------------------------------------------------


def begin(agreement: Agreement) -> Step[ServerState]:
    """Wait for advertisements. Every client begins by itself."""
    return Step(Advertising(AppendMap()))


def advertised(agreement: Agreement, state: Advertising, number: int, said: Advertise) -> Step[ServerState]:
    """A client's key and nonce came. The roster closes when all clients have advertised."""
    said.check(agreement, number)
    # Checked here, so that a weak key excludes only its sender. Later it would stop each of its neighbours.
    if cannot_agree(said.key):
        raise CryptoError("The other key cannot be agreed with.")
    state = replace(state, entries=state.entries.having(number, said))
    everybody = len(state.entries) == agreement.parameters.clients
    return close_roster(agreement, state) if everybody else Step(state)


def close_roster(agreement: Agreement, state: Advertising) -> Step[ServerState]:
    """Send the closed roster to its members, unless there are too few."""
    if len(state.entries) < agreement.parameters.least_survivors:
        return _too_few(agreement, ADVERTISE, "advertised", len(state.entries))
    closed = ClosedRoster(agreement, state.entries)
    if closed.lonely(closed.members) is not None:
        return _abort(ADVERTISE, "Expected enough neighbours for each member, got a graph with few of one.")
    entries = [closed.entries[member] for member in closed.members]
    roster = RosterClosed(
        members=closed.members,
        keys=tuple(entry.key for entry in entries),
        nonces=tuple(entry.nonce for entry in entries),
        signatures=tuple(entry.signature for entry in entries),
    )
    return Step(Sharing(closed, AppendMap()), out=(_to(agreement, closed.members, roster),))


# Round 1 ----------------------------------------------------------------------------------------


def shared(agreement: Agreement, state: Sharing, number: int, said: Shares) -> Step[ServerState]:
    """A client's shares came. Dealing is over when all members of the roster have dealt."""
    _admit(number, state.closed.entries)
    dealt = state.dealt.having(number, published(state.closed, number, said))
    state = replace(state, dealt=dealt)
    return close_dealing(agreement, state) if len(dealt) == len(state.closed.members) else Step(state)


def close_dealing(agreement: Agreement, state: Sharing) -> Step[ServerState]:
    """Send each dealer the shares that the others sealed for it, unless too few members dealt."""
    dealers = tuple(sorted(state.dealt))
    if len(dealers) < agreement.parameters.least_survivors:
        return _too_few(agreement, SHARE, "dealt shares", len(dealers))
    # No more dealings come. A plain dictionary is quicker to read, for each share and each input to come.
    dealt = {dealer: state.dealt[dealer] for dealer in dealers}
    marks, told = _by_holder(dealers, dealt)
    out = tuple(_to(agreement, (holder,), told[holder]) for holder in dealers)
    sums = tuple(np.zeros(vector.length, word(vector.bits)) for vector in agreement.vectors)
    summing = Summing(closed=state.closed, dealt=dealt, marks=marks, sums=sums, inputs=AppendMap())
    return Step(summing, out=out)


def _by_holder(
    dealers: tuple[int, ...], dealt: Mapping[int, Published]
) -> tuple[dict[int, tuple[Commitment, ...]], dict[int, Dealt]]:
    """Return each holder's hashes, its own among them, and what it is sent, both in the order of dealers."""
    # Dealer by dealer, although holder by holder would read more simply: one dealing lies together in memory,
    # and those of a large cohort do not fit into a processor's cache.
    marks: dict[int, list[Commitment]] = {holder: [] for holder in dealers}
    told: dict[int, list[tuple[Share, Commitment, bytes]]] = {holder: [] for holder in dealers}
    for dealer in dealers:
        for holder, hashes, box, evidence in dealt[dealer].rows():
            if holder in marks:
                marks[holder].append(hashes)
                if box is not None:
                    told[holder].append((box, hashes, evidence))
    return (
        {holder: tuple(own) for holder, own in marks.items()},
        {
            holder: Dealt(dealers, *(zip(*rows, strict=True) if rows else ((), (), ())))
            for holder, rows in told.items()
        },
    )


def complained(agreement: Agreement, state: Summing, number: int, said: Complaint) -> Step[ServerState]:
    """A holder complained. A proof against a dealer ends the attempt. Without a proof the holder leaves.

    Accusations by more holders than may be corrupt are a proof. The accusation of a single holder never is
    one, even if `corrupt` is 0: either the accuser or the dealer may lie.
    """
    _admit(number, state.dealt)
    accused, liars = dict(state.accused), max(agreement.parameters.corrupt, 1)
    for dealer, proven in judge(state.closed, state.dealt, number, said.keys):
        accused[dealer] = accused.get(dealer, frozenset()) | {number}
        # At most `liars` clients lie, so one of more accusers is honest.
        if proven or len(accused[dealer]) > liars:
            name = agreement.roster.members[dealer].name
            reason = (
                f"Expected shares of {name} as it signed them, got shares that do not open or do not match."
            )
            return _abort(SHARE, reason, name)
    state = replace(state, gone=state.gone | {number}, accused=accused)
    return close_sums(agreement, state) if _all_in(state) else Step(state)


# Round 2 ----------------------------------------------------------------------------------------


def masked(agreement: Agreement, state: Summing, number: int, said: MaskedInput) -> Step[ServerState]:
    """A masked input came. Add it to the sums at once. The sums close with the last input."""
    _admit(number, state.dealt)
    pieces = _unpacked(agreement, said.releases)
    # In round 3, clients require this signature of each survivor that does not sign. A sender that was shown
    # other dealers has signed another text: its input would stop the opening there, so it is refused here.
    text = state.closed.input_of(number, state.dealers)
    agreement.check(number, said.signature, text)
    sums = tuple(total + piece for total, piece in zip(state.sums, pieces, strict=True))
    state = replace(state, sums=sums, inputs=state.inputs.having(number, said.signature))
    return close_sums(agreement, state) if _all_in(state) else Step(state)


def _unpacked(agreement: Agreement, came: tuple[Any, ...]) -> list[Words]:
    return [
        unpack(one.numbers, vector.length, vector.bits)  # type: ignore[arg-type]  # checked there
        for one, vector in zip(delivered(came, agreement.names, "masked"), agreement.vectors, strict=True)
    ]


def _all_in(state: Summing) -> bool:
    return len(state.inputs) + len(state.gone) == len(state.dealt)


def close_sums(agreement: Agreement, state: Summing) -> Step[ServerState]:
    """Send each survivor the list of survivors, if their masks can be removed."""
    survivors = state.survivors
    if len(survivors) < agreement.parameters.least_survivors:
        return _too_few(agreement, MASK, "sent a masked input", len(survivors))
    if state.closed.lonely(survivors) is not None:
        return _abort(
            MASK,
            "Expected none with too few surviving neighbours, got one: its secret cannot be opened.",
        )
    dropped = tuple(dealer for dealer in state.dealers if dealer not in state.inputs)
    out = (_to(agreement, survivors, Survivors(survivors=survivors, dropped=dropped)),)
    if agreement.parameters.mode == "active":
        return Step(Agreeing(state, AppendMap(), AppendMap()), out=out)
    return Step(Opening(state, survivors, AppendMap()), out=out)


# Round 3 ----------------------------------------------------------------------------------------


def signed(agreement: Agreement, state: Agreeing, number: int, said: Consistent) -> Step[ServerState]:
    """A survivor signed the one set of survivors. Its tags are for its neighbours alone to check."""
    summed = state.summed
    _admit(number, summed.inputs)
    near = summed.closed.surviving_neighbours(number, alive(summed.survivors))
    if [len(tag.raw) for tag in said.tags] != [TAG_BYTES] * len(near):
        raise CryptoError(f"Expected {len(near)} tags of {TAG_BYTES} bytes, got {len(said.tags)} tags.")
    agreement.check(number, said.signature, summed.survival)
    state = replace(
        state,
        signatures=state.signatures.having(number, said.signature),
        tags=state.tags.having(number, said.tags),
    )
    everybody = len(state.signatures) == len(summed.survivors)
    return close_signatures(agreement, state) if everybody else Step(state)


def close_signatures(agreement: Agreement, state: Agreeing) -> Step[ServerState]:
    """Send the signers their signatures, if they are a quorum. Only the signers open shares."""
    if len(state.signatures) < agreement.parameters.quorum:
        return _abort(
            CONSISTENCY,
            f"Expected {agreement.parameters.quorum} signatures on the survivors, "
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
    # The tags first: a client that has them verifies fewer signatures of the list.
    tags = tuple(_to(agreement, (one,), Confirmed(tags=of)) for one, of in _by_receiver(state))
    return Step(Opening(state.summed, signers, AppendMap()), out=(*tags, _to(agreement, signers, quorum)))


def _by_receiver(state: Agreeing) -> Iterator[tuple[int, tuple[Signature, ...]]]:
    """Yield each signer, with the tags of its surviving neighbours for it. One without has an empty tag."""
    summed = state.summed
    there = alive(summed.survivors)
    found: dict[int, list[Signature]] = {member: [] for member in summed.survivors}
    for sender in summed.survivors:  # ascending, as each receiver's neighbours are
        near = summed.closed.surviving_neighbours(sender, there)
        tags = state.tags[sender] if sender in state.tags else (_NO_TAG,) * len(near)
        for receiver, tag in zip(near, tags, strict=True):
            found[receiver].append(tag)
    for member in sorted(state.signatures):
        yield member, tuple(found[member])


# Round 4 ----------------------------------------------------------------------------------------


def opened(agreement: Agreement, state: Opening, number: int, said: Unmask) -> Step[ServerState]:
    """A survivor opened its shares. Check each against the hash that its dealer published."""
    _admit(number, alive(state.asked))
    summed = state.summed
    held = [dealer for dealer in summed.closed.graph.holders(number) if dealer in summed.dealt]
    if len(said.shares) != len(held):
        raise CryptoError(f"Expected {len(held)} shares, got {len(said.shares)}.")
    there = alive(summed.survivors)
    for dealer, marks, share in zip(held, summed.marks[number], said.shares, strict=True):
        _check_share(summed.closed, dealer, number, marks.raw, share, survived=dealer in there)
    shares = {dealer: share.raw[SALT_BYTES:] for dealer, share in zip(held, said.shares, strict=True)}
    state = replace(state, answers=state.answers.having(number, shares))
    return close_shares(agreement, state) if len(state.answers) == len(state.asked) else Step(state)


def _check_share(
    closed: ClosedRoster, dealer: int, holder: int, marks: bytes, share: Share, *, survived: bool
) -> None:
    """Raise CryptoError unless the share matches its dealer's published hash. The holder is then at fault."""
    # Of a survivor its self-mask is opened, of a dropped client its mask key. Both would open its input.
    kind, wanted = (SEED, marks[:32]) if survived else (KEY, marks[32:])
    # A share of another length has another hash, so the check below would refuse it too. If a dealer
    # published the hash of such a share, opening its secret would name the dealer.
    if len(share.raw) != OPENED_BYTES:
        raise CryptoError(f"Expected {OPENED_BYTES} bytes of salt and share, got {len(share.raw)}.")
    if mark(kind, closed, dealer, holder, share.raw) != wanted:
        raise CryptoError(
            f"Expected a share of {dealer} whose hash its dealer published, got one of another hash."
        )


def close_shares(agreement: Agreement, state: Opening) -> Step[ServerState]:
    """Order the host to remove the masks if every secret has enough shares."""
    summed, threshold = state.summed, agreement.parameters.threshold
    shares = state.shares()
    fewest = min(len(of_dealer) for of_dealer in shares.values())
    if fewest < threshold:
        return _abort(UNMASK, f"Expected {threshold} shares of every secret, got {fewest} of one.")
    work = Unmasking(
        closed=summed.closed,
        dealers=summed.dealers,
        survivors=summed.survivors,
        seeds={dealer: of.dealing.seed for dealer, of in summed.dealt.items()},
        shares=shares,
        sums=summed.sums,
    )
    return Step(Working(), need=Need(work))


def unmasked(agreement: Agreement, state: Working, answer: Summed | Aborted) -> Step[ServerState]:
    """The host removed the masks, or named a dealer."""
    return Step(Closing(), result=answer)


# All rounds -------------------------------------------------------------------------------------


def _admit(number: int, allowed: Container[int]) -> None:
    """Raise CryptoError if a client has no place in this phase."""
    if number not in allowed:
        raise CryptoError("Expected a member that takes part in this phase, got one that dropped out before.")


def _to(agreement: Agreement, members: tuple[int, ...], message: Any) -> Outgoing:
    return Outgoing(agreement.roster.names(members), message)


def _too_few(agreement: Agreement, phase: str, did: str, number: int) -> Step[ServerState]:
    """Abort because too few clients remain."""
    least = agreement.parameters.least_survivors
    return _abort(phase, f"Expected at least {least} clients, got {number} that {did}.")


def _abort(phase: str, reason: str, culprit: str | None = None) -> Step[ServerState]:
    return Step(Closing(), result=Aborted(phase=phase, reason=reason, culprit=culprit))
