"""Agreements of secure aggregation: the public parameters that all parties of one hidden sum must share.

A client does not trust the server with any part of the agreement. The client builds it from its own plan, the
pinned keys and the server's order. Every signature of the sum covers the agreement's bytes. If a server shows
two clients different models, orders, cohorts or parameters, their signatures do not verify together, and no
sum opens.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

from securefl.core.entropy import derived, drawn
from securefl.core.errors import ConfigError, CryptoError
from securefl.core.formats import LABEL
from securefl.core.keys import PublicKey, SecretKey, Signature
from securefl.core.release import SERVER
from securefl.core.signing import SIGNATURE_BYTES, Agree, AgreementKey, Signed, SigningKey, Verify, verify
from securefl.core.text_safety import require_distinct, require_legible
from securefl.core.wire import Header

LEAST_BITS, MOST_BITS = 8, 64
_MOST_ROSTERS = 8

# One encoding -----------------------------------------------------------------------------------


def tagged(purpose: bytes, context: bytes, *rest: bytes) -> bytes:
    """Return bytes for one purpose. The bytes of every other purpose begin differently."""
    return b"".join((LABEL, purpose, b"|", context, *rest))


def digest(purpose: bytes, context: bytes, *rest: bytes) -> bytes:
    """SHA-256 of `tagged`."""
    return hashlib.sha256(tagged(purpose, context, *rest)).digest()


def u32(*numbers: int) -> bytes:
    """Encode numbers as four bytes each, little-endian."""
    return _numbers(len(numbers)).pack(*numbers)


@lru_cache(maxsize=64)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


def listed(members: Sequence[int]) -> bytes:
    """Encode a list of members: the length, then each member."""
    return u32(len(members), *members)


def fields(*parts: bytes) -> bytes:
    """Encode each part with its length in front, so that different lists of parts have different bytes."""
    # Without the lengths a byte can move from one part to the next and the whole stays the same. A server
    # once used that to make clients open an honest dealer's key.
    return b"".join([piece for part in parts for piece in (len(part).to_bytes(4, "little"), part)])


# Parties ----------------------------------------------------------------------------------------


def _random() -> SecretKey:
    return SecretKey(os.urandom(32))


class Made(Protocol):
    """What the parties of one process made, so that the receiver need not make or check it again.

    `what` says everything on which the receiver's check depends: the place, the two parties, and each byte.
    A party on a machine of its own has none.
    """

    def made(self, what: tuple[bytes, ...], result: Any) -> None:
        """Its maker says what a check of these bytes gives."""

    def found(self, what: tuple[bytes, ...]) -> Any:
        """Return the result for the one receiver, or None: then the receiver checks."""


@dataclass(frozen=True)
class Member:
    """The public side of a client: its name and its two long-term public keys. Raises nothing.

    >>> from securefl.secagg import Identity
    >>> member = Identity.generate("client-0000").member()
    >>> member.name, len(member.identity.raw), len(member.channel.raw)
    ('client-0000', 32, 32)
    """

    name: str
    identity: PublicKey
    channel: PublicKey


@dataclass(frozen=True)
class Roster:
    """The pinned cohort, sorted by name. A member's number is its index in `members`.

    Raises:
        ConfigError: if names are not distinct, legible and ascending, if a name is "server", or if two keys
            are equal or a key is not 32 bytes long.

    >>> from securefl.secagg import Identity, Roster
    >>> roster = Roster(tuple(Identity.generate(name).member() for name in ("client-0000", "client-0001")))
    >>> roster.numbers["client-0001"], roster.names([0])
    (1, ('client-0000',))
    """

    members: tuple[Member, ...]
    verify: Verify = field(default=verify, compare=False)
    agree: Agree = field(default=AgreementKey.agree, compare=False)
    known: Made | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        for name in names:
            require_legible(name, "a client's name")
        if names != sorted(set(names)) or SERVER in names:
            raise ConfigError(f"Expected distinct client names in ascending order, got {names}.")
        require_distinct(names, "client names")
        keys = [key.raw for member in self.members for key in (member.identity, member.channel)]
        if len(set(keys)) < len(keys) or any(len(key) != 32 for key in keys):
            # one party under two names would count twice in a quorum, and would hide no other client's value
            raise ConfigError(
                f"Expected distinct keys of 32 bytes, got {len(set(keys))} distinct ones among {len(keys)}, "
                f"of {sorted({len(key) for key in keys})} bytes: one party would count as two. Pin each "
                "party's own line."
            )

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
    """A party's own long-term keys: one for signatures, one for the channel that carries shares.

    draws: the secret that its training draws from, between machines (`training`).
    Raises nothing.

    >>> from securefl.sums import Identity
    >>> identity = Identity.generate("client-0000")
    >>> identity.member().identity == identity.signing.public
    True
    """

    name: str
    signing: SigningKey
    channel: AgreementKey
    draws: SecretKey = field(default_factory=_random, compare=False, repr=False)

    @classmethod
    def generate(cls, name: str) -> Identity:
        """Return fresh keys from the operating system's randomness."""
        return cls(name, SigningKey.generate(), AgreementKey.generate())

    @classmethod
    def of(cls, name: str, secret: SecretKey) -> Identity:
        """Derive the keys from a long-term secret. They are the same after a restart."""
        signing, channel = derived(secret, b"identity"), derived(secret, b"channel")
        return cls(name, SigningKey(signing), AgreementKey(channel), derived(secret, b"training"))

    def member(self) -> Member:
        return Member(self.name, self.signing.public, self.channel.public)

    def training(self, session: bytes) -> Callable[[bytes], bytes]:
        """Return a function of places to 32 uniform bytes. The bytes of another session are unrelated."""
        return lambda place: drawn(self.draws, fields(session, place))(32)

    def heard_by(self, signed: Signed) -> Identity:
        """Return the same keys. This function hears of each signature that they make."""
        return replace(self, signing=replace(self.signing, signed=signed))

    def vouch(self, purpose: bytes, context: bytes, key: bytes) -> bytes:
        """Return a public key of this party for one purpose and context, and this party's signature of it."""
        return key + self.signing.sign(_vouched(purpose, context, key)).raw


def vouched(member: Member, purpose: bytes, context: bytes, said: bytes) -> bytes:
    """Return the public key in the output of `Identity.vouch`.

    Raises CryptoError unless this member signed it for this purpose and context.
    """
    key, signature = said[:-SIGNATURE_BYTES], Signature(said[-SIGNATURE_BYTES:])
    verify(member.identity, signature, _vouched(purpose, context, key))
    return key


def _vouched(purpose: bytes, context: bytes, key: bytes) -> bytes:
    return tagged(b"vouch", context, fields(purpose, key))


@dataclass(frozen=True)
class Directory:
    """The public keys of all parties of a session, pinned before the session begins.

    No party takes a key from a message: a sender that could choose a key could impersonate the key's owner.

    Attributes:
        session: 32 bytes. Each session has its own keys.
        server, key_holder: their long-term keys. `key_holder` is None if no key holder takes part.
        members: a function that returns the clients of these names, in the same order. It raises KeyError
            for a name that is not pinned.
        verify, agree: functions that check a signature, and that derive the secret of two members. The party
            that pins the keys supplies them. It could pin any key, so this gives it no further power.
        signed: hears of each signature that a client makes in a hidden sum; None if nobody does.
        known: knows what clients of this process made for each other; None if they are apart.

    Raises:
        ConfigError: if the session is not 32 bytes long, or if the server and the key holder share a key.

    >>> from securefl.sums import Directory, Identity
    >>> keys = {name: Identity.generate(name).member() for name in ("client-0000", "client-0001", "server")}
    >>> directory = Directory(bytes(32), keys["server"], None, lambda names: [keys[name] for name in names])
    >>> directory.roster(["client-0001", "client-0000"]).numbers["client-0001"]
    1
    """

    session: bytes
    server: Member
    key_holder: Member | None
    members: Callable[[Sequence[str]], Sequence[Member]]
    verify: Verify = verify
    agree: Agree = AgreementKey.agree
    signed: Signed | None = None
    known: Made | None = None

    def __post_init__(self) -> None:
        if len(self.session) != 32:
            raise ConfigError(f"Expected a session of 32 bytes, got {len(self.session)}.")
        both = (self.server, self.key_holder)
        keys = [key.raw for one in both if one is not None for key in (one.identity, one.channel)]
        if len(set(keys)) < len(keys):
            # the key holder's keys open values that are hidden from the server
            raise ConfigError("Expected keys of server and key holder apart, got one key twice. Pin two.")

    def roster(self, cohort: Iterable[str]) -> Roster:
        """Return the pinned keys of a cohort. Raises CryptoError if the keys of a client are not pinned."""
        names = tuple(sorted(cohort))
        if (found := self._rosters.get(names)) is not None:
            return found
        try:
            made = Roster(tuple(self.members(names)), self.verify, self.agree, self.known)
        except KeyError as unknown:
            raise CryptoError(f"Expected clients whose keys are pinned, got {unknown}.") from None
        if len(self._rosters) >= _MOST_ROSTERS:
            del self._rosters[next(iter(self._rosters))]  # the oldest
        self._rosters[names] = made
        return made

    @cached_property
    def _rosters(self) -> dict[tuple[str, ...], Roster]:
        """The newest cohorts' rosters: parties of a process ask for one several times in a round."""
        return {}

    def vouched(self, purpose: bytes, said: bytes) -> bytes:
        """Return the public key that the key holder signed for this purpose in this session.

        Raises CryptoError if the key holder did not sign the key, and ConfigError if no key holder is pinned.
        """
        if self.key_holder is None:
            raise ConfigError("Expected the pinned keys of a key holder, got none. Name who it is.")
        return vouched(self.key_holder, purpose, self.session, said)


# The agreement ----------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Question:
    """One value that may be opened as one sum over one set of clients, in any stage or attempt.

    Raises nothing.

    Attributes:
        session: 32 bytes, of the run.
        round: the round of the query. 0 for an initial query, which is made once in a session.
        ask: i for the i-th initial query; in a round, the number of the query within the round. Only initial
            queries have round 0.
        again: the number of retries after an answer was lost. Only noised values are retried, and each retry
            is charged.

    >>> from securefl.secagg import Question
    >>> Question(bytes(32), 3, "update") < Question(bytes(32), 4, "update")
    True
    """

    session: bytes
    round: int
    name: str
    ask: int = 0
    again: int = 0


@dataclass(frozen=True, kw_only=True)
class Vector:
    """One vector to be summed modulo 2^bits. No coordinate of any client exceeds `bound` in magnitude.

    Attributes:
        length: the number of entries.
        bits: 8 to 64.
        ask: the number of the initial query, or 0.
        number: the number of the query within its round, or 0. `ask` or `number` is 0.
        again: the number of retries.
        once: the value is constant in a session, so a client lets it be opened once in a session.
        sum_bound: the largest magnitude of an entry of the sum, where the clients' weights keep it below
            clients * bound. 0: the clients' bounds together. No message has it: `bits` says all that
            another party must know.

    Raises:
        ConfigError: if `bits` is not in 8 to 64, if `length` or `bound` is below 1, if `length` is 2^32 or
            more, if `sum_bound` is below 0, or if both `ask` and `number` are set.

    >>> from securefl.secagg import Vector
    >>> vector = Vector(name="update", length=4, bits=32, bound=2**20)
    >>> vector.once
    False
    """

    name: str
    length: int
    bits: int
    bound: int
    ask: int = 0
    again: int = 0
    once: bool = False
    number: int = 0
    sum_bound: int = 0

    def __post_init__(self) -> None:
        fits = LEAST_BITS <= self.bits <= MOST_BITS and 0 < self.length < 2**32 and self.bound >= 1
        if not fits or (self.ask and self.number) or self.sum_bound < 0:
            raise ConfigError(f"Expected a length, a bound, 8 to 64 bits, and `ask` or `number`, got {self}.")

    def require_room(self, clients: int) -> None:
        """Raises ConfigError unless sums over so many clients fit. One that wraps looks like any other."""
        most = self.sum_bound or clients * self.bound
        # Half of the residues are negative sums, so the largest sum must stay below the other half.
        if most >= 1 << (self.bits - 1):
            raise ConfigError(
                f"Expected room for sums up to {most} of {clients} clients, got the {self.bits} bits of "
                f"{self.name!r}. Widen it or tighten the bound."
            )

    def question(self, header: Header) -> Question:
        """Return the question that this vector answers in an aggregation at that place."""
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
        plan: digest of the party's own plan, 32 bytes.
        task: digest of the order and the broadcast that the party received, 32 bytes.

    Raises:
        ConfigError: if there is no vector, if two vectors have one name, or if a digest is not 32 bytes long.

    >>> from securefl.secagg import Roster, Vector
    >>> from securefl.sums import Agreement, Header, Identity
    >>> roster = Roster((Identity.generate("client-0000").member(),))
    >>> place = Header(session=bytes(32), round=1, attempt=1, stage=0)
    >>> vector = Vector(name="update", length=4, bits=32, bound=100)
    >>> len(Agreement(header=place, roster=roster, vectors=(vector,), plan=bytes(32), task=bytes(32)).context)
    72
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
        """Digest of the parameters that this sum scheme adds to the agreement."""
        return b""

    @cached_property
    def names(self) -> list[str]:
        """The names of the vectors."""
        return [vector.name for vector in self.vectors]

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        return tuple(vector.question(self.header) for vector in self.vectors)

    @property
    def openings(self) -> tuple[Question, ...]:
        """The questions for the record of a party that opens totals, and may open one total for each.

        A value that is constant in a session is one question in the whole session.
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
        """Raise CryptoError unless the pinned member signed this message."""
        if not 0 <= member < len(self.roster.members):
            raise CryptoError(f"Expected a member of the pinned roster, got the number {member}.")
        self.roster.verify(self.roster.members[member].identity, signature, message)
