"""Verifiable dealing of secret shares: a client shares the seed of its self-mask and its mask key.

Each holder gets both shares, each with a salt, sealed for it alone. The server gets a salted hash of each
share, a hash of the seed, and one signature over the root of a tree. A leaf of the tree binds a holder's
hashes to its sealed bytes. So a holder can prove that its dealer signed wrong shares.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from securefl.core.agreement import digest, tagged, u32
from securefl.core.entropy import Random
from securefl.core.errors import CryptoError
from securefl.core.formats import prefix
from securefl.core.keys import Commitment, Guarded, SecretKey, Share, Signature
from securefl.core.wire import message
from securefl.secagg.agreement import Channels, ClosedRoster
from securefl.secagg.shamir import SHARE_BYTES, parse, split

SALT_BYTES: Final = 32
OPENED_BYTES: Final = SALT_BYTES + SHARE_BYTES
_NONCE_BYTES: Final = 12
MARKS_BYTES: Final = 64
SEALED_BYTES: Final = _NONCE_BYTES + 2 * OPENED_BYTES + 16

_PAIR: Final = struct.Struct("<II").pack
_EMPTY_LEAF: Final = bytes(32)
_LEAF: Final = prefix("leaf") + u32(4)
_NODE: Final = prefix("node")

SEED, KEY = b"seed-share", b"key-share"


@dataclass(frozen=True, repr=False)
class Pair(Guarded):
    """A holder's shares of one dealer, each with its salt in front: 65 bytes."""

    seed: bytes
    key: bytes

    def marks(self, closed: ClosedRoster, dealer: int, holder: int) -> Commitment:
        """The two salted hashes that the dealer published for this holder: 64 bytes."""
        seed = mark(SEED, closed, dealer, holder, self.seed)
        return Commitment(seed + mark(KEY, closed, dealer, holder, self.key))


def mark(kind: bytes, closed: ClosedRoster, dealer: int, holder: int, opened: bytes) -> bytes:
    """The salted hash of one share. `opened` is salt and share."""
    return hashlib.sha256(closed.prefix(kind) + _PAIR(dealer, holder) + opened).digest()


def seed_mark(context: bytes, dealer: int, seed: bytes) -> Commitment:
    """The hash of a self-mask seed."""
    return Commitment(digest(b"seed", context, u32(dealer), seed))


@message("secagg-shares", sender="client")
@dataclass(frozen=True)
class Shares:
    """The published part of a dealing.

    Attributes:
        seed: hash of the dealer's self-mask seed.
        marks: the two hashes (seed share, key share) of each holder, ascending, the dealer among them.
        sealed: one sealed pair of shares for each holder except the dealer.
        signature: over the seed's hash and the root of the tree.
    """

    seed: Commitment
    marks: tuple[Commitment, ...]
    sealed: tuple[Share, ...]
    signature: Signature


def deal(
    closed: ClosedRoster, channels: Channels, seed: SecretKey, key: SecretKey, random: Random
) -> tuple[Shares, Pair]:
    """Share the two secrets among the dealer's holders. Return the dealing and the dealer's own pair."""
    own = channels.own
    holders = closed.graph.holders(own)
    threshold = closed.agreement.parameters.threshold
    points = [holder + 1 for holder in holders]  # a share at 0 would be the secret
    seeds = split(seed.reveal(), points, threshold, random)
    keys = split(key.reveal(), points, threshold, random)
    pairs = {
        holder: Pair(random(SALT_BYTES) + one, random(SALT_BYTES) + other)
        for holder, one, other in zip(holders, seeds, keys, strict=True)
    }
    marks, sealed = [], []
    for holder, pair in pairs.items():
        marked = pair.marks(closed, own, holder)
        marks.append(marked)
        if holder != own:
            bound = _bound(closed, own, holder)
            box = _seal(pair, channels.derived(holder, bound), bound, random)
            sealed.append(box)
            channels.made(holder, (bound, marked.raw, box.raw), pair)
    hashed = seed_mark(closed.context, own, seed.reveal())
    tree = Tree.of(leaves(holders, own, marks, sealed))
    if closed.agreement.roster.known is not None:
        closed.agreement.roster.known.made(_all_of(closed, own, marks, sealed), tree)
    signature = channels.identity.signing.sign(signed(closed, own, hashed, tree.root))
    return Shares(hashed, tuple(marks), tuple(sealed), signature), pairs[own]


def opened(closed: ClosedRoster, channels: Channels, dealer: int, sealed: Share, marks: Commitment) -> Pair:
    """Open the box that a dealer sealed for this client, and check its shares against their hashes.

    Raises CryptoError unless it was sealed for this place and matches. If the dealer is a party of this
    process and made exactly this box and these hashes, the dealer has done both.
    """
    own = channels.own
    bound = _bound(closed, dealer, own)
    told: Pair | None = channels.found(dealer, (bound, marks.raw, sealed.raw))
    if told is not None:
        return told
    pair = unseal(sealed, channels.derived(dealer, bound), bound)
    check_pair(pair, marks, closed, dealer, own)
    return pair


def share_key(closed: ClosedRoster, channels: Channels, dealer: int, holder: int) -> SecretKey:
    """Derive the key of the one message from dealer to holder. Both of them can."""
    other = holder if channels.own == dealer else dealer
    return channels.derived(other, _bound(closed, dealer, holder))


def unseal(sealed: Share, key: SecretKey, bound: bytes) -> Pair:
    """Open one sealed pair. Raises CryptoError unless it was sealed under this key for this place."""
    raw = sealed.raw
    if len(raw) != SEALED_BYTES:
        raise CryptoError(f"Expected {SEALED_BYTES} sealed bytes, got {len(raw)}.")
    try:
        plain = ChaCha20Poly1305(key.reveal()).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], bound)
    except InvalidTag:
        raise CryptoError(
            "Expected shares sealed under this key for this place, got bytes that do not open."
        ) from None
    return Pair(plain[:OPENED_BYTES], plain[OPENED_BYTES:])


def check_pair(pair: Pair, marks: Commitment, closed: ClosedRoster, dealer: int, holder: int) -> None:
    """Raise CryptoError unless both shares are field elements and match the published hashes."""
    parse(pair.seed[SALT_BYTES:])
    parse(pair.key[SALT_BYTES:])
    if pair.marks(closed, dealer, holder) != marks:
        raise CryptoError("Expected shares that match their published hashes, got some that do not.")


def _seal(pair: Pair, key: SecretKey, bound: bytes, random: Random) -> Share:
    # A key seals one message, so a fixed nonce would be enough. But a dealer that is restored from an older
    # state can seal a second message under the same key, and then needs another nonce.
    nonce = random(_NONCE_BYTES)
    return Share(nonce + ChaCha20Poly1305(key.reveal()).encrypt(nonce, pair.seed + pair.key, bound))


def _bound(closed: ClosedRoster, dealer: int, holder: int) -> bytes:
    """The place of the one message from dealer to holder: its key and its box are bound to these bytes."""
    return closed.prefix(b"share") + _PAIR(dealer, holder)


def _all_of(
    closed: ClosedRoster, dealer: int, marks: Sequence[Commitment], sealed: Sequence[Share]
) -> tuple[bytes, ...]:
    """Everything from which the tree of a dealing follows. All hashes, and all boxes, have one length."""
    boxes = b"".join([box.raw for box in sealed])
    return closed.prefix(b"tree"), u32(dealer), b"".join([one.raw for one in marks]), boxes


def signed(closed: ClosedRoster, dealer: int, seed: Commitment, root: bytes) -> bytes:
    """The bytes that a dealer signs in round 1."""
    return tagged(b"dealing", closed.context, u32(dealer), seed.raw, root)


def leaf_of(holder: int, marks: Commitment, sealed: bytes) -> bytes:
    """The leaf that binds a holder's hashes to the bytes sealed for it (none for the dealer itself)."""
    # As `fields(u32(holder), marks.raw, sealed)`, written out: a party hashes two leaves for each neighbour.
    lengths = len(marks.raw).to_bytes(4, "little"), len(sealed).to_bytes(4, "little")
    number = holder.to_bytes(4, "little")
    return hashlib.sha256(b"".join((_LEAF, number, lengths[0], marks.raw, lengths[1], sealed))).digest()


def leaves(
    holders: Sequence[int], dealer: int, marks: Sequence[Commitment], sealed: Sequence[Share]
) -> list[bytes]:
    """The leaves of a dealing, in the order of its holders."""
    boxes = iter(sealed)
    return [
        leaf_of(holder, marks[at], b"" if holder == dealer else next(boxes).raw)
        for at, holder in enumerate(holders)
    ]


@dataclass(frozen=True)
class Published:
    """A dealing that the server has checked, with places of holders and the tree."""

    dealing: Shares
    places: Mapping[int, int]
    boxes: Mapping[int, Share]
    tree: Tree

    def marks(self, holder: int) -> Commitment:
        return self.dealing.marks[self.places[holder]]

    def evidence(self, holder: int) -> bytes:
        """The proof to a holder that its dealer signed: signature, hash of the seed, path in the tree."""
        return self.dealing.signature.raw + self.dealing.seed.raw + self.tree.path(self.places[holder])

    def rows(self) -> Iterator[tuple[int, Commitment, Share | None, bytes]]:
        """Yield each holder with its hashes, its box (None for the dealer itself) and its evidence."""
        for holder, marks in zip(self.places, self.dealing.marks, strict=True):
            yield holder, marks, self.boxes.get(holder), self.evidence(holder)


def check_evidence(
    closed: ClosedRoster, dealer: int, holder: int, marks: Commitment, sealed: Share, evidence: bytes
) -> None:
    """Raise CryptoError unless the dealer signed these hashes and these sealed bytes for this holder."""
    # The leaf's encoding holds the lengths too. This check does not rely on it.
    if len(marks.raw) != MARKS_BYTES or len(sealed.raw) != SEALED_BYTES:
        raise CryptoError(
            f"Expected hashes of {MARKS_BYTES} and sealed shares of {SEALED_BYTES} bytes, got "
            f"{len(marks.raw)} and {len(sealed.raw)}."
        )
    signature, seed, path = Signature(evidence[:64]), Commitment(evidence[64:96]), evidence[96:]
    leaf = leaf_of(holder, marks, sealed.raw)
    root = root_of(leaf, closed.graph.holders(dealer).index(holder), path)
    closed.agreement.check(dealer, signature, signed(closed, dealer, seed, root))


def published(closed: ClosedRoster, dealer: int, dealing: Shares) -> Published:
    """Check lengths and the signature, or raise CryptoError.

    Only a holder can check what is sealed for it.
    """
    holders = closed.graph.holders(dealer)
    lengths = {len(box.raw) for box in dealing.sealed} | {SEALED_BYTES}
    hashes = {len(one.raw) for one in dealing.marks} | {MARKS_BYTES}
    if len(dealing.marks) != len(holders) or len(dealing.sealed) != len(holders) - 1:
        raise CryptoError(f"Expected shares for {len(holders) - 1} neighbours, got {len(dealing.sealed)}.")
    if lengths != {SEALED_BYTES} or hashes != {MARKS_BYTES} or len(dealing.seed.raw) != 32:
        raise CryptoError(
            f"Expected hashes of {MARKS_BYTES} bytes, sealed shares of one length, {SEALED_BYTES}, and a "
            f"seed of 32, got {sorted(hashes)}, {sorted(lengths)} and {len(dealing.seed.raw)}."
        )
    known = closed.agreement.roster.known
    # A dealer of this process has hashed exactly these bytes already. The tree follows from them alone.
    made = None if known is None else known.found(_all_of(closed, dealer, dealing.marks, dealing.sealed))
    tree: Tree = made or Tree.of(leaves(holders, dealer, dealing.marks, dealing.sealed))
    closed.agreement.check(dealer, dealing.signature, signed(closed, dealer, dealing.seed, tree.root))
    others = (holder for holder in holders if holder != dealer)
    places = {holder: at for at, holder in enumerate(holders)}
    return Published(dealing, places, dict(zip(others, dealing.sealed, strict=True)), tree)


def judge(
    closed: ClosedRoster, dealt: Mapping[int, Published], holder: int, keys: Sequence[Share]
) -> Iterator[tuple[int, bool]]:
    """Check a holder's complaint: yield each accused dealer, and whether it is proven bad.

    The holder reveals the key of that one message, so that the server can open the signed shares. If they do
    not match their hashes, the dealer is proven bad. If they match, the holder lied. If the key opens
    nothing, either of them may have lied about the key.

    Raises:
        CryptoError: if the holder accuses no dealer, a stranger, or a dealer whose shares are right.
    """
    if not keys:
        raise CryptoError("Expected a complaint about at least one dealer, got an empty one.")
    for shown in keys:
        dealer = int.from_bytes(shown.raw[:4], "little")
        # A dealing has no box for its own dealer, so a dealer that accuses itself would be refused anyway.
        if len(shown.raw) != 36 or dealer not in dealt or dealer == holder:
            raise CryptoError(
                f"Expected another dealer's number and a key in 36 bytes, got {len(shown.raw)} for {dealer}."
            )
        box = dealt[dealer].boxes.get(holder)
        if box is None:
            raise CryptoError(
                f"Expected a complaint about a neighbour, got one about {dealer}: its sender holds no shares "
                "of that member."
            )
        # If the key opens nothing, the dealer may have sealed under another key, or the holder may reveal
        # another one.
        try:
            pair = unseal(box, SecretKey(shown.raw[4:]), _bound(closed, dealer, holder))
        except CryptoError:
            yield dealer, False
            continue
        try:
            check_pair(pair, dealt[dealer].marks(holder), closed, dealer, holder)
        except CryptoError:
            yield dealer, True
            continue
        raise CryptoError(f"Expected a complaint about wrong shares, but {dealer} was accused falsely.")


# The tree under a dealer's signature --------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """A binary hash tree, leaves first. Its leaves are filled up with zero hashes to a power of two."""

    levels: tuple[tuple[bytes, ...], ...]

    @classmethod
    def of(cls, leaves: Sequence[bytes]) -> Tree:
        width = 1 << max(len(leaves) - 1, 0).bit_length()
        level = (*leaves, *[_EMPTY_LEAF] * (width - len(leaves)))
        levels = [level]
        while len(level) > 1:
            level = tuple(_node(level[at], level[at + 1]) for at in range(0, len(level), 2))
            levels.append(level)
        return cls(tuple(levels))

    @property
    def root(self) -> bytes:
        return self.levels[-1][0]

    def path(self, at: int) -> bytes:
        """The sibling hashes from the leaf up."""
        # The last bit says left or right. Turned, it names the sibling.
        return b"".join([level[(at >> depth) ^ 1] for depth, level in enumerate(self.levels[:-1])])


def root_of(leaf: bytes, at: int, path: bytes) -> bytes:
    """The root that a leaf at place `at` and its path lead to."""
    for start in range(0, len(path), 32):
        sibling = path[start : start + 32]
        leaf = _node(sibling, leaf) if at & 1 else _node(leaf, sibling)
        at >>= 1
    return leaf


def _node(left: bytes, right: bytes) -> bytes:
    # another label than the leaves have: an inner node cannot be passed off as a leaf
    return hashlib.sha256(_NODE + left + right).digest()
