"""What a client believes of the server: nothing that it cannot check itself.

Each function reads one message of the server and returns what follows from it, or raises
`RemoteProtocolError` naming the server and the phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from securefl.core.agreement import u32
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import Share
from securefl.core.release import SERVER
from securefl.secagg.agreement import Agreement, Channels, ClosedRoster, Entry
from securefl.secagg.dealing import Pair, check_evidence, check_pair, share_key, unseal
from securefl.secagg.messages import Dealt, Quorum, RosterClosed, Survivors

ADVERTISE, SHARE, MASK, CONSISTENCY, UNMASK = "advertise", "share", "mask", "consistency", "unmask"


def refusal(phase: str, reason: str) -> RemoteProtocolError:
    """The server's fault."""
    return RemoteProtocolError(reason, sender=SERVER, phase=phase)


def read_roster(agreement: Agreement, own: int, entry: Entry, roster: RosterClosed) -> ClosedRoster:
    """The closed roster: pinned members alone, each signed for this place, ourselves unchanged."""
    members = roster.members
    if len({len(members), len(roster.keys), len(roster.nonces), len(roster.signatures)}) > 1:
        raise refusal(ADVERTISE, "Expected a key, a nonce and a signature for each member.")
    if not _ascending(members, range(agreement.parameters.clients)):
        raise refusal(ADVERTISE, "Expected distinct, ascending members of the pinned roster.")
    if len(members) < agreement.parameters.least_survivors:
        raise refusal(
            ADVERTISE,
            f"Expected at least {agreement.parameters.least_survivors} members, got {len(members)}.",
        )
    fields = zip(roster.keys, roster.nonces, roster.signatures, strict=True)
    entries = {member: Entry(*of) for member, of in zip(members, fields, strict=True)}
    if entries.get(own) != entry:
        raise refusal(ADVERTISE, "Expected our own key, nonce and signature among those of the roster.")
    for member, other in entries.items():
        if member == own:
            continue
        try:
            other.check(agreement, member)
        except CryptoError:
            raise refusal(ADVERTISE, f"Member {member} did not sign this key for this place.") from None
    return ClosedRoster(agreement, entries)


@dataclass(frozen=True, repr=False)
class Opened:
    """What a client was dealt: its pairs by dealer, and the keys of those that are provably wrong."""

    dealers: tuple[int, ...]
    pairs: Mapping[int, Pair]
    complaints: tuple[Share, ...]


def read_dealt(closed: ClosedRoster, channels: Channels, dealt: Dealt) -> Opened:
    """Open the shares of the neighbours that this client derived itself, and check each against its hash."""
    own, dealers = channels.own, dealt.dealers
    least = closed.agreement.parameters.least_survivors
    if not _ascending(dealers, closed.members) or own not in dealers or len(dealers) < least:
        raise refusal(SHARE, f"Expected {least} or more ascending members of the roster, us among them.")
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
            # To show the key of shares that the server altered would hand it the right ones.
            try:
                check_evidence(closed, dealer, own, marks, sealed, evidence)
            except CryptoError:
                raise refusal(SHARE, f"Member {dealer} did not sign these shares.") from None
            complaints.append(Share(u32(dealer) + key.reveal()))
    return Opened(dealers, pairs, tuple(complaints))


def read_survivors(
    closed: ClosedRoster, own: int, dealers: Sequence[int], came: Survivors
) -> tuple[int, ...]:
    """The survivors, if with the dropped they are exactly the dealers, enough, and none stands apart."""
    survivors, dropped = came.survivors, came.dropped
    if not _ascending(survivors, dealers) or not _ascending(dropped, dealers):
        raise refusal(UNMASK, "Expected distinct, ascending dealers as survivors and as dropped.")
    if set(survivors) & set(dropped):
        raise refusal(UNMASK, "A dealer cannot both survive and drop: its input would be opened.")
    if len(survivors) + len(dropped) != len(dealers):
        raise refusal(UNMASK, "Every dealer either survives or dropped; somebody is missing.")
    if own not in survivors:
        raise refusal(UNMASK, "We sent our input and are still here, and are not among the survivors.")
    least = closed.agreement.parameters.least_survivors
    if len(survivors) < least:
        raise refusal(UNMASK, f"Expected at least {least} survivors, got {len(survivors)}.")
    lonely = closed.lonely(survivors)
    if lonely is not None:
        raise refusal(UNMASK, f"Member {lonely} has too few surviving neighbours: its input could be told.")
    return survivors


def read_quorum(
    closed: ClosedRoster, own: int, dealers: Sequence[int], survivors: Sequence[int], came: Quorum
) -> None:
    """Enough signatures on our set, and one of each surviving neighbour that it stands among our dealers.

    The first make the set the only one that is ever opened; the second keep a client that was shown other
    dealers, and whose input therefore lacks the masks we count on, from being opened.
    """
    if len(came.signers) != len(came.signatures) or len(came.others) != len(came.inputs):
        raise refusal(CONSISTENCY, "Expected one signature for each name.")
    if not _ascending(came.signers, survivors) or not _ascending(came.others, survivors):
        raise refusal(CONSISTENCY, "Expected distinct, ascending survivors as signers.")
    quorum = closed.agreement.parameters.quorum
    if len(came.signers) < quorum:
        raise refusal(CONSISTENCY, f"Expected {quorum} signatures on one set, got {len(came.signers)}.")
    near = set(closed.graph.neighbours[own]) & set(survivors)
    if near - {*came.signers, *came.others}:
        raise refusal(CONSISTENCY, "Expected every surviving neighbour's signature.")
    # One's own signature counts and needs no checking; whom we hold shares of is checked first.
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


def _ascending(numbers: Sequence[int], allowed: Sequence[int]) -> bool:
    permitted = set(allowed)
    rising = all(low < high for low, high in pairwise(numbers))
    return rising and all(number in permitted for number in numbers)
