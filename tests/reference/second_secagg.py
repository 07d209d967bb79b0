"""A second secure aggregation, written from securefl/secagg/SPEC.md alone, with nothing of securefl in it.

Plain and slow: it exists to disagree with the first where the specification or the first is wrong. Section
numbers are those of the specification. Everything is bytes, plain integers, lists and dictionaries by member
number; a refusal is `Refused`. It keeps no secrets from memory or clocks: never use it for real.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import comb

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PRIME = 2**256 + 297
LABEL = b"securefl/8|"


class Refused(Exception):
    """Another party did what the specification forbids."""


def demand(condition: bool, what: str) -> None:
    if not condition:
        raise Refused(what)


# 1. Notation


def u16(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}H", *numbers)


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def listed(members: Sequence[int]) -> bytes:
    return u32(len(members), *members)


def fields(*parts: bytes) -> bytes:
    """Each part with its length in front: no two lists of parts have the same bytes."""
    found = b""
    for part in parts:
        found += u32(len(part)) + part
    return found


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def text(purpose: str, context: bytes, rest: bytes) -> bytes:
    return LABEL + purpose.encode() + b"|" + context + rest


def digest(purpose: str, context: bytes, rest: bytes) -> bytes:
    return sha256(text(purpose, context, rest))


def hkdf(secret: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)


def x25519(secret: bytes, public: bytes) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as problem:  # all zeros, or not 32 bytes
        raise Refused("key of small order or wrong length") from problem


def x25519_public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, message: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret).sign(message)


def verify(public: bytes, message: bytes, signature: bytes) -> None:
    demand(len(signature) == 64, "a signature has 64 bytes")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature as problem:
        raise Refused("signature does not hold") from problem


def ascends(members: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(members))


# 2. What is agreed on before


@dataclass(frozen=True)
class Vector:
    """`ask`, `number` and `again` say which of the declared asks it is.

    `once` says that it cannot change in a session.
    """

    name: str
    length: int
    bits: int
    bound: int
    ask: int = 0
    again: int = 0
    once: bool = False
    number: int = 0

    def encoded(self) -> bytes:
        numbers = u32(self.length, self.bits) + u64(self.bound) + u32(self.ask, self.again, self.number)
        return fields(self.name.encode(), numbers + bytes([self.once]))


@dataclass(frozen=True)
class Agreed:
    """Members are (name, identity key, channel key).

    `sum_bounds` bounds each vector's sum where public weights do, which no message says. Where it has 0, or
    nothing, all members may be at their bound.
    """

    session: bytes
    round: int
    attempt: int
    stage: int
    members: tuple[tuple[str, bytes, bytes], ...]
    active: bool
    ordered: int
    corrupt: int
    neighbours: int
    threshold: int
    quorum: int
    least_survivors: int
    least_degree: int
    vectors: tuple[Vector, ...]
    plan: bytes
    task: bytes
    sum_bounds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        n, c, floor = len(self.members), self.corrupt, max(self.quorum, self.threshold, self.corrupt + 2)
        majority = (self.ordered + c) // 2 + 1 if self.active else max(self.ordered // 2, c) + 1
        demand(n <= self.ordered, "more clients than were ordered")
        demand(not self.active or self.quorum >= majority, "too low a quorum")
        demand(self.neighbours != n - 1 or self.threshold >= majority, "too low a threshold")
        demand(floor <= self.least_survivors <= n, "too few least survivors")
        demand(len(self.plan) == len(self.task) == 32, "digests of plan and task have 32 bytes")
        names = [name for name, _, _ in self.members]
        demand(names == sorted(set(names)) and "server" not in names, "names that do not ascend, or reserved")
        demand(len({key for _, *both in self.members for key in both}) == 2 * n, "a key twice")
        demand(
            len({vector.name for vector in self.vectors}) == len(self.vectors) > 0, "a vector twice, or none"
        )
        for vector, most in zip(self.vectors, self.sum_bounds or [0] * len(self.vectors), strict=True):
            demand(8 <= vector.bits <= 64, "bits out of range")
            demand((most or n * vector.bound) < 2 ** (vector.bits - 1), "a sum could wrap around")

    def roster_digest(self) -> bytes:
        return digest("pinned", b"", fields(*(fields(name.encode(), *keys) for name, *keys in self.members)))

    def parameter_digest(self) -> bytes:
        sizes = (self.ordered, len(self.members), self.corrupt, self.neighbours, self.threshold, self.quorum)
        mode = 0 if self.active else 1
        return sha256(
            text("secagg/parameters", b"", u32(mode, *sizes, self.least_survivors, self.least_degree))
        )

    def context(self) -> bytes:
        return self.context_under(self.parameter_digest())

    def context_under(self, rules: bytes) -> bytes:
        """Encrypted sums have no parameters: their rules are empty."""
        place = self.session + u32(self.round) + u16(self.attempt) + u16(self.stage)
        vectors = fields(*(vector.encoded() for vector in self.vectors))
        parts = fields(self.plan, self.task, rules, self.roster_digest(), vectors)
        return place + digest("agreement", b"", parts)

    def signers(self) -> int:
        """The fewest who open a sum."""
        if self.active:
            return self.quorum
        whole, rest = divmod(self.least_survivors * self.threshold, self.neighbours + 1)
        return whole + (rest > 0)

    def questions(self) -> tuple[tuple[int, str, int, int], ...]:
        """Round, name, ask and again of what each vector answers."""
        return tuple((0 if v.ask else self.round, v.name, v.ask or v.number, v.again) for v in self.vectors)

    def identity(self, number: int) -> bytes:
        demand(0 <= number < len(self.members), "not a member of the pinned roster")
        return self.members[number][1]


def channel_secret(agreed: Agreed, own: int, secret: bytes, other: int) -> bytes:
    info = text("channel", agreed.session + agreed.roster_digest(), u32(min(own, other), max(own, other)))
    return hkdf(x25519(secret, agreed.members[other][2]), info)


# 4. Round 0: advertise


@dataclass(frozen=True)
class Entry:
    number: int
    mask_key: bytes
    nonce: bytes
    signature: bytes


def advertise_text(context: bytes, number: int, mask_key: bytes, nonce: bytes) -> bytes:
    return text("advertise", context, u32(number) + mask_key + nonce)


def check_entry(agreed: Agreed, entry: Entry) -> None:
    demand(len(entry.mask_key) == 32 and len(entry.nonce) == 32, "key and nonce have 32 bytes")
    signed = advertise_text(agreed.context(), entry.number, entry.mask_key, entry.nonce)
    verify(agreed.identity(entry.number), signed, entry.signature)


def close_roster(agreed: Agreed, entries: Sequence[Entry]) -> bytes:
    """CONTEXT. The server checks every signature beside, and a client only if a box does not open."""
    demand(ascends([entry.number for entry in entries]), "the closed roster does not ascend")
    demand(len(entries) >= agreed.least_survivors, "the closed roster is too short")
    for entry in entries:
        agreed.identity(entry.number)
        demand(len(entry.mask_key) == 32 and len(entry.nonce) == 32, "key and nonce have 32 bytes")
        demand(len(entry.signature) == 64, "a signature has 64 bytes")
    rows = [fields(u32(entry.number), entry.mask_key, entry.nonce, entry.signature) for entry in entries]
    return agreed.context() + digest("roster", agreed.context(), fields(*rows))


# 5. The graph


class Below:
    """Integers below bounds, drawn in order from one keystream."""

    def __init__(self, seed: bytes) -> None:
        self.stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()

    def draw(self, bound: int) -> int:
        while True:
            word = int.from_bytes(self.stream.update(bytes(8)), "little")
            if word < 2**64 - 2**64 % bound:
                return word % bound


def rings(CONTEXT: bytes, members: Sequence[int], neighbours: int) -> list[list[int]]:
    stream = Cipher(algorithms.AES(digest("graph", CONTEXT, b"")), modes.CTR(bytes(16))).encryptor()
    found = []
    for _ in range(neighbours // 2):
        words = [int.from_bytes(stream.update(bytes(8)), "little") for _ in members]
        found.append([member for _, member in sorted(zip(words, members, strict=True))])
    return found


def graph(CONTEXT: bytes, members: Sequence[int], neighbours: int) -> dict[int, list[int]]:
    """The neighbours of every member, ascending."""
    if neighbours >= len(members) - 1:
        return {a: [b for b in members if b != a] for a in members}
    joined: dict[int, set[int]] = {member: set() for member in members}
    for ring in rings(CONTEXT, members, neighbours):
        for before, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            joined[before].add(after)
            joined[after].add(before)
    return {member: sorted(others) for member, others in joined.items()}


# 6. Round 1: shares


def split(secret: bytes, holders: Sequence[int], coefficients: Sequence[int]) -> dict[int, bytes]:
    """The coefficients of x, x^2, ...: as many as the threshold less one."""
    powers = [int.from_bytes(secret, "little"), *coefficients]
    value = {h: sum(c * pow(h + 1, e, PRIME) for e, c in enumerate(powers)) % PRIME for h in holders}
    return {h: number.to_bytes(33, "little") for h, number in value.items()}


def combine(shares: dict[int, bytes], threshold: int) -> bytes:
    demand(len(shares) >= threshold, "fewer shares than the threshold")
    value = {}
    for holder in sorted(shares)[:threshold]:
        demand(len(shares[holder]) == 33, "a share has 33 bytes")
        value[holder + 1] = int.from_bytes(shares[holder], "little")
        demand(value[holder + 1] < PRIME, "a share is below the prime")
    secret = 0
    for x, y in value.items():
        top, bottom = 1, 1
        for z in value:
            if z != x:
                top, bottom = top * z % PRIME, bottom * (z - x) % PRIME
        secret = (secret + y * top * pow(bottom, -1, PRIME)) % PRIME
    demand(secret < 2**256, "the shares make up no secret of 32 bytes")
    return secret.to_bytes(32, "little")


def marks(CONTEXT: bytes, dealer: int, holder: int, opened_seed: bytes, opened_key: bytes) -> bytes:
    pair = u32(dealer, holder)
    first = digest("seed-share", CONTEXT, pair + opened_seed)
    return first + digest("key-share", CONTEXT, pair + opened_key)


def seed_mark(CONTEXT: bytes, dealer: int, seed: bytes) -> bytes:
    return digest("seed", CONTEXT, u32(dealer) + seed)


def share_info(CONTEXT: bytes, dealer: int, holder: int) -> bytes:
    return text("share", CONTEXT, u32(dealer, holder))


def share_key(CONTEXT: bytes, secret: bytes, dealer: int, holder: int) -> bytes:
    return hkdf(secret, share_info(CONTEXT, dealer, holder))


def seal(CONTEXT: bytes, key: bytes, dealer: int, holder: int, nonce: bytes, opened: bytes) -> bytes:
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, opened, share_info(CONTEXT, dealer, holder))


def unseal(CONTEXT: bytes, key: bytes, dealer: int, holder: int, sealed: bytes) -> tuple[bytes, bytes]:
    """opened(seed) and opened(key)."""
    demand(len(sealed) == 158, "a sealed box has 158 bytes")
    try:
        opened = ChaCha20Poly1305(key).decrypt(sealed[:12], sealed[12:], share_info(CONTEXT, dealer, holder))
    except InvalidTag as problem:
        raise Refused("the box does not open") from problem
    return opened[:65], opened[65:]


def check_opened(
    CONTEXT: bytes, dealer: int, holder: int, opened: tuple[bytes, bytes], published: bytes
) -> None:
    for one in opened:
        demand(int.from_bytes(one[32:], "little") < PRIME, "a share is not below the prime")
    demand(marks(CONTEXT, dealer, holder, *opened) == published, "the shares do not match their marks")


def leaf(holder: int, marked: bytes, sealed: bytes) -> bytes:
    return sha256(LABEL + b"leaf|" + fields(u32(holder), marked, sealed))


def node(left: bytes, right: bytes) -> bytes:
    return sha256(LABEL + b"node|" + left + right)


def levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    row = list(leaves)
    while len(row) & (len(row) - 1):
        row.append(bytes(32))
    rows = [row]
    while len(rows[-1]) > 1:
        row = rows[-1]
        rows.append([node(row[i], row[i + 1]) for i in range(0, len(row), 2)])
    return rows


def path(leaves: Sequence[bytes], place: int) -> list[bytes]:
    siblings = []
    for row in levels(leaves)[:-1]:
        siblings.append(row[place ^ 1])
        place //= 2
    return siblings


def climb(start: bytes, place: int, siblings: Sequence[bytes]) -> bytes:
    top = start
    for sibling in siblings:
        top = node(sibling, top) if place % 2 else node(top, sibling)
        place //= 2
    return top


def dealing_text(CONTEXT: bytes, dealer: int, mark: bytes, root: bytes) -> bytes:
    return text("dealing", CONTEXT, u32(dealer) + mark + root)


@dataclass(frozen=True)
class Delivery:
    """What the server hands one holder from one dealer."""

    sealed: bytes
    marks: bytes
    evidence: bytes


def check_evidence(
    agreed: Agreed, CONTEXT: bytes, dealer: int, holder: int, holders: Sequence[int], box: Delivery
) -> None:
    depth = (len(holders) - 1).bit_length()
    demand(len(box.evidence) == 96 + 32 * depth, "evidence of a wrong length")
    chain = [box.evidence[i : i + 32] for i in range(96, len(box.evidence), 32)]
    root = climb(leaf(holder, box.marks, box.sealed), list(holders).index(holder), chain)
    signed = dealing_text(CONTEXT, dealer, box.evidence[64:96], root)
    verify(agreed.identity(dealer), signed, box.evidence[:64])


# 7. Round 2: masked input


def keystream(seed: bytes, vector: int, length: int, bits: int) -> list[int]:
    size = 4 if bits <= 32 else 8
    block = vector.to_bytes(8, "big") + (2).to_bytes(8, "big")
    stream = Cipher(algorithms.AES(seed), modes.CTR(block)).encryptor().update(bytes(size * length))
    return [int.from_bytes(stream[i : i + size], "little") for i in range(0, len(stream), size)]


def pair_seed(CONTEXT: bytes, secret: bytes, public: bytes, one: int, other: int) -> bytes:
    return hkdf(x25519(secret, public), text("mask", CONTEXT, u32(min(one, other), max(one, other))))


def add(x: Sequence[int], sign: int, words: Sequence[int], bits: int) -> list[int]:
    return [(a + sign * b) % 2**bits for a, b in zip(x, words, strict=True)]


def pack(values: Sequence[int], bits: int) -> bytes:
    whole = sum(value << (i * bits) for i, value in enumerate(values))
    return whole.to_bytes((len(values) * bits + 7) // 8, "little")


def unpack(data: bytes, length: int, bits: int) -> list[int]:
    demand(len(data) == (length * bits + 7) // 8, "packed bytes of a wrong length")
    whole = int.from_bytes(data, "little")
    demand(whole < 2 ** (length * bits), "bits after the last value")
    return [(whole >> (i * bits)) % 2**bits for i in range(length)]


def input_text(CONTEXT: bytes, number: int, dealers: Sequence[int]) -> bytes:
    return text("input", CONTEXT, u32(number) + listed(dealers))


# 8. Round 3: consistency


def survivors_text(CONTEXT: bytes, dealers: Sequence[int], survivors: Sequence[int]) -> bytes:
    return text("survivors", CONTEXT, listed(dealers) + listed(survivors))


def check_survivors(
    agreed: Agreed,
    graph: dict[int, list[int]],
    own: int,
    dealers: Sequence[int],
    survivors: Sequence[int],
    dropped: Sequence[int],
) -> None:
    demand(ascends(survivors) and ascends(dropped), "the lists do not ascend")
    demand(not set(survivors) & set(dropped), "the lists overlap")
    demand(sorted([*survivors, *dropped]) == list(dealers), "the lists do not make up the dealers")
    demand(own in survivors, "the client itself is no survivor")
    demand(len(survivors) >= agreed.least_survivors, "too few survivors")
    for survivor in survivors:
        degree = len(set(graph[survivor]) & set(survivors))
        demand(degree >= agreed.least_degree, "a survivor has too few surviving neighbours")


def tag(CONTEXT: bytes, secret: bytes, sender: int, receiver: int, confirmed: bytes) -> bytes:
    """By which one of the two owners of a channel secret confirms a text to the other."""
    return hkdf(secret, text("confirm", CONTEXT, u32(sender, receiver) + sha256(confirmed)))[:16]


def sample_size(listed: int, needed: int) -> int:
    """The smallest s with C(needed - 1, s) / C(listed, s) <= 2^-56."""
    if needed <= 0:
        return 0
    return next(s for s in range(listed + 1) if comb(needed - 1, s) << 56 <= comb(listed, s))


def sample(seed: bytes, members: Sequence[int], size: int) -> list[int]:
    below, left = Below(seed), list(members)
    for i in range(size):
        j = i + below.draw(len(left) - i)
        left[i], left[j] = left[j], left[i]
    return left[:size]


def record_digest(what: bytes) -> bytes:
    """Of CONTEXT, of the text of an input or of that of survivors."""
    return digest("record", b"", what)


# 10. Encrypted sums


def encrypted_text(context: bytes, number: int, ciphertexts: Sequence[bytes]) -> bytes:
    return text("encrypted", context, fields(u32(number), sha256(fields(*ciphertexts))))


# The client, a step a round


@dataclass
class Client:
    """`random` draws bytes; `record` keeps an act durably, and is False where another one stands."""

    agreed: Agreed
    own: int
    identity: bytes
    channel: bytes
    random: Callable[[int], bytes]
    record: Callable[[str, bytes], bool] = lambda act, kept: True
    CONTEXT: bytes = b""
    held: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    def advertise(self) -> Entry:
        demand(self.record("begin", self.agreed.context()), "another attempt was begun, or signed")
        self.secret, nonce = self.random(32), self.random(32)
        key = x25519_public(self.secret)
        signed = advertise_text(self.agreed.context(), self.own, key, nonce)
        self.entry = Entry(self.own, key, nonce, sign(self.identity, signed))
        return self.entry

    def channel_secret(self, other: int) -> bytes:
        return channel_secret(self.agreed, self.own, self.channel, other)

    def deal(self, entries: Sequence[Entry]) -> Dealing:
        demand(self.entry in entries, "the client's own entry is not in the roster")
        self.CONTEXT = close_roster(self.agreed, entries)
        demand(self.record("deal", record_digest(self.CONTEXT)), "another roster was dealt under before")
        self.entries = list(entries)
        self.keys = {entry.number: entry.mask_key for entry in entries}
        self.graph = graph(self.CONTEXT, sorted(self.keys), self.agreed.neighbours)
        self.seed = self.random(32)
        holders = sorted([*self.graph[self.own], self.own])
        shares = [self.shared(self.seed, holders), self.shared(self.secret, holders)]
        boxes, marked = {}, {}
        for h in holders:
            opened = self.random(32) + shares[0][h], self.random(32) + shares[1][h]
            marked[h], boxes[h] = marks(self.CONTEXT, self.own, h, *opened), b""
            if h == self.own:
                self.held[h] = opened
            else:
                key = share_key(self.CONTEXT, self.channel_secret(h), self.own, h)
                boxes[h] = seal(self.CONTEXT, key, self.own, h, self.random(12), b"".join(opened))
        mark = seed_mark(self.CONTEXT, self.own, self.seed)
        root = levels([leaf(h, marked[h], boxes[h]) for h in holders])[-1][0]
        signed = dealing_text(self.CONTEXT, self.own, mark, root)
        return Dealing(boxes, marked, mark, sign(self.identity, signed))

    def shared(self, secret: bytes, holders: Sequence[int]) -> dict[int, bytes]:
        drawn = [int.from_bytes(self.random(64), "little") % PRIME for _ in range(self.agreed.threshold - 1)]
        return split(secret, holders, drawn)

    def receive(self, dealers: Sequence[int], boxes: dict[int, Delivery]) -> dict[int, bytes]:
        """Take the shares. What comes back are complaints: the share keys to show; empty when all is well."""
        demand(ascends(dealers) and set(dealers) <= set(self.keys), "the dealers are no part of the roster")
        demand(self.own in dealers, "the client itself is no dealer")
        demand(len(dealers) >= self.agreed.least_survivors, "too few dealers")
        neighbours = set(self.graph[self.own])
        demand(list(boxes) == [d for d in dealers if d in neighbours], "not the boxes of the neighbours")
        for box in boxes.values():
            self.check_lengths(box)
        self.dealers, shown = list(dealers), {}
        for dealer, box in boxes.items():
            key = share_key(self.CONTEXT, self.channel_secret(dealer), dealer, self.own)
            try:
                opened = unseal(self.CONTEXT, key, dealer, self.own, box.sealed)
                check_opened(self.CONTEXT, dealer, self.own, opened, box.marks)
                self.held[dealer] = opened
            except Refused:
                holders = sorted([*self.graph[dealer], dealer])
                try:
                    check_evidence(self.agreed, self.CONTEXT, dealer, self.own, holders, box)
                except Refused:
                    for entry in self.entries:
                        check_entry(self.agreed, entry)
                    raise
                shown[dealer] = key
        if not shown:
            text = input_text(self.CONTEXT, self.own, self.dealers)
            demand(self.record("mask", record_digest(text)), "an input was masked among other dealers before")
        return shown

    def check_lengths(self, box: Delivery) -> None:
        """Before a box is opened."""
        demand(len(box.sealed) == 158 and len(box.marks) == 64, "box or marks of a wrong length")

    def masked(self, x: Sequence[Sequence[int]]) -> tuple[list[bytes], bytes]:
        packed = [self.mask(v, x[v]) for v in range(len(self.agreed.vectors))]
        return packed, self.sign_input()

    def mask(self, v: int, x: Sequence[int]) -> bytes:
        length, bits = self.agreed.vectors[v].length, self.agreed.vectors[v].bits
        y = add(x, 1, keystream(self.seed, v, length, bits), bits)
        for j in self.graph[self.own]:
            if j in self.dealers:
                seed = pair_seed(self.CONTEXT, self.secret, self.keys[j], self.own, j)
                y = add(y, 1 if j > self.own else -1, keystream(seed, v, length, bits), bits)
        return pack(y, bits)

    def sign_input(self) -> bytes:
        return sign(self.identity, input_text(self.CONTEXT, self.own, self.dealers))

    def accept(self, survivors: Sequence[int], dropped: Sequence[int]) -> bytes:
        """The signature on the survivors (in semi-honest mode it is not sent)."""
        check_survivors(self.agreed, self.graph, self.own, self.dealers, survivors, dropped)
        self.survivors = list(survivors)
        demand(self.record("sign", self.digest()), "another set of survivors was signed before")
        return sign(self.identity, survivors_text(self.CONTEXT, self.dealers, survivors))

    def accepted(self) -> bytes:
        return survivors_text(self.CONTEXT, self.dealers, self.survivors)

    def digest(self) -> bytes:
        return record_digest(self.accepted())

    def near(self) -> list[int]:
        """The surviving neighbours."""
        return [j for j in self.graph[self.own] if j in self.survivors]

    def tag(self, sender: int, receiver: int) -> bytes:
        other = receiver if sender == self.own else sender
        return tag(self.CONTEXT, self.channel_secret(other), sender, receiver, self.accepted())

    def tags(self) -> dict[int, bytes]:
        """A tag for each surviving neighbour, by neighbour."""
        return {j: self.tag(self.own, j) for j in self.near()}

    def confirm(
        self, signers: dict[int, bytes], inputs: dict[int, bytes], tags: dict[int, bytes], seed: bytes
    ) -> None:
        """The signatures of the signers on the survivors, and of the others on their inputs.

        `tags` are those of the neighbours. Of `seed` the sample is drawn.
        """
        demand(len(signers) >= self.agreed.quorum, "too few signers for a quorum")
        demand(set(signers) <= set(self.survivors), "a signer is no survivor")
        near = self.near()
        for j in near:
            if j not in signers:
                demand(j in inputs, "a surviving neighbour neither signed nor sent an input")
                verify(self.agreed.identity(j), input_text(self.CONTEXT, j, self.dealers), inputs[j])
            elif tags.get(j) != self.tag(j, self.own):
                verify(self.agreed.identity(j), self.accepted(), signers[j])
        rest = [j for j in sorted(signers) if j not in near and j != self.own]
        size = sample_size(len(rest), self.agreed.quorum - (len(signers) - len(rest)))
        for j in sample(seed, rest, size):
            verify(self.agreed.identity(j), self.accepted(), signers[j])

    def unmask(self) -> dict[int, bytes]:
        return {d: self.held[d][0 if d in self.survivors else 1] for d in sorted(self.held)}


@dataclass(frozen=True)
class Dealing:
    """A dealer's message: by holder, ascending; the dealer's own box is empty."""

    sealed: dict[int, bytes]
    marks: dict[int, bytes]
    seed_mark: bytes
    signature: bytes


# The server, a step a round


@dataclass
class Server:
    agreed: Agreed

    def close(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            check_entry(self.agreed, entry)
            x25519(bytes([1] * 32), entry.mask_key)
        self.entries = sorted(entries, key=lambda entry: entry.number)
        self.CONTEXT = close_roster(self.agreed, self.entries)
        self.keys = {entry.number: entry.mask_key for entry in self.entries}
        self.graph = graph(self.CONTEXT, sorted(self.keys), self.agreed.neighbours)

    def holders(self, dealer: int) -> list[int]:
        return sorted([*self.graph[dealer], dealer])

    def leaves(self, dealer: int, dealing: Dealing) -> list[bytes]:
        return [leaf(h, dealing.marks[h], dealing.sealed[h]) for h in self.holders(dealer)]

    def check_dealing(self, dealer: int, dealing: Dealing) -> None:
        holders = self.holders(dealer)
        demand(list(dealing.sealed) == list(dealing.marks) == holders, "not the holders of this dealer")
        for h in holders:
            demand(len(dealing.marks[h]) == 64, "marks have 64 bytes")
            demand(len(dealing.sealed[h]) == (0 if h == dealer else 158), "a sealed box has 158 bytes")
        root = levels(self.leaves(dealer, dealing))[-1][0]
        signed = dealing_text(self.CONTEXT, dealer, dealing.seed_mark, root)
        verify(self.agreed.identity(dealer), signed, dealing.signature)

    def deliver(self, dealings: dict[int, Dealing]) -> dict[int, dict[int, Delivery]]:
        """What every dealer is handed, by dealer."""
        for dealer, dealing in dealings.items():
            self.check_dealing(dealer, dealing)
        self.dealings, self.dealers = dealings, sorted(dealings)
        demand(len(self.dealers) >= self.agreed.least_survivors, "too few dealers")
        return {h: {d: self.box(d, h) for d in self.graph[h] if d in dealings} for h in self.dealers}

    def box(self, dealer: int, holder: int) -> Delivery:
        dealing = self.dealings[dealer]
        chain = path(self.leaves(dealer, dealing), self.holders(dealer).index(holder))
        evidence = dealing.signature + dealing.seed_mark + b"".join(chain)
        return Delivery(dealing.sealed[holder], dealing.marks[holder], evidence)

    def judge(self, dealer: int, holder: int, key: bytes) -> str:
        """Of a complaint: "dealer" or "holder" is to blame, or "open" when nobody can tell."""
        dealing = self.dealings[dealer]
        try:
            opened = unseal(self.CONTEXT, key, dealer, holder, dealing.sealed[holder])
        except Refused:
            return "open"
        try:
            check_opened(self.CONTEXT, dealer, holder, opened, dealing.marks[holder])
        except Refused:
            return "dealer"
        return "holder"

    def take(self, inputs: dict[int, tuple[list[bytes], bytes]]) -> tuple[list[int], list[int]]:
        """Survivors and dropped, from packed vectors and signatures by member."""
        self.values, self.signatures = {}, {}
        for member, (packed, signature) in inputs.items():
            demand(member in self.dealers, "an input of one that did not deal")
            verify(self.agreed.identity(member), input_text(self.CONTEXT, member, self.dealers), signature)
            demand(len(packed) == len(self.agreed.vectors), "not the vectors agreed on")
            shapes = [(vector.length, vector.bits) for vector in self.agreed.vectors]
            self.values[member] = [unpack(p, *shape) for p, shape in zip(packed, shapes, strict=True)]
            self.signatures[member] = signature
        self.survivors = sorted(inputs)
        self.dropped = [d for d in self.dealers if d not in inputs]
        for own in self.survivors:
            check_survivors(self.agreed, self.graph, own, self.dealers, self.survivors, self.dropped)
        demand(len(self.survivors) >= self.agreed.least_survivors, "too few survivors")
        return self.survivors, self.dropped

    def confirmed(self, signed: dict[int, bytes]) -> dict[int, bytes]:
        """The signatures on inputs to send along with those on the survivors."""
        for member, signature in signed.items():
            demand(member in self.survivors, "a signer is no survivor")
            message = survivors_text(self.CONTEXT, self.dealers, self.survivors)
            verify(self.agreed.identity(member), message, signature)
        demand(len(signed) >= self.agreed.quorum, "too few signers for a quorum")
        return {m: self.signatures[m] for m in self.survivors if m not in signed}

    def passed_on(self, tags: dict[int, dict[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """The tags for each signer, by sender; of one that did not sign, it gets none."""
        for sender, of in tags.items():
            near = [j for j in self.graph[sender] if j in self.survivors]
            demand(list(of) == near, "not the tags of a signer's surviving neighbours")
            demand({len(one) for one in of.values()} <= {16}, "a tag has 16 bytes")
        return {i: {j: of[i] for j, of in tags.items() if i in of} for i in tags}

    def sum(self, answers: dict[int, dict[int, bytes]]) -> list[list[int]]:
        for holder, opened in answers.items():
            for dealer, share in opened.items():
                self.check_share(holder, dealer, share)
        totals = []
        for v, vector in enumerate(self.agreed.vectors):
            length, bits = vector.length, vector.bits
            total = [0] * length
            for member in self.survivors:
                total = add(total, 1, self.values[member][v], bits)
                total = add(total, -1, keystream(self.seed(member, answers), v, length, bits), bits)
            for member in self.dropped:
                secret = self.secret(member, answers)
                for j in self.graph[member]:
                    if j in self.survivors:
                        seed = pair_seed(self.CONTEXT, secret, self.keys[j], member, j)
                        # The survivor j added the mask if the dropped member's number is above its own.
                        total = add(total, -1 if member > j else 1, keystream(seed, v, length, bits), bits)
            totals.append(total)
        return totals

    def check_share(self, holder: int, dealer: int, opened: bytes) -> None:
        demand(dealer in self.dealers and holder in self.holders(dealer), "not a holder of this dealer")
        kind = ("seed-share", slice(0, 32)) if dealer in self.survivors else ("key-share", slice(32, 64))
        mark = digest(kind[0], self.CONTEXT, u32(dealer, holder) + opened)
        demand(len(opened) == 65, "an opened share has 65 bytes")
        demand(mark == self.dealings[dealer].marks[holder][kind[1]], f"a wrong share of holder {holder}")

    def combined(self, dealer: int, answers: dict[int, dict[int, bytes]]) -> bytes:
        shares = {h: opened[dealer][32:] for h, opened in answers.items() if dealer in opened}
        return combine(shares, self.agreed.threshold)

    def seed(self, dealer: int, answers: dict[int, dict[int, bytes]]) -> bytes:
        seed = self.combined(dealer, answers)
        fits = seed_mark(self.CONTEXT, dealer, seed) == self.dealings[dealer].seed_mark
        demand(fits, f"dealer {dealer} shared another seed")
        return seed

    def secret(self, dealer: int, answers: dict[int, dict[int, bytes]]) -> bytes:
        secret = self.combined(dealer, answers)
        demand(x25519_public(secret) == self.keys[dealer], f"dealer {dealer} shared another mask secret")
        return secret
