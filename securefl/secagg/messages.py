"""The messages of secure aggregation, with their size limits.

round 0   client --Advertise-->    server --Roster------>  everybody who advertised
round 1   client --Shares------>   server --Dealt------->  everybody who dealt
          client --Complaint--->   server                  (a holder whose shares are wrong)
round 2   client --MaskedInput->   server --Survivors--->  everybody whose input came
round 3   client --Consistent-->   server --Confirmed--->  each survivor that signed    (active mode)
                                          --Quorum------>  all of them
round 4   client --Unmask------>   server

Members are named by their number in the pinned roster. Sequences of members ascend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from securefl.core.keys import Commitment, PublicKey, Share, Signature
from securefl.core.newest import newest
from securefl.core.release import Release
from securefl.core.wire import Limit, message
from securefl.secagg.agreement import TAG_BYTES, Agreement
from securefl.secagg.agreement import Advertise as Advertise
from securefl.secagg.dealing import MARKS_BYTES, OPENED_BYTES, SEALED_BYTES
from securefl.secagg.dealing import Shares as Shares
from securefl.secagg.packing import packed_bytes


@message("secagg-roster", sender="server")
@dataclass(frozen=True, kw_only=True)
class RosterClosed:
    """The members that advertised in time."""

    members: tuple[int, ...]
    keys: tuple[PublicKey, ...]
    nonces: tuple[Commitment, ...]
    signatures: tuple[Signature, ...]

    @cached_property
    def entries(self) -> Mapping[int, Advertise]:
        """Each member's advertisement. ValueError unless there are as many of each part."""
        of_each = zip(self.keys, self.nonces, self.signatures, strict=True)
        entries = zip(self.members, (Advertise(*of) for of in of_each), strict=True)
        return MappingProxyType(dict(entries))


@message("secagg-dealt", sender="server")
@dataclass(frozen=True)
class Dealt:
    """The dealers; from each neighbour among them sealed shares, hashes and the proof that it signed them."""

    dealers: tuple[int, ...]
    sealed: tuple[Share, ...]
    marks: tuple[Commitment, ...]
    evidence: tuple[bytes, ...]


@message("secagg-complaint", sender="client")
@dataclass(frozen=True, kw_only=True)
class Complaint:
    """The keys of sealed shares that are wrong although their dealer signed them.

    Each is the dealer's number (4 bytes, little-endian) and the key of that one message (32 bytes).
    """

    keys: tuple[Share, ...]


@message("secagg-masked-input", sender="client")
@dataclass(frozen=True, kw_only=True)
class MaskedInput:
    """One masked release for each vector, and a signature over the dealers of its masks."""

    releases: tuple[Release, ...]
    signature: Signature


@message("secagg-survivors", sender="server")
@dataclass(frozen=True, kw_only=True)
class Survivors:
    """The members whose inputs are in the sum, and the other dealers."""

    survivors: tuple[int, ...]
    dropped: tuple[int, ...]


@message("secagg-consistent", sender="client")
@dataclass(frozen=True, kw_only=True)
class Consistent:
    """A signature over the dealers and survivors that the server showed to this client.

    `tags` confirm the same to its surviving neighbours, in ascending order, 16 bytes each.
    """

    signature: Signature
    tags: tuple[Signature, ...]


@message("secagg-confirmed", sender="server")
@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """The tags for one client of its surviving neighbours, ascending. Empty if one did not sign."""

    tags: tuple[Signature, ...]


@message("secagg-quorum", sender="server")
@dataclass(frozen=True, kw_only=True)
class Quorum:
    """Signatures on the one set of survivors; for survivors that did not sign, those of their inputs."""

    signers: tuple[int, ...]
    signatures: tuple[Signature, ...]
    others: tuple[int, ...]
    inputs: tuple[Signature, ...]


@message("secagg-unmask", sender="client")
@dataclass(frozen=True, kw_only=True)
class Unmask:
    """One share with its salt for each dealer whose shares this client holds: of the seed or of the key."""

    shares: tuple[Share, ...]


# room for header, kind and lengths, generously
_OVERHEAD = 1024
_LENGTH = 4  # bytes in front of every key, share, hash and signature


@newest
def from_clients(agreement: Agreement) -> dict[type[object], Limit]:
    """The largest size and element count of each message of a client."""
    # Computed from the agreement before anything is decoded: a peer cannot make the server allocate more.
    holders = agreement.parameters.neighbours + 1
    names = sum(len(vector.name.encode()) for vector in agreement.vectors)
    vectors = sum(packed_bytes(v.length, v.bits) + 64 for v in agreement.vectors) + names
    return {
        Advertise: Limit(_OVERHEAD, 0),
        Shares: Limit(_OVERHEAD + holders * (SEALED_BYTES + MARKS_BYTES + 2 * _LENGTH), 2 * holders),
        Complaint: Limit(_OVERHEAD + holders * (36 + _LENGTH), holders),
        MaskedInput: Limit(_OVERHEAD + vectors, len(agreement.vectors)),
        Consistent: Limit(_OVERHEAD + holders * (TAG_BYTES + _LENGTH), holders),
        Unmask: Limit(_OVERHEAD + holders * (OPENED_BYTES + _LENGTH), holders),
    }


@newest
def from_server(agreement: Agreement) -> dict[type[object], Limit]:
    """The largest size and element count of each message of the server."""
    clients, holders = agreement.parameters.clients, agreement.parameters.neighbours + 1
    evidence = 64 + 32 + 32 * holders.bit_length()
    dealt = SEALED_BYTES + MARKS_BYTES + evidence + 3 * _LENGTH
    return {
        RosterClosed: Limit(_OVERHEAD + clients * (8 + 32 + 32 + 64 + 3 * _LENGTH), 4 * clients),
        Dealt: Limit(_OVERHEAD + 8 * clients + holders * dealt, clients + 3 * holders),
        Survivors: Limit(_OVERHEAD + 8 * clients, clients),
        Confirmed: Limit(_OVERHEAD + holders * (TAG_BYTES + _LENGTH), holders),
        Quorum: Limit(_OVERHEAD + clients * (8 + 64 + _LENGTH), 2 * clients),
    }
