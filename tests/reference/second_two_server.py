"""A second two-server sum, with nothing of securefl in it: plain and slow, to disagree with the first.

Bytes, plain integers and lists; a refusal is `Refused`. Never use it for real.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from reference.second_secagg import (
    Agreed,
    Refused,
    Vector,
    add,
    ascends,
    demand,
    digest,
    fields,
    hkdf,
    keystream,
    pack,
    sha256,
    sign,
    text,
    u32,
    unpack,
    verify,
    x25519,
    x25519_public,
)


@dataclass(frozen=True)
class Terms:
    """Members are (name, identity key, channel key); `holder` and `server` are public keys."""

    session: bytes
    round: int
    attempt: int
    stage: int
    members: tuple[tuple[str, bytes, bytes], ...]
    vectors: tuple[Vector, ...]
    plan: bytes
    task: bytes
    holder: bytes
    server: bytes
    draws: tuple[int, ...]
    whole: int
    records: int

    roster_digest = Agreed.roster_digest
    context_under = Agreed.context_under

    def context(self) -> bytes:
        numbers = (len(self.draws), *self.draws, self.whole, self.records)
        weights = b"".join(number.to_bytes(8, "little") for number in numbers)
        rules = digest(
            "two-server rules", b"", fields(self.holder, self.server, u32(len(self.draws)), weights)
        )
        found: bytes = self.context_under(rules)  # type: ignore[misc]
        return found

    def place(self, member: int, vector: int) -> bytes:
        name, what = self.members[member][0].encode(), self.vectors[vector].encoded()
        return text("two-server box", self.context(), fields(u32(member, vector), name, what))

    def sizes(self) -> list[int]:
        return [(v.length * v.bits + 7) // 8 for v in self.vectors]


@dataclass(frozen=True)
class Input:
    vectors: tuple[bytes, ...]
    boxes: tuple[bytes, ...]
    signature: bytes


@dataclass(frozen=True)
class Request:
    task: bytes
    members: tuple[int, ...]
    boxes: tuple[bytes, ...]
    inputs: tuple[bytes, ...]
    signatures: tuple[bytes, ...]


def derive(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, purpose, "sha256")


# Sealing


def seal(secret: bytes, to: bytes, plain: bytes, context: bytes) -> bytes:
    own = derive(secret, b"securefl/8|seal/again|" + to + sha256(context) + sha256(plain))
    public = x25519_public(own)
    key = hkdf(x25519(own, to), b"securefl/8|seal|" + public + to)
    return public + ChaCha20Poly1305(key).encrypt(bytes(12), plain, context)


def unseal(own: bytes, sealed: bytes, context: bytes) -> bytes:
    public, to = sealed[:32], x25519_public(own)
    key = hkdf(x25519(own, public), b"securefl/8|seal|" + public + to)
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed[32:], context)
    except InvalidTag as problem:
        raise Refused("not sealed so") from problem


# The client


def seeds(terms: Terms, member: int, secret: bytes) -> list[bytes]:
    return [derive(secret, b"seed|" + terms.place(member, v)) for v in range(len(terms.vectors))]


def signed_text(terms: Terms, member: int, vectors: bytes, boxes: Sequence[bytes]) -> bytes:
    return text("two-server", terms.context(), fields(u32(member), vectors, sha256(fields(*boxes))))


def padded(
    terms: Terms, member: int, identity: bytes, secret: bytes, values: Sequence[Sequence[int]]
) -> Input:
    own = seeds(terms, member, secret)
    vectors, boxes = [], []
    for v, vector in enumerate(terms.vectors):
        pad = keystream(own[v], v, vector.length, vector.bits)
        vectors.append(pack(add([x % 2**vector.bits for x in values[v]], 1, pad, vector.bits), vector.bits))
        boxes.append(seal(derive(secret, b"box"), terms.holder, own[v], terms.place(member, v)))
    text_ = signed_text(terms, member, sha256(fields(*vectors)), boxes)
    return Input(tuple(vectors), tuple(boxes), sign(identity, text_))


# The server


def check_input(terms: Terms, member: int, came: Input) -> None:
    demand([len(one) for one in came.vectors] == terms.sizes(), "vectors of other lengths")
    for one, vector in zip(came.vectors, terms.vectors, strict=True):
        unpack(one, vector.length, vector.bits)
    demand([len(one) for one in came.boxes] == [80] * len(terms.vectors), "boxes of other lengths")
    signed = signed_text(terms, member, sha256(fields(*came.vectors)), came.boxes)
    verify(terms.members[member][1], signed, came.signature)


def request_digest(terms: Terms, asked: Request) -> bytes:
    parts = (terms.context(), u32(*asked.members), fields(*asked.inputs), fields(*asked.boxes))
    return digest("two-server request", b"", fields(*parts))


def totals(
    terms: Terms, inputs: Sequence[Input], own: bytes, asked: Request, sealed: bytes
) -> list[list[int]]:
    pads = unseal(own, sealed, request_digest(terms, asked))
    demand(len(pads) == sum(terms.sizes()), "pads of another length")
    found, start = [], 0
    for v, (vector, size) in enumerate(zip(terms.vectors, terms.sizes(), strict=True)):
        total = [0] * vector.length
        for one in inputs:
            total = add(total, 1, unpack(one.vectors[v], vector.length, vector.bits), vector.bits)
        total = add(total, -1, unpack(pads[start : start + size], vector.length, vector.bits), vector.bits)
        found.append([x - 2**vector.bits if x >= 2 ** (vector.bits - 1) else x for x in total])
        start += size
    return found


# The key holder


def check_request(terms: Terms, least: int, asked: Request) -> None:
    members, each = asked.members, len(terms.vectors)
    demand(len(asked.task) == 32 and asked.task == terms.task, "another task")
    demand(len(asked.boxes) == each * len(members), "boxes for other members")
    demand(len(asked.inputs) == len(asked.signatures) == len(members), "not one of each for a member")
    demand(ascends(members) and len(members) >= least, "too few, or out of order")
    for place, member in enumerate(members):
        demand(0 <= member < len(terms.members), "not a member")
        boxes = asked.boxes[each * place : each * (place + 1)]
        verify(
            terms.members[member][1],
            signed_text(terms, member, asked.inputs[place], boxes),
            asked.signatures[place],
        )


def opened(terms: Terms, key: bytes, asked: Request) -> list[list[bytes] | None]:
    """Each member's seeds, or None."""
    found: list[list[bytes] | None] = []
    each = len(terms.vectors)
    for place, member in enumerate(asked.members):
        boxes = asked.boxes[each * place : each * (place + 1)]
        try:
            demand(all(len(one) == 80 for one in boxes), "a box of another length")
            found.append([unseal(key, one, terms.place(member, v)) for v, one in enumerate(boxes)])
        except Refused:
            found.append(None)
    return found


def answer(terms: Terms, lasting: bytes, asked: Request, all_seeds: Sequence[Sequence[bytes]]) -> bytes:
    pads = b""
    for v, vector in enumerate(terms.vectors):
        total = [0] * vector.length
        for own in all_seeds:
            total = add(total, 1, keystream(own[v], v, vector.length, vector.bits), vector.bits)
        pads += pack(total, vector.bits)
    return seal(derive(lasting, b"two-server seals"), terms.server, pads, request_digest(terms, asked))


def box_key(lasting: bytes) -> bytes:
    return derive(lasting, b"two-server boxes")
