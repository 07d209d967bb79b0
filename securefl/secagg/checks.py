"""A client's checks of the server's messages in secure aggregation.

Each function checks one message and returns its content. If a check fails, it raises `RemoteProtocolError`,
which names the server and the phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from securefl.core.agreement import u32
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import Share
from securefl.core.release import SERVER
from securefl.secagg.agreement import Agreement, Channels, ClosedRoster, Entry
from securefl.secagg.dealing import Pair, check_evidence, check_pair, share_key, unseal
from securefl.secagg.messages import Dealt, Quorum, RosterClosed, Survivors

ADVERTISE, SHARE, MASK, CONSISTENCY, UNMASK = "advertise", "share", "mask", "consistency", "unmask"


def refusal(phase: str, reason: str) -> RemoteProtocolError:
    """Return the error for a message of the server that fails a check."""
    return RemoteProtocolError(reason, sender=SERVER, phase=phase)


def read_roster(agreement: Agreement, own: int, entry: Entry, roster: RosterClosed) -> ClosedRoster:
    """Check that the closed roster has pinned members only, their signatures, and our unchanged entry."""
    members = roster.members
    if len({len(members), len(roster.keys), len(roster.nonces), len(roster.signatures)}) > 1:
        raise refusal(
            ADVERTISE, "Expected a key, a nonce and a signature for each member, got more or fewer of one."
        )
    if not _ascending(members, range(agreement.parameters.clients)):
        raise refusal(ADVERTISE, "Expected distinct, ascending members of the pinned roster, got others.")
    if len(members) < agreement.parameters.least_survivors:
        raise refusal(
            ADVERTISE,
            f"Expected at least {agreement.parameters.least_survivors} members, got {len(members)}.",
        )
    entries = roster.entries
    # The loop below verifies only the signatures of the others, so our entry must be the one that we sent.
    if entries.get(own) != entry:
        raise refusal(
            ADVERTISE,
            "Expected our own key, nonce and signature in the roster, got a roster without them.",
        )
    for member, other in entries.items():
        if member == own:
            continue
        try:
            other.check(agreement, member)
        except CryptoError:
            raise refusal(
                ADVERTISE,
                f"Expected a signature of member {member}, which did not sign this key for this place.",
            ) from None
    return ClosedRoster(agreement, entries)


@dataclass(frozen=True, repr=False)
class Opened:
    """The shares dealt to a client: pairs by dealer, and message keys that prove that shares are wrong."""

    dealers: tuple[int, ...]
    pairs: Mapping[int, Pair]
    complaints: tuple[Share, ...]


def read_dealt(closed: ClosedRoster, channels: Channels, dealt: Dealt) -> Opened:
    """Open the shares from this client's neighbours, and check each against its published hash."""
    own, dealers = channels.own, dealt.dealers
    least = closed.agreement.parameters.least_survivors
    if not _ascending(dealers, closed.members) or own not in dealers or len(dealers) < least:
        raise refusal(
            SHARE,
            f"Expected {least} or more ascending dealers of the roster, us among them, got others.",
        )
    dealt_by = set(dealers)
    near = [member for member in closed.graph.neighbours[own] if member in dealt_by]
    if any(len(part) != len(near) for part in (dealt.sealed, dealt.marks, dealt.evidence)):
        raise refusal(SHARE, f"Expected the shares of our {len(near)} neighbours, got {len(dealt.sealed)}.")
    pairs: dict[int, Pair] = {}
    complaints = []
    for dealer, sealed, marks, evidence in zip(near, dealt.sealed, dealt.marks, dealt.evidence, strict=True):
        key = share_key(closed, channels, dealer, own)
        try:
            pair = unseal(sealed, key, closed, dealer, own)
            check_pair(pair, marks, closed, dealer, own)
            pairs[dealer] = pair
        except CryptoError:
            # The client reveals the key only for shares that their dealer signed. If the server altered the
            # shares, the key would let the server open the right ones.
            try:
                check_evidence(closed, dealer, own, marks, sealed, evidence)
            except CryptoError:
                raise refusal(
                    SHARE, f"Expected a signature of member {dealer}, which did not sign these shares."
                ) from None
            complaints.append(Share(u32(dealer) + key.reveal()))
    return Opened(dealers, pairs, tuple(complaints))


def read_survivors(
    closed: ClosedRoster, own: int, dealers: Sequence[int], came: Survivors
) -> tuple[int, ...]:
    """Check that survivors and dropped partition the dealers, that enough survive, and none is isolated."""
    # For a survivor the seed is opened, for a dropped client the mask key. Both together open a client's
    # input. So the sets must be disjoint, and complete: the server could put an omitted client into either.
    survivors, dropped = came.survivors, came.dropped
    if not _ascending(survivors, dealers) or not _ascending(dropped, dealers):
        raise refusal(UNMASK, "Expected distinct, ascending dealers as survivors and as dropped, got others.")
    if set(survivors) & set(dropped):
        raise refusal(UNMASK, "Expected disjoint sets, got a dealer that would both survive and drop.")
    if len(survivors) + len(dropped) != len(dealers):
        raise refusal(
            UNMASK,
            f"Expected {len(dealers)} dealers as survivors or dropped, got {len(survivors) + len(dropped)}: "
            "somebody is missing.",
        )
    if own not in survivors:
        raise refusal(
            UNMASK, "Expected us as a survivor, since our input is sent: we are not among the survivors."
        )
    least = closed.agreement.parameters.least_survivors
    if len(survivors) < least:
        raise refusal(UNMASK, f"Expected at least {least} survivors, got {len(survivors)}.")
    lonely = closed.lonely(survivors)
    if lonely is not None:
        raise refusal(
            UNMASK,
            f"Expected survivors with enough surviving neighbours, got member {lonely}: its "
            "input could be inferred.",
        )
    return survivors


def read_quorum(
    closed: ClosedRoster, own: int, dealers: Sequence[int], survivors: Sequence[int], came: Quorum
) -> None:
    """Check that a quorum signed our set of survivors, and that each surviving neighbour signed our dealers.

    With a quorum, no other set can be opened. The neighbours' signatures protect a client to which the server
    showed other dealers: its input lacks masks that we expect, and must not be opened.
    """
    if len(came.signers) != len(came.signatures) or len(came.others) != len(came.inputs):
        raise refusal(CONSISTENCY, "Expected one signature for each member, got more or fewer.")
    if not _ascending(came.signers, survivors) or not _ascending(came.others, survivors):
        raise refusal(CONSISTENCY, "Expected distinct, ascending survivors as signers, got others.")
    quorum = closed.agreement.parameters.quorum
    if len(came.signers) < quorum:
        raise refusal(CONSISTENCY, f"Expected {quorum} signatures on one set, got {len(came.signers)}.")
    near = set(closed.graph.neighbours[own]) & set(survivors)
    if near - {*came.signers, *came.others}:
        raise refusal(CONSISTENCY, "Expected a signature of every surviving neighbour, got fewer.")
    # Signatures take most of a client's time in a large cohort, so only a quorum is verified. Neighbours come
    # first, because we hold their shares. Our own signature counts without a check.
    ours = [member for member in came.signers if member in near]
    rest = [member for member in came.signers if member not in near and member != own]
    wanted = {*ours, *rest[: max(0, quorum - len(ours) - (own in came.signers))]}
    message = closed.survival(dealers, survivors)
    signatures = zip(came.signers, came.signatures, strict=True)
    due = [(member, one, message) for member, one in signatures if member in wanted]
    due += [
        (member, one, closed.input_of(member, dealers))
        for member, one in zip(came.others, came.inputs, strict=True)
        if member in near and member not in wanted
    ]
    for member, signature, text in due:
        try:
            closed.agreement.check(member, signature, text)
        except CryptoError:
            raise refusal(CONSISTENCY, f"Member {member} did not sign what we were shown.") from None


def _ascending(numbers: Sequence[int], allowed: Iterable[int]) -> bool:
    distinct = set(numbers)
    return list(numbers) == sorted(distinct) and distinct.issubset(allowed)
