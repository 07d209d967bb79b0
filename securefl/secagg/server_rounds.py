"""What the server of secure aggregation does in each round: one function for what comes, one for its end.

Each is a function of what all parties agreed on, the state and what came. `phases` has the same as a table.
The last two rounds, in which masks come off, stand in `server_opening`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.grown import Grown
from securefl.core.keys import SecretKey
from securefl.core.machine import Envelope, Step
from securefl.core.release import Delivered
from securefl.core.signing import AgreementKey
from securefl.secagg import complaints
from securefl.secagg.agreement import Agreement, ClosedRoster, Entry
from securefl.secagg.checks import ADVERTISE, MASK, SHARE
from securefl.secagg.dealing import Dealing, published
from securefl.secagg.masks import Words
from securefl.secagg.messages import Advertise, Complaint, Dealt, MaskedInput, RosterClosed, Shares, Survivors
from securefl.secagg.packing import unpack, word
from securefl.secagg.server_states import (
    Advertising,
    Agreeing,
    Closing,
    Opening,
    ServerState,
    Sharing,
    Summing,
)
from securefl.secagg.unmasking import Aborted

_PROBE: Final = AgreementKey(SecretKey(bytes(31) + b"\x40"))  # any key tells a weak one of the other side


# Round 0 ----------------------------------------------------------------------------------------


def advertised(agreement: Agreement, state: Advertising, number: int, said: Advertise) -> Step[ServerState]:
    """A client's key and nonce came; the roster closes when everybody's did."""
    if number in state.entries:
        return Step(state)
    entry = Entry(said.key, said.nonce, said.signature)
    entry.check(agreement, number)
    # A weak key would fail at every neighbour, after the roster closed; here it costs its sender alone.
    _PROBE.agree(said.key, b"probe")
    state = replace(state, entries=state.entries.having(number, entry))
    everybody = len(state.entries) == agreement.parameters.clients
    return close_roster(agreement, state) if everybody else Step(state)


def close_roster(agreement: Agreement, state: Advertising) -> Step[ServerState]:
    """Show who advertised to all of them, if they are enough."""
    if len(state.entries) < agreement.parameters.least_survivors:
        return too_few(agreement, ADVERTISE, "advertised", len(state.entries))
    closed = ClosedRoster(agreement, state.entries)
    entries = [closed.entries[member] for member in closed.members]
    roster = RosterClosed(
        members=closed.members,
        keys=tuple(entry.key for entry in entries),
        nonces=tuple(entry.nonce for entry in entries),
        signatures=tuple(entry.signature for entry in entries),
    )
    return Step(Sharing(closed, Grown()), out=(to(agreement, closed.members, roster),))


# Round 1 ----------------------------------------------------------------------------------------


def shared(agreement: Agreement, state: Sharing, number: int, said: Shares) -> Step[ServerState]:
    """A client's shares came; dealing is over when everybody of the roster dealt."""
    if number in state.dealt:
        return Step(state)
    admit(agreement, number, state.closed.members, SHARE)
    dealing = Dealing(said.seed, said.marks, said.sealed, said.signature)
    dealt = state.dealt.having(number, published(state.closed, number, dealing))
    state = replace(state, dealt=dealt)
    return close_dealing(agreement, state) if len(dealt) == len(state.closed.members) else Step(state)


def close_dealing(agreement: Agreement, state: Sharing) -> Step[ServerState]:
    """Hand each dealer what the others sealed for it, if enough dealt."""
    dealers = tuple(sorted(state.dealt))
    if len(dealers) < agreement.parameters.least_survivors:
        return too_few(agreement, SHARE, "dealt shares", len(dealers))
    out = tuple(to(agreement, (holder,), _dealt(state, holder, dealers)) for holder in dealers)
    sums = tuple(np.zeros(vector.length, word(vector.bits)) for vector in agreement.vectors)
    return Step(Summing(closed=state.closed, dealt=state.dealt, sums=sums, inputs=Grown()), out=out)


def _dealt(state: Sharing, holder: int, dealers: tuple[int, ...]) -> Dealt:
    near = [state.dealt[m] for m in state.closed.graph.neighbours[holder] if m in state.dealt]
    return Dealt(
        dealers=dealers,
        sealed=tuple(of.boxes[holder] for of in near),
        marks=tuple(of.marks(holder) for of in near),
        evidence=tuple(of.evidence(holder) for of in near),
    )


def complained(agreement: Agreement, state: Summing, number: int, said: Complaint) -> Step[ServerState]:
    """A proof ends the attempt. Without a proof the holder leaves. More accusers than may lie are a proof.

    A single accuser is never a proof, even if `corrupt` is 0: it is one word against another.
    """
    if number in state.gone or number in state.inputs:
        return Step(state)
    admit(agreement, number, state.dealers, SHARE)
    accused, liars = dict(state.accused), max(agreement.parameters.corrupt, 1)
    for dealer, proven in complaints.judge(state.closed, state.dealt, number, said.keys):
        accused[dealer] = accused.get(dealer, frozenset()) | {number}
        # If there are more accusers than liars, one of them is honest.
        if proven or len(accused[dealer]) > liars:
            name = agreement.roster.members[dealer].name
            reason = f"{name} dealt shares that do not match what it signed, or cannot be opened."
            return abort(SHARE, reason, name)
    state = replace(state, gone=state.gone | {number}, accused=accused)
    return close_sums(agreement, state) if _all_in(state) else Step(state)


# Round 2 ----------------------------------------------------------------------------------------


def masked(agreement: Agreement, state: Summing, number: int, said: MaskedInput) -> Step[ServerState]:
    """A masked input came, which is added at once; the sums close with the last one."""
    if number in state.inputs or number in state.gone:
        return Step(state)
    admit(agreement, number, state.dealers, MASK)
    vectors: tuple[Any, ...] = said.releases
    pieces = _unpacked(agreement, vectors)
    # The clients ask for this signature in round 3, for a survivor that did not sign. An input whose sender
    # was shown other dealers would stop the whole opening there, so it is left out here.
    text = state.closed.input_of(number, state.dealers)
    agreement.check(number, said.signature, text)
    sums = tuple(total + piece for total, piece in zip(state.sums, pieces, strict=True))
    state = replace(state, sums=sums, inputs=state.inputs.having(number, said.signature))
    return close_sums(agreement, state) if _all_in(state) else Step(state)


def _unpacked(agreement: Agreement, came: tuple[Delivered, ...]) -> list[Words]:
    wanted = [(vector.name, "masked", b"") for vector in agreement.vectors]
    if [(one.name, one.form, one.sealed) for one in came] != wanted:
        raise CryptoError(f"Expected one masked release for each of {[name for name, *_ in wanted]}.")
    return [
        unpack(one.numbers, vector.length, vector.bits)  # type: ignore[arg-type]  # checked there
        for one, vector in zip(came, agreement.vectors, strict=True)
    ]


def _all_in(state: Summing) -> bool:
    return len(state.inputs) + len(state.gone) == len(state.dealt)


def close_sums(agreement: Agreement, state: Summing) -> Step[ServerState]:
    """Show the survivors to each of them, if their masks can be taken off."""
    survivors = state.survivors
    if len(survivors) < agreement.parameters.least_survivors:
        return too_few(agreement, MASK, "sent a masked input", len(survivors))
    if state.closed.lonely(survivors) is not None:
        return abort(MASK, "A survivor has too few surviving neighbours; nobody would unmask it.")
    dropped = tuple(dealer for dealer in state.dealers if dealer not in state.inputs)
    out = (to(agreement, survivors, Survivors(survivors=survivors, dropped=dropped)),)
    if agreement.parameters.mode == "active":
        return Step(Agreeing(state, Grown()), out=out)
    return Step(opening(state, survivors), out=out)


def opening(state: Summing, asked: tuple[int, ...]) -> Opening:
    """Nobody answered yet."""
    return Opening(state, asked, frozenset(), {dealer: Grown() for dealer in state.dealers})


# All rounds -------------------------------------------------------------------------------------


def admit(agreement: Agreement, number: int, allowed: tuple[int, ...], phase: str) -> None:
    """RemoteProtocolError for a client that has no place in this phase."""
    if number not in allowed:
        name = agreement.roster.members[number].name
        raise RemoteProtocolError(
            f"Expected a member that takes part in {phase!r}, got {name}, which dropped out before.",
            sender=name,
            phase=phase,
        )


def to(agreement: Agreement, members: tuple[int, ...], message: Any) -> Envelope:
    return Envelope(agreement.roster.names(members), message)


def too_few(agreement: Agreement, phase: str, did: str, number: int) -> Step[ServerState]:
    """Abort for want of clients."""
    least = agreement.parameters.least_survivors
    return abort(phase, f"Expected at least {least} clients, got {number} that {did}.")


def abort(phase: str, reason: str, culprit: str | None = None) -> Step[ServerState]:
    return Step(Closing(), result=Aborted(phase=phase, reason=reason, culprit=culprit))
