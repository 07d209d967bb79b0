"""The agreement of the members of one masked sum, and how it enters every hash and key.

`Agreement.context` names the place and everything a client acts on. It goes into every signature, key
derivation and hash. Once the roster of round 0 is closed, `ClosedRoster.context` adds the roster's digest.
That digest covers a fresh nonce of every member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter

from securefl.core import agreement
from securefl.core.agreement import Identity, Roster, digest, fields, listed, tagged, u32
from securefl.core.errors import ConfigError, CryptoError
from securefl.core.keys import Commitment, PublicKey, SecretKey, Signature
from securefl.core.signing import AgreementKey
from securefl.secagg.graph import Graph, draw
from securefl.secagg.policy import Parameters


class Channels:
    """The secrets that one client shares with each other member, agreed once per session."""

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

    def secret(self, other: int) -> SecretKey:
        """32 bytes that only the two know. CryptoError for a weak key."""
        if other not in self._secrets:
            # smaller number first, so that both members derive the same secret
            pair = u32(min(self.own, other), max(self.own, other))
            purpose = tagged(b"channel", self.session + self.roster.digest, pair)
            theirs = self.roster.members[other].channel
            self._secrets[other] = self.roster.agree(self.identity.channel, theirs, purpose)
        return self._secrets[other]


@dataclass(frozen=True, kw_only=True)
class Agreement(agreement.Agreement):
    """The agreement of one masked sum, with the parameters that every client works out itself.

    Raises:
        ConfigError: the cohort's size is not the parameters', or a sum could wrap around.
    """

    parameters: Parameters

    def __post_init__(self) -> None:
        super().__post_init__()
        clients = len(self.roster.members)
        if clients != self.parameters.clients:
            raise ConfigError(f"Expected a roster of {self.parameters.clients} clients, got {clients}.")
        for vector in self.vectors:
            # Checked before anybody sends: a sum that wraps around looks like any other. One bit is the sign.
            if clients * vector.bound >= 1 << (vector.bits - 1):
                raise ConfigError(
                    f"Expected room for {clients} clients of at most {vector.bound} each, got the "
                    f"{vector.bits} bits of {vector.name!r}. Widen it or tighten the bound."
                )

    @property
    def rules(self) -> bytes:
        return self.parameters.digest()


@dataclass(frozen=True)
class Entry:
    """A member's advertisement: a key and a nonce, both fresh for this attempt, and a signature over them."""

    key: PublicKey
    nonce: Commitment
    signature: Signature

    def check(self, agreement: Agreement, member: int) -> None:
        """Raises CryptoError unless lengths are right and the pinned member signed this for this place."""
        if len(self.key.raw) != 32 or len(self.nonce.raw) != 32 or len(self.signature.raw) != 64:
            raise CryptoError("Expected a key and a nonce of 32 bytes and a signature of 64.")
        agreement.check(member, self.signature, advertised(agreement, member, self.key, self.nonce))


def advertised(agreement: Agreement, member: int, key: PublicKey, nonce: Commitment) -> bytes:
    """The bytes that a member signs in round 0."""
    return _advertised(agreement.context, member, key.raw, nonce.raw)


# Remembered: all of it is public and follows from its arguments alone, and a party may stand for many members
# who each read all the others'.
@lru_cache(maxsize=2048)
def _advertised(context: bytes, member: int, key: bytes, nonce: bytes) -> bytes:
    return tagged(b"advertise", context, u32(member), key, nonce)


# Remembered: it follows from its arguments alone, and a party may stand for many members.
@lru_cache(maxsize=4)
def _closed_context(context: bytes, entries: tuple[tuple[int, Entry], ...]) -> bytes:
    parts = [fields(u32(member), one.key.raw, one.nonce.raw, one.signature.raw) for member, one in entries]
    return context + digest(b"roster", context, fields(*parts))


@dataclass(frozen=True)
class ClosedRoster:
    """The closed, signed roster of one attempt, with the graph that follows from it."""

    agreement: Agreement
    entries: Mapping[int, Entry]

    @cached_property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self.entries))

    @cached_property
    def context(self) -> bytes:
        return _closed_context(self.agreement.context, tuple(sorted(self.entries.items(), key=itemgetter(0))))

    @cached_property
    def graph(self) -> Graph:
        # The seed depends on every member's signed nonce. A server that tries many sessions changes nothing;
        # the parameters keep 60 bits against one that tries many rosters.
        seed = digest(b"graph", self.context)
        return draw(self.members, self.agreement.parameters.neighbours, seed)

    def mask_seed(self, own: int, key: AgreementKey, other: int) -> SecretKey:
        """The seed of the mask that two members share. Raises CryptoError for a weak key."""
        pair = u32(min(own, other), max(own, other))
        purpose = tagged(b"mask", self.context, pair)
        return self.agreement.roster.agree(key, self.entries[other].key, purpose)

    def input_of(self, member: int, dealers: Sequence[int]) -> bytes:
        """The bytes that a member signs with its masked input.

        They name the dealers whose masks are on it.
        """
        return tagged(b"input", self.context, u32(member), listed(dealers))

    def survival(self, dealers: Sequence[int], survivors: Sequence[int]) -> bytes:
        """The bytes that every member signs in round 3.

        They name the dealers and the survivors among them.
        """
        return tagged(b"survivors", self.context, listed(dealers), listed(survivors))

    def lonely(self, survivors: Sequence[int]) -> int | None:
        """Return a survivor with too few surviving neighbours, or None if there is none."""
        # A dropped neighbour's mask is reconstructed and taken off. An input whose neighbours all dropped or
        # collude would have no secret mask left but its own, which is opened for every survivor.
        neighbours, least = self.graph.neighbours, self.agreement.parameters.least_degree
        dropped = set(self.members).difference(survivors)
        # Counted from who dropped, who are few. The graph is symmetric: each of them is one neighbour less to
        # each of its own.
        lost = Counter(near for member in dropped for near in neighbours[member])
        return next((one for one in survivors if len(neighbours[one]) - lost[one] < least), None)
