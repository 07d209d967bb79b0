"""The agreement of one masked sum, its closed roster, and the members' pairwise secrets.

`Agreement.context` names the place and everything on which a client acts. Every signature, key derivation
and hash contains it. After the roster of round 0 is closed, `ClosedRoster.context` adds the roster's digest,
which covers a fresh nonce of every member.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hmac import compare_digest
from operator import itemgetter
from typing import Any

from securefl.core import agreement
from securefl.core.agreement import Identity, Roster, digest, fields, listed, tagged, u32
from securefl.core.entropy import Extract
from securefl.core.errors import ConfigError, CryptoError
from securefl.core.keys import Commitment, PublicKey, SecretKey, Signature
from securefl.core.newest import newest
from securefl.core.signing import AgreementKey
from securefl.core.wire import message
from securefl.secagg.graph import Graph, draw
from securefl.secagg.policy import Parameters

TAG_BYTES = 16
"""The length of a tag: 2^-128 for one guess."""


class Channels:
    """The secrets that one client shares with each other member, derived once in a session.

    Raises:
        ConfigError: if the roster does not have the client with its own keys.

    >>> from securefl.secagg import Channels, Identity, Roster
    >>> one, two = Identity.generate("client-0000"), Identity.generate("client-0001")
    >>> roster = Roster((one.member(), two.member()))
    >>> Channels(one, roster, bytes(32)).secret(1) == Channels(two, roster, bytes(32)).secret(0)
    True
    """

    def __init__(self, identity: Identity, roster: Roster, session: bytes) -> None:
        self.identity = identity
        self.roster = roster
        self.session = session
        self.own = roster.numbers.get(identity.name, -1)
        if self.own < 0 or roster.members[self.own] != identity.member():
            raise ConfigError(
                f"Expected {identity.name} in the roster with its own keys, got a roster without them. "
                "Pin the member's current keys."
            )
        self._secrets: dict[int, SecretKey] = {}
        self._extracts: dict[int, Extract] = {}
        self._places: dict[int, bytes] = {}

    def secret(self, other: int) -> SecretKey:
        """Return 32 bytes that only the two members know. Raises CryptoError for a weak key."""
        if other not in self._secrets:
            # smaller number first, so that both members derive the same secret
            pair = u32(min(self.own, other), max(self.own, other))
            purpose = tagged(b"channel", self.session + self.roster.digest, pair)
            theirs = self.roster.members[other].channel
            self._secrets[other] = self.roster.agree(self.identity.channel, theirs, purpose)
        return self._secrets[other]

    def derived(self, other: int, purpose: bytes) -> SecretKey:
        """Return HKDF of the two members' secret for one purpose. Raises CryptoError for a weak key."""
        if other not in self._extracts:
            self._extracts[other] = Extract(self.secret(other).reveal())
        return self._extracts[other].key(purpose)

    def made(self, other: int, what: tuple[bytes, ...], result: Any) -> None:
        """Tell another member, if it is a party of this process, what its check of these bytes gives.

        Only who has the secret of the two can tell it.
        """
        if self.roster.known is not None:
            self.roster.known.made((self._place(other), *what), result)

    def found(self, other: int, what: tuple[bytes, ...]) -> Any:
        """Return what another member of this process told of exactly these bytes, or None: then check."""
        if self.roster.known is None:
            return None
        return self.roster.known.found((self._place(other), *what))

    def _place(self, other: int) -> bytes:
        """32 bytes that only the two members know. They are no key, so they may stand in a table."""
        if other not in self._places:
            self._places[other] = self.derived(other, tagged(b"told", self.session)).reveal()
        return self._places[other]

    def tag(self, closed: ClosedRoster, sender: int, receiver: int, digested: bytes) -> Signature:
        """Return the tag by which one of the two members shows the other that it confirms a text.

        digested: the text's SHA-256.

        Only the two can compute it. It convinces the receiver and nobody else.
        """
        other = receiver if sender == self.own else sender
        purpose = _confirms(closed, sender, receiver, digested)
        return Signature(self.derived(other, purpose).reveal()[:TAG_BYTES])

    def holds(self, closed: ClosedRoster, sender: int, digested: bytes, tag: Signature) -> bool:
        """Whether this is the tag of another member for this one."""
        return compare_digest(tag.raw, self.tag(closed, sender, self.own, digested).raw)


@dataclass(frozen=True, kw_only=True)
class Agreement(agreement.Agreement):
    """The agreement of one masked sum, with the parameters that every client computes itself.

    Raises:
        ConfigError: if the parameters are for another number of clients, or if a sum could wrap around.

    >>> from securefl.secagg import Agreement, Identity, Roster, Vector, parameters
    >>> from securefl.sums import Header
    >>> members = tuple(Identity.generate(f"client-{number:04d}").member() for number in range(3))
    >>> agreement = Agreement(
    ...     header=Header(session=bytes(32), round=1, attempt=1, stage=0), roster=Roster(members),
    ...     vectors=(Vector(name="update", length=4, bits=32, bound=100),), plan=bytes(32), task=bytes(32),
    ...     parameters=parameters(3, corrupt=0.0, dropout=0.0, mode="active"))
    >>> len(agreement.context)
    72
    """

    parameters: Parameters

    def __post_init__(self) -> None:
        super().__post_init__()
        clients = len(self.roster.members)
        if clients != self.parameters.clients:
            raise ConfigError(
                f"Expected a roster of {self.parameters.clients} clients, got {clients}. Compute the "
                "parameters for the roster's size."
            )
        for vector in self.vectors:
            vector.require_room(clients)

    @property
    def rules(self) -> bytes:
        return self.parameters.digest()


@message("secagg-advertise", sender="client")
@dataclass(frozen=True)
class Advertise:
    """A member's advertisement: a key and a nonce, both fresh for this attempt, and a signature over them."""

    key: PublicKey
    nonce: Commitment
    signature: Signature

    @property
    def well_formed(self) -> bool:
        """Whether key, nonce and signature have their lengths."""
        return (len(self.key.raw), len(self.nonce.raw), len(self.signature.raw)) == (32, 32, 64)

    def check(self, agreement: Agreement, member: int) -> None:
        """Raise CryptoError unless lengths are right and the pinned member signed this for this place."""
        if not self.well_formed:
            sizes = [len(part.raw) for part in (self.key, self.nonce, self.signature)]
            raise CryptoError(f"Expected a key and a nonce of 32 bytes and a signature of 64, got {sizes}.")
        agreement.check(member, self.signature, advertised(agreement.context, member, self.key, self.nonce))


# Cached: the result is public and follows from the arguments alone. In a simulation one process checks the
# same advertisements for many members.
@lru_cache(maxsize=2048)
def advertised(context: bytes, member: int, key: PublicKey, nonce: Commitment) -> bytes:
    """Return the bytes that a member signs in round 0 of the attempt of this context."""
    return tagged(b"advertise", context, u32(member), key.raw, nonce.raw)


@lru_cache(maxsize=8)
def one_list(members: tuple[int, ...]) -> tuple[int, ...]:
    """Return the first one of equal lists, so that what follows from it is found by its identity."""
    return members


# Stored by identity: each member needs the same lists in several texts, as a set, and counted.
@newest
def _listed(members: Sequence[int]) -> bytes:
    return listed(members)


def _confirms(closed: ClosedRoster, sender: int, receiver: int, digested: bytes) -> bytes:
    return closed.prefix(b"confirm") + u32(sender, receiver) + digested


@newest
def hashed(text: bytes) -> bytes:
    """Return the SHA-256 of a text that all members sign."""
    return hashlib.sha256(text).digest()


@newest
def alive(members: Sequence[int]) -> frozenset[int]:
    """Return a list of members as a set."""
    return frozenset(members)


@newest
def _survival(closed: ClosedRoster, dealers: Sequence[int], survivors: Sequence[int]) -> bytes:
    return tagged(b"survivors", closed.context, _listed(dealers), _listed(survivors))


@dataclass(frozen=True)
class ClosedRoster:
    """The closed, signed roster of one attempt, with the graph that follows from it.

    The server verified each entry. A client verifies its own, and those of its neighbours by their boxes
    (SPEC.md, section 6). `unsigned` verifies them all, when a box does not open.
    """

    agreement: Agreement
    entries: Mapping[int, Advertise]

    @cached_property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self.entries))

    @cached_property
    def context(self) -> bytes:
        context = self.agreement.context
        ordered = sorted(self.entries.items(), key=itemgetter(0))
        parts = [
            fields(u32(member), one.key.raw, one.nonce.raw, one.signature.raw) for member, one in ordered
        ]
        return context + digest(b"roster", context, fields(*parts))

    @cached_property
    def _prefixes(self) -> dict[bytes, bytes]:
        return {}

    def prefix(self, purpose: bytes) -> bytes:
        """Return `tagged` for a purpose under this roster: what the bytes of each of its pairs begin with."""
        if purpose not in self._prefixes:
            self._prefixes[purpose] = tagged(purpose, self.context)
        return self._prefixes[purpose]

    @cached_property
    def graph(self) -> Graph:
        # The seed depends on every member's signed nonce. So a server gains nothing by trying many sessions.
        # If it tries many rosters, the parameters have a margin of 60 bits.
        seed = digest(b"graph", self.context)
        return draw(self.members, self.agreement.parameters.neighbours, seed)

    def unsigned(self) -> int | None:
        """Return a member that did not sign its entry, or None if each did."""
        for member, entry in self.entries.items():
            try:
                entry.check(self.agreement, member)
            except CryptoError:
                return member
        return None

    def mask_seed(self, own: int, key: AgreementKey, other: int) -> SecretKey:
        """Return the seed of the mask that two members share. Raises CryptoError for a weak key."""
        pair = u32(min(own, other), max(own, other))
        purpose = self.prefix(b"mask") + pair
        return self.agreement.roster.agree(key, self.entries[other].key, purpose)

    def input_of(self, member: int, dealers: Sequence[int]) -> bytes:
        """Return the bytes that a member signs with its masked input. They name the dealers of its masks."""
        return tagged(b"input", self.context, u32(member), _listed(dealers))

    def survival(self, dealers: Sequence[int], survivors: Sequence[int]) -> bytes:
        """Return the bytes that every member signs in round 3. They name the dealers and the survivors."""
        return _survival(self, dealers, survivors)

    def surviving_neighbours(self, member: int, survivors: Set[int]) -> tuple[int, ...]:
        """Return a member's neighbours among the survivors, ascending."""
        return tuple(other for other in self.graph[member] if other in survivors)

    def lonely(self, survivors: Sequence[int]) -> int | None:
        """Return a survivor with too few surviving neighbours, or None if there is none."""
        # The server reconstructs and removes a dropped neighbour's mask. If all neighbours of an input
        # dropped or collude, only its self-mask is secret, and that is opened for every survivor.
        # Rings can give a member fewer neighbours than others, so a whole roster is asked for one too.
        few = self.graph.degrees(survivors) < self.agreement.parameters.least_degree
        return next((one for one, alone in zip(survivors, few.tolist(), strict=True) if alone), None)
