"""A client's checks of the server's messages in secure aggregation.

Each function checks one message and returns its content. If a check fails, it raises `RemoteProtocolError`,
which names the server and the phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from securefl.core.agreement import u32
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import Share
from securefl.core.newest import newest
from securefl.core.release import SERVER
from securefl.secagg.agreement import Advertise, Agreement, Channels, ClosedRoster, alive, one_list
from securefl.secagg.dealing import Pair, check_evidence, opened, share_key
from securefl.secagg.messages import Dealt, RosterClosed, Survivors

ADVERTISE, SHARE, MASK, CONSISTENCY, UNMASK = "advertise", "share", "mask", "consistency", "unmask"


def refusal(phase: str, reason: str) -> RemoteProtocolError:
    """Return the error for a message of the server that fails a check."""
    return RemoteProtocolError(reason, sender=SERVER, phase=phase)


def read_roster(agreement: Agreement, own: int, entry: Advertise, roster: RosterClosed) -> ClosedRoster:
    """Check that the closed roster has pinned members only, and our unchanged entry.

    The others' signatures are not verified here. A neighbour's box opens only if that neighbour saw the same
    roster, with its own entry in it, so `read_dealt` vouches for each entry on which this client depends.
    """
    closed = _closed(agreement, roster)
    # Each member checks its own entry. The neighbours that seal boxes under this roster rely on it.
    if closed.entries.get(own) != entry:
        raise refusal(
            ADVERTISE,
            "Expected our own key, nonce and signature in the roster, got a roster without them.",
        )
    return closed


# What the checks marked so find follows from what all members are shown. In a simulation the first member
# makes them, for those that are shown the very same objects under the very same agreement.
@newest
def _closed(agreement: Agreement, roster: RosterClosed) -> ClosedRoster:
    members = roster.members
    if len({len(members), len(roster.keys), len(roster.nonces), len(roster.signatures)}) > 1:
        raise refusal(
            ADVERTISE, "Expected a key, a nonce and a signature for each member, got more or fewer of one."
        )
    if not ascending(members, range(agreement.parameters.clients)):
        raise refusal(
            ADVERTISE,
            "Expected distinct, ascending members of the pinned roster, got some twice or beyond it.",
        )
    if len(members) < agreement.parameters.least_survivors:
        raise refusal(
            ADVERTISE,
            f"Expected at least {agreement.parameters.least_survivors} members, got {len(members)}.",
        )
    entries = roster.entries
    odd = next((member for member, other in entries.items() if not other.well_formed), None)
    if odd is not None:
        raise _unsigned(odd)
    closed = ClosedRoster(agreement, entries)
    if (lonely := closed.lonely(members)) is not None:
        raise refusal(ADVERTISE, f"Expected enough neighbours for each member, got few of member {lonely}.")
    return closed


def _unsigned(member: int) -> RemoteProtocolError:
    return refusal(
        ADVERTISE, f"Expected a signature of member {member}, which did not sign this key for this place."
    )


@dataclass(frozen=True, repr=False)
class Opened:
    """The shares dealt to a client: pairs by dealer, and message keys that prove that shares are wrong."""

    dealers: tuple[int, ...]
    pairs: Mapping[int, Pair]
    complaints: tuple[Share, ...]


def read_dealt(closed: ClosedRoster, channels: Channels, dealt: Dealt) -> Opened:
    """Open the shares from this client's neighbours, and check each against its published hash."""
    own, dealers = channels.own, one_list(dealt.dealers)
    dealt_by, least = alive(dealers), closed.agreement.parameters.least_survivors
    if not _ascend(dealers, closed.members) or own not in dealt_by or len(dealers) < least:
        raise refusal(
            SHARE,
            f"Expected {least} or more ascending dealers of the roster, us among them, got {len(dealers)} "
            f"{'with' if own in dealt_by else 'without'} us.",
        )
    near = [member for member in closed.graph[own] if member in dealt_by]
    if any(len(part) != len(near) for part in (dealt.sealed, dealt.marks, dealt.evidence)):
        raise refusal(SHARE, f"Expected the shares of our {len(near)} neighbours, got {len(dealt.sealed)}.")
    pairs: dict[int, Pair] = {}
    complaints = []
    for dealer, sealed, marks, evidence in zip(near, dealt.sealed, dealt.marks, dealt.evidence, strict=True):
        try:
            pairs[dealer] = opened(closed, channels, dealer, sealed, marks)
        except CryptoError:
            # The client reveals the key only for shares that their dealer signed. If the server altered the
            # shares, the key would let the server open the right ones.
            try:
                check_evidence(closed, dealer, own, marks, sealed, evidence)
            except CryptoError:
                raise _altered(closed, dealer) from None
            key = share_key(closed, channels, dealer, own)
            complaints.append(Share(u32(dealer) + key.reveal()))
    return Opened(dealers, pairs, tuple(complaints))


def _altered(closed: ClosedRoster, dealer: int) -> RemoteProtocolError:
    """Return the refusal of a box that its dealer did not sign under our roster, with its cause."""
    # The dealer may have been shown another roster than we were. If ours has an entry that its member did not
    # sign, then the server forged it.
    forged = closed.unsigned()
    if forged is not None:
        return _unsigned(forged)
    return refusal(SHARE, f"Expected a signature of member {dealer}, which did not sign these shares.")


def read_survivors(
    closed: ClosedRoster, own: int, dealers: Sequence[int], came: Survivors
) -> tuple[int, ...]:
    """Check that survivors and dropped partition the dealers, that enough survive, and none is isolated."""
    survivors = _survivors(closed, dealers, came)
    if own not in alive(survivors):
        raise refusal(
            UNMASK, "Expected us as a survivor, since our input is sent: we are not among the survivors."
        )
    return survivors


@newest
def _survivors(closed: ClosedRoster, dealers: Sequence[int], came: Survivors) -> tuple[int, ...]:
    # For a survivor the seed is opened, for a dropped client the mask key. Both together open a client's
    # input. So the sets must be disjoint, and complete: the server could put an omitted client into either.
    survivors, dropped = came.survivors, came.dropped
    if not ascending(survivors, dealers) or not ascending(dropped, dealers):
        raise refusal(
            UNMASK,
            "Expected distinct, ascending dealers as survivors and as dropped, got one twice, or "
            "one that is no dealer.",
        )
    if set(survivors) & set(dropped):
        raise refusal(UNMASK, "Expected disjoint sets, got a dealer that would both survive and drop.")
    if len(survivors) + len(dropped) != len(dealers):
        raise refusal(
            UNMASK,
            f"Expected {len(dealers)} dealers as survivors or dropped, got {len(survivors) + len(dropped)}: "
            "somebody is missing.",
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


def ascending(numbers: Sequence[int], allowed: Iterable[int]) -> bool:
    """Whether the numbers are distinct, ascending and allowed."""
    distinct = set(numbers)
    return list(numbers) == sorted(distinct) and distinct.issubset(allowed)


_ascend: Final = newest(ascending)
