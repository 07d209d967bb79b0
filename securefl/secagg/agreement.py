"""What all parties of one aggregation agree on before it begins, and how it enters every hash and key.

`Agreement.context` names the place (session, round, attempt, stage), the terms (parameters and
vectors) and the pinned roster; it goes into every signature, key derivation and hash. Once the roster
of round 0 is closed, `Closed.context` adds its digest, which holds a fresh nonce of every member.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from securefl.errors import ConfigError, CryptoError
from securefl.keys import Commitment, PublicKey, SecretKey, Signature
from securefl.release import SERVER
from securefl.secagg.graph import Graph, draw
from securefl.secagg.packing import LEAST_BITS, MOST_BITS, packed_bytes
from securefl.secagg.parameters import Parameters
from securefl.signing import AgreementKey, SigningKey, verify
from securefl.wire import Header

LABEL = b"securefl/secagg/1|"


def tagged(purpose: bytes, context: bytes, *rest: bytes) -> bytes:
    """Bytes for one purpose alone: no other purpose's bytes begin alike."""
    return b"".join((LABEL, purpose, b"|", context, *rest))


def digest(purpose: bytes, context: bytes, *rest: bytes) -> bytes:
    """SHA-256 of `tagged`."""
    return hashlib.sha256(tagged(purpose, context, *rest)).digest()


def u32(*numbers: int) -> bytes:
    """Numbers as four bytes each, little-endian."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def listed(members: Sequence[int]) -> bytes:
    """A list of members: how many, then each."""
    return u32(len(members), *members)


@dataclass(frozen=True, kw_only=True)
class Vector:
    """One vector to be summed modulo 2^bits; no coordinate of any client exceeds `bound` in magnitude."""

    name: str
    length: int
    bits: int
    bound: int

    def __post_init__(self) -> None:
        if not LEAST_BITS <= self.bits <= MOST_BITS or not 0 < self.length < 2**32 or self.bound < 1:
            raise ConfigError(f"Expected a length, a bound and {LEAST_BITS} to {MOST_BITS} bits, got {self}.")

    @property
    def size(self) -> int:
        """Bytes of this vector on the wire, headers left out."""
        return packed_bytes(self.length, self.bits)

    def encoded(self) -> bytes:
        name = self.name.encode()
        return u32(len(name)) + name + struct.pack("<IIQ", self.length, self.bits, self.bound)


@dataclass(frozen=True)
class Member:
    """A client as the others know it: its name and its two lasting public keys."""

    name: str
    identity: PublicKey
    channel: PublicKey


@dataclass(frozen=True)
class Roster:
    """The pinned cohort, in the order of names; a member's number is its place in it."""

    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        if names != sorted(set(names)) or SERVER in names:
            raise ConfigError(f"Expected distinct client names in ascending order, got {names}.")
        keys = [key.raw for member in self.members for key in (member.identity, member.channel)]
        if len(set(keys)) < len(keys) or any(len(key) != 32 for key in keys):
            raise ConfigError("Expected distinct keys of 32 bytes each: one party must not stand for two.")

    @cached_property
    def digest(self) -> bytes:
        names = [member.name.encode() for member in self.members]
        parts = [
            u32(len(name)) + name + member.identity.raw + member.channel.raw
            for name, member in zip(names, self.members, strict=True)
        ]
        return digest(b"pinned", b"", u32(len(parts)), *parts)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        return {member.name: number for number, member in enumerate(self.members)}

    def names(self, members: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.members[number].name for number in members)


@dataclass(frozen=True)
class Identity:
    """A client's own lasting keys: signatures, and the channel that shares travel in."""

    name: str
    signing: SigningKey
    channel: AgreementKey

    @classmethod
    def generate(cls, name: str) -> Identity:
        """Fresh keys, from the operating system's randomness."""
        return cls(name, SigningKey.generate(), AgreementKey.generate())

    def member(self) -> Member:
        return Member(self.name, self.signing.public, self.channel.public)


class Channels:
    """The secrets that one client shares with each other member, agreed once per session."""

    def __init__(self, identity: Identity, roster: Roster, session: bytes) -> None:
        self.identity = identity
        self.roster = roster
        self.session = session
        self.own = roster.numbers.get(identity.name, -1)
        if self.own < 0 or roster.members[self.own] != identity.member():
            raise ConfigError(f"{identity.name} is not in the roster with these keys.")
        self._secrets: dict[int, SecretKey] = {}

    def secret(self, other: int) -> SecretKey:
        """32 bytes that only the two know. CryptoError for a weak key."""
        if other not in self._secrets:
            pair = u32(min(self.own, other), max(self.own, other))
            purpose = tagged(b"channel", self.session + self.roster.digest, pair)
            self._secrets[other] = self.identity.channel.agree(self.roster.members[other].channel, purpose)
        return self._secrets[other]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The place, the pinned cohort, the parameters and the vectors of one aggregation.

    Raises:
        ConfigError: the cohort's size is not the parameters', or a sum could wrap around.
    """

    header: Header
    roster: Roster
    parameters: Parameters
    vectors: tuple[Vector, ...]

    def __post_init__(self) -> None:
        clients = len(self.roster.members)
        if clients != self.parameters.clients:
            raise ConfigError(f"Expected a roster of {self.parameters.clients} clients, got {clients}.")
        if not self.vectors or len({vector.name for vector in self.vectors}) < len(self.vectors):
            raise ConfigError("Expected one vector or more, with distinct names.")
        for vector in self.vectors:
            if clients * vector.bound >= 1 << (vector.bits - 1):
                raise ConfigError(
                    f"{clients} clients of at most {vector.bound} each need more than the {vector.bits} bits "
                    f"of {vector.name!r}: widen it or tighten the bound."
                )

    @cached_property
    def context(self) -> bytes:
        header = self.header
        place = header.session + struct.pack("<IHH", header.round, header.attempt, header.stage)
        terms = digest(
            b"terms", self.parameters.digest(), u32(len(self.vectors)), *(v.encoded() for v in self.vectors)
        )
        return place + terms + self.roster.digest

    def check(self, member: int, signature: Signature, message: bytes) -> None:
        """CryptoError unless the pinned member signed this."""
        verify(self.roster.members[member].identity, signature, message)


@dataclass(frozen=True)
class Entry:
    """What one member advertised: keys and nonce fresh for this attempt, and its signature over them."""

    key: PublicKey
    nonce: Commitment
    signature: Signature

    def check(self, agreement: Agreement, member: int) -> None:
        """CryptoError unless the lengths are right and the pinned member signed this for this place."""
        if len(self.key.raw) != 32 or len(self.nonce.raw) != 32 or len(self.signature.raw) != 64:
            raise CryptoError("Expected a key and a nonce of 32 bytes and a signature of 64.")
        agreement.check(member, self.signature, advertised(agreement, member, self.key, self.nonce))


def advertised(agreement: Agreement, member: int, key: PublicKey, nonce: Commitment) -> bytes:
    """What a member signs in round 0."""
    return tagged(b"advertise", agreement.context, u32(member), key.raw, nonce.raw)


@dataclass(frozen=True)
class Closed:
    """The closed, signed roster of one attempt, with the graph that follows from it."""

    agreement: Agreement
    entries: Mapping[int, Entry]

    @cached_property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self.entries))

    @cached_property
    def context(self) -> bytes:
        parts = [
            u32(member) + entry.key.raw + entry.nonce.raw + entry.signature.raw
            for member, entry in sorted(self.entries.items())
        ]
        return self.agreement.context + digest(b"roster", self.agreement.context, u32(len(parts)), *parts)

    @cached_property
    def graph(self) -> Graph:
        seed = digest(b"graph", self.context)
        return draw(self.members, self.agreement.parameters.neighbours, seed)

    def mask_seed(self, own: int, key: AgreementKey, other: int) -> SecretKey:
        """The seed of the mask that two members share. CryptoError for a weak key."""
        pair = u32(min(own, other), max(own, other))
        return key.agree(self.entries[other].key, tagged(b"mask", self.context, pair))

    def input_of(self, member: int, dealers: Sequence[int]) -> bytes:
        """What a member signs with its masked input: among whose masks it stands."""
        return tagged(b"input", self.context, u32(member), listed(dealers))

    def survival(self, dealers: Sequence[int], survivors: Sequence[int]) -> bytes:
        """What every member signs in round 3: who dealt, and who of them survived."""
        return tagged(b"survivors", self.context, listed(dealers), listed(survivors))

    def lonely(self, survivors: Sequence[int]) -> int | None:
        """A survivor with too few surviving neighbours, if there is one."""
        alive = set(survivors)
        for member in survivors:
            near = sum(other in alive for other in self.graph.neighbours[member])
            if near < self.agreement.parameters.least_degree:
                return member
        return None
