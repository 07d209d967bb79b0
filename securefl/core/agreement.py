"""The agreement of all parties of one hidden sum, made before it begins, byte for byte.

A client takes nothing of it from the server on trust. It builds the agreement from its own plan, the pinned
keys and the order it was given. Every signature of the sum is over the result. A server may show two clients
two different models, orders, cohorts or parameters. Their signatures then do not fit together, and there is
no sum.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from securefl.core.entropy import derived
from securefl.core.errors import ConfigError, CryptoError
from securefl.core.keys import PublicKey, SecretKey, Signature
from securefl.core.release import SERVER
from securefl.core.signing import SIGNATURE_BYTES, Agree, AgreementKey, SigningKey, Verify, verify
from securefl.core.text_safety import require_distinct, require_legible
from securefl.core.wire import Header

LABEL = b"securefl/secagg/3|"
LEAST_BITS, MOST_BITS = 8, 64

# One encoding -----------------------------------------------------------------------------------


def tagged(purpose: bytes, context: bytes, *rest: bytes) -> bytes:
    """Bytes for one purpose. The bytes of other purposes begin differently."""
    return b"".join((LABEL, purpose, b"|", context, *rest))


def digest(purpose: bytes, context: bytes, *rest: bytes) -> bytes:
    """SHA-256 of `tagged`."""
    return hashlib.sha256(tagged(purpose, context, *rest)).digest()


def u32(*numbers: int) -> bytes:
    """Numbers as four bytes each, little-endian."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def listed(members: Sequence[int]) -> bytes:
    """A list of members: their number, then each of them."""
    return u32(len(members), *members)


def fields(*parts: bytes) -> bytes:
    """Each part with its length in front, so that no two lists of parts have the same bytes."""
    # Without the lengths a byte can move from one part to the next and leave the whole as it was. That once
    # let a server have an honest dealer's key shown.
    return b"".join([piece for part in parts for piece in (len(part).to_bytes(4, "little"), part)])


# Who --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """A client as the others know it: its name and its two lasting public keys."""

    name: str
    identity: PublicKey
    channel: PublicKey


@dataclass(frozen=True)
class Roster:
    """The pinned cohort, in the order of names. A member's number is its place in it."""

    members: tuple[Member, ...]
    verify: Verify = field(default=verify, compare=False)
    agree: Agree = field(default=AgreementKey.agree, compare=False)

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        for name in names:
            require_legible(name, "a client's name")
        if names != sorted(set(names)) or SERVER in names:
            raise ConfigError(f"Expected distinct client names in ascending order, got {names}.")
        require_distinct(names, "client names")
        keys = [key.raw for member in self.members for key in (member.identity, member.channel)]
        if len(set(keys)) < len(keys) or any(len(key) != 32 for key in keys):
            # one party under two names would count twice in a quorum, and hide nobody in a sum
            raise ConfigError("Expected distinct keys of 32 bytes, got others: one party would count as two.")

    @cached_property
    def digest(self) -> bytes:
        parts = [fields(m.name.encode(), m.identity.raw, m.channel.raw) for m in self.members]
        return digest(b"pinned", b"", fields(*parts))

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        return {member.name: number for number, member in enumerate(self.members)}

    def names(self, members: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.members[number].name for number in members)


@dataclass(frozen=True)
class Identity:
    """A client's own lasting keys: one for signatures, one for the channel that shares travel in."""

    name: str
    signing: SigningKey
    channel: AgreementKey

    @classmethod
    def generate(cls, name: str) -> Identity:
        """Fresh keys, from the operating system's randomness."""
        return cls(name, SigningKey.generate(), AgreementKey.generate())

    @classmethod
    def of(cls, name: str, secret: SecretKey) -> Identity:
        """The keys that follow from a lasting secret, the same after a restart."""
        signing, channel = derived(secret, b"identity"), derived(secret, b"channel")
        return cls(name, SigningKey(signing), AgreementKey(channel))

    def member(self) -> Member:
        return Member(self.name, self.signing.public, self.channel.public)

    def vouch(self, purpose: bytes, context: bytes, key: bytes) -> bytes:
        """A public key that this party made for one purpose and context, under its signature."""
        return key + self.signing.sign(_vouched(purpose, context, key)).raw


def vouched(member: Member, purpose: bytes, context: bytes, said: bytes) -> bytes:
    """The public key in what `Identity.vouch` made; CryptoError unless this member made it, for this."""
    key, signature = said[:-SIGNATURE_BYTES], Signature(said[-SIGNATURE_BYTES:])
    verify(member.identity, signature, _vouched(purpose, context, key))
    return key


def _vouched(purpose: bytes, context: bytes, key: bytes) -> bytes:
    return tagged(b"vouch", context, fields(purpose, key))


@dataclass(frozen=True)
class Directory:
    """The public keys of all parties of a session, pinned before it begins.

    Nobody takes a key from a message: whoever could name a key could stand for its owner.

    Attributes:
        session: 32 bytes; another session has other keys.
        server, key_holder: their lasting keys; None for a key holder that takes no part.
        members: the clients of these names, in their order. KeyError for a name that is not pinned.
        verify, agree: how signatures are checked, and how two members come to the secret that they share.
            Whoever pins the keys says it, and could name any key.

    Raises ConfigError for a session of another length, and for a server that is its own key holder.
    """

    session: bytes
    server: Member
    key_holder: Member | None
    members: Callable[[Sequence[str]], Sequence[Member]]
    verify: Verify = verify
    agree: Agree = AgreementKey.agree

    def __post_init__(self) -> None:
        if len(self.session) != 32:
            raise ConfigError(f"Expected a session of 32 bytes, got {len(self.session)}.")
        both = (self.server, self.key_holder)
        keys = [key.raw for one in both if one is not None for key in (one.identity, one.channel)]
        if len(set(keys)) < len(keys):
            # what is hidden from the server is open to whoever has the key holder's keys
            raise ConfigError("Expected keys of server and key holder apart, got one key twice. Pin two.")

    def roster(self, cohort: Iterable[str]) -> Roster:
        """The pinned keys of a cohort. CryptoError for a client whose keys are not pinned."""
        try:
            return Roster(tuple(self.members(sorted(cohort))), self.verify, self.agree)
        except KeyError as unknown:
            raise CryptoError(f"Expected clients whose keys are pinned, got {unknown}.") from None

    def vouched(self, purpose: bytes, said: bytes) -> bytes:
        """The public key that the key holder made for this purpose, in this session.

        Raises CryptoError for a key that is not the key holder's, and ConfigError where there is none.
        """
        if self.key_holder is None:
            raise ConfigError("Expected the pinned keys of a key holder, got none. Name who it is.")
        return vouched(self.key_holder, purpose, self.session, said)


# What -------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Question:
    """One value that is opened as one sum over one set of clients, whatever stage or attempt carries it.

    Attributes:
        session: 32 bytes, of the run.
        round: the round in which it is asked. 0 for an introduction, which is asked once in a session.
        ask: i for the i-th introduction; in a round the number within it. Only introductions have round 0.
        again: how often it was put anew after an answer was lost. Only noised values are, charged each time.
    """

    session: bytes
    round: int
    name: str
    ask: int = 0
    again: int = 0


@dataclass(frozen=True, kw_only=True)
class Vector:
    """One vector to be summed modulo 2^bits. No coordinate of any client exceeds `bound` in magnitude.

    ask: which introduction it is. number: which Ask of the round it is. One of them is 0.
    once: the value cannot change in a session, so a client lets it be opened once in a session.
    """

    name: str
    length: int
    bits: int
    bound: int
    ask: int = 0
    again: int = 0
    once: bool = False
    number: int = 0

    def __post_init__(self) -> None:
        fits = LEAST_BITS <= self.bits <= MOST_BITS and 0 < self.length < 2**32 and self.bound >= 1
        if not fits or (self.ask and self.number):
            raise ConfigError(f"Expected a length, a bound, 8 to 64 bits, and `ask` or `number`, got {self}.")

    def question(self, header: Header) -> Question:
        """Which question this vector answers, in an aggregation at that place."""
        at = 0 if self.ask else header.round
        return Question(header.session, at, self.name, self.ask or self.number, self.again)

    def encoded(self) -> bytes:
        numbers = (self.length, self.bits, self.bound, self.ask, self.again, self.number, self.once)
        return fields(self.name.encode(), struct.pack("<IIQIIIB", *numbers))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The place, the cohort, the vectors, the plan and the task of one hidden sum.

    Attributes:
        header: session, round, stage, and the attempt at this sum, from 1.
        roster: the pinned cohort of this attempt.
        plan: digest of the plan, 32 bytes, each party's own.
        task: digest of the order and the broadcast, 32 bytes, as this client was given them.

    Raises ConfigError for vectors without distinct names, and for digests of another length.
    """

    header: Header
    roster: Roster
    vectors: tuple[Vector, ...]
    plan: bytes
    task: bytes

    def __post_init__(self) -> None:
        if not self.vectors or len({vector.name for vector in self.vectors}) < len(self.vectors):
            raise ConfigError("Expected one vector or more, with distinct names.")
        if {len(self.plan), len(self.task)} != {32}:
            raise ConfigError("Expected digests of plan and task of 32 bytes each.")

    @property
    def rules(self) -> bytes:
        """Digest of this way of summing's own part of the agreement."""
        return b""

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        return tuple(vector.question(self.header) for vector in self.vectors)

    @property
    def openings(self) -> tuple[Question, ...]:
        """The questions as the party that opens one total of each counts them.

        A value that cannot change is one question in the whole session.
        """
        return tuple(
            replace(question, round=0, ask=0) if vector.once else question
            for question, vector in zip(self.questions, self.vectors, strict=True)
        )

    @cached_property
    def context(self) -> bytes:
        """72 bytes that stand in every signature, key derivation and hash of the sum."""
        header = self.header
        place = header.session + struct.pack("<IHH", header.round, header.attempt, header.stage)
        vectors = fields(*(vector.encoded() for vector in self.vectors))
        whole = fields(self.plan, self.task, self.rules, self.roster.digest, vectors)
        return place + digest(b"agreement", b"", whole)

    def check(self, member: int, signature: Signature, message: bytes) -> None:
        """Raises CryptoError unless the pinned member signed this."""
        if not 0 <= member < len(self.roster.members):
            raise CryptoError(f"Expected a member of the pinned roster, got the number {member}.")
        self.roster.verify(self.roster.members[member].identity, signature, message)
