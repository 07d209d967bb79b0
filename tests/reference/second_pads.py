"""Second pads, with nothing of securefl in them: plain and slow, to disagree with the first.

Bytes, plain integers and lists; a refusal is `Refused`. Never use it for real.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from reference.second_secagg import (
    demand,
    digest,
    fields,
    hkdf,
    sha256,
    sign,
    u32,
    verify,
    x25519,
    x25519_public,
)
from reference.second_two_server import unseal

FILES = b"securefl/8|matching/pads|"


@dataclass(frozen=True)
class Terms:
    """`text` is that of the terms; `ranges` are (low, high) of each weight, in units of 1 / s_w."""

    text: bytes
    bits: int
    row: int
    longest: float
    ranges: tuple[tuple[float, float], ...]
    spread: float = math.inf

    @property
    def place(self) -> bytes:
        return sha256(b"securefl/8|pads/place|" + self.text)[:16]


def signed(own: int, bits: int) -> int:
    return own - (1 << bits) if own >> (bits - 1) else own


def pack(terms: Terms, values: Sequence[int]) -> bytes:
    return b"".join((one % (1 << terms.bits)).to_bytes(terms.bits // 8, "little") for one in values)


def unpack(terms: Terms, data: bytes) -> list[int]:
    size = terms.bits // 8
    return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


def stream(terms: Terms, key: bytes, count: int) -> list[int]:
    made = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return unpack(terms, made.update(bytes(count * terms.bits // 8)))


def inner(terms: Terms, one: Sequence[int], other: Sequence[int]) -> int:
    return sum(a * b for a, b in zip(one, other, strict=True)) % (1 << terms.bits)


def weights_digest(terms: Terms, name: bytes, salt: bytes, v: Sequence[int]) -> bytes:
    return digest("weights", b"", fields(salt, terms.text, name, pack(terms, v)))


def told_pad(
    terms: Terms, name: bytes, secret: bytes, other: bytes, fresh: bytes, d: bytes
) -> tuple[list[int], bytes]:
    """The pad, and the 32 bytes of the stream behind it."""
    info = b"securefl/8|pads/pad|" + fields(fresh, terms.text, name, d)
    found = stream(terms, hkdf(x25519(secret, other), info), terms.row + 256 // terms.bits)
    return found[: terms.row], pack(terms, found[terms.row :])


def noise(secret: bytes, v: Sequence[int]) -> int:
    """n, of 32 bytes and signed weights."""
    most = 4 * sum(abs(one) for one in v)
    return int.from_bytes(secret, "little") % (2 * most + 1) - most


def check(terms: Terms, v: Sequence[int]) -> None:
    """The form of signed weights."""
    demand(sum(one * one for one in v) ** 0.5 <= terms.longest, "norm")
    largest, square = max(abs(one) for one in v), sum(one * one for one in v)
    demand(largest > 0 and largest <= terms.spread * (square / len(v)) ** 0.5, "spread")
    for own, (low, high) in zip(v, terms.ranges, strict=True):
        demand(low - 1 <= own <= high + 1, "range")


def dealt_pad(terms: Terms, name: bytes, secret: bytes, other: bytes, fresh: bytes) -> tuple[list[int], int]:
    info = b"securefl/8|dealt-pads/pad|" + fields(fresh, terms.text, name)
    words = stream(terms, hkdf(x25519(secret, other), info), terms.row + 1)
    return words[:-1], words[-1]


def told_message(terms: Terms, name: bytes, e: bytes, kh: bytes, d: bytes, x: Sequence[int]) -> bytes:
    fresh = x25519_public(e)
    pad, _ = told_pad(terms, name, e, kh, fresh, d)
    return terms.place + fresh + pack(terms, [a + b for a, b in zip(x, pad, strict=True)])


def dealt_message(
    terms: Terms, name: bytes, e: bytes, kh: bytes, rho: bytes, x: Sequence[int], n: int
) -> bytes:
    fresh = x25519_public(e)
    pad, last = dealt_pad(terms, name, e, kh, fresh)
    g = inner(terms, pad, stream(terms, rho, terms.row)) + last - n
    masked = [a + b for a, b in zip(x, pad, strict=True)]
    return terms.place + fresh + rho + pack(terms, [g]) + pack(terms, masked)


def item(terms: Terms, server: bytes, body: bytes) -> bytes:
    return body + sign(server, b"securefl/8|pads/request|" + fields(terms.text) + body)


def told_item(
    terms: Terms, server: bytes, index: int, salt: bytes, v: Sequence[int], fresh: Sequence[bytes]
) -> bytes:
    return item(terms, server, u32(index) + salt + pack(terms, v) + b"".join(fresh))


class Holder:
    """The key holder of one place."""

    def __init__(
        self, terms: Terms, secret: bytes, server: bytes, names: Sequence[bytes], cohort: int
    ) -> None:
        self.terms, self.secret, self.server = terms, secret, server
        self.names, self.cohort = list(names), cohort
        self.seen: dict[bytes, tuple[bytes, bytes]] = {}

    def answer(self, request: bytes) -> bytes:
        t = self.terms
        head, each = 4 + 32 + t.row * t.bits // 8, 32
        count, rest = divmod(len(request) - head - 64, each)
        demand(rest == 0 and 0 < count <= self.cohort, "length")
        body = request[:-64]
        verify(self.server, b"securefl/8|pads/request|" + fields(t.text) + body, request[-64:])
        index = int.from_bytes(body[:4], "little")
        demand(index < len(self.names), "index")
        name = self.names[index]
        if name in self.seen:
            demand(self.seen[name][0] == body, "second body")
            return self.seen[name][1]
        items = [body[at : at + each] for at in range(head, len(body), each)]
        reply = self.told_reply(name, body[4:head], items)
        self.seen[name] = body, reply
        return reply

    def told_reply(self, name: bytes, head: bytes, fresh: Sequence[bytes]) -> bytes:
        t, salt, v = self.terms, head[:32], unpack(self.terms, head[32:])
        small = [signed(one, t.bits) for one in v]
        check(t, small)
        demand(len(set(fresh)) == len(fresh), "twice")
        d = weights_digest(t, name, salt, v)
        pads = [told_pad(t, name, self.secret, one, one, d) for one in fresh]
        return pack(t, [inner(t, pad, v) - noise(rest, small) for pad, rest in pads])


# Files (SPEC.md 4)


def pads_secret(signing: bytes) -> bytes:
    """The key holder's X25519 key, which follows from its signing key."""
    return hmac.digest(signing, FILES, "sha256")


def pads_public(signing: bytes, session: bytes) -> bytes:
    """The key as the header of public.key has it."""
    public = x25519_public(pads_secret(signing))
    return public + sign(signing, FILES + session + public)


def file_tag(terms: Terms, label: bytes, secret: bytes, other: bytes, fresh: bytes) -> bytes:
    return hkdf(x25519(secret, other), b"securefl/8|dealt-pads/tag|" + fields(fresh, terms.text, label))[:16]


def file_message(
    terms: Terms, label: bytes, e: bytes, kh: bytes, rho: bytes, x: Sequence[int], n: int
) -> bytes:
    return dealt_message(terms, label, e, kh, rho, x, n) + file_tag(terms, label, e, kh, x25519_public(e))


def file_item(terms: Terms, message: bytes, v: Sequence[int], c: int) -> bytes:
    """The evaluator's request for one score; c is the whole number that the constant rounds to."""
    size = terms.bits // 8
    demand(len(message) == 96 + size * (1 + terms.row), "length")
    demand(message[:16] == terms.place, "place")
    fresh, rho, tag = message[16:48], message[48:80], message[-16:]
    g, y = unpack(terms, message[80 : 80 + size])[0], unpack(terms, message[80 + size : -16])
    delta = [a - b for a, b in zip(v, stream(terms, rho, terms.row), strict=True)]
    return fresh + tag + pack(terms, delta) + pack(terms, [inner(terms, y, v) - g + c])


def declared_digest(terms: Terms, salt: bytes, v: Sequence[int]) -> bytes:
    return weights_digest(terms, b"", salt, v)


def told_file_tag(terms: Terms, label: bytes, secret: bytes, other: bytes, fresh: bytes, d: bytes) -> bytes:
    info = b"securefl/8|pads/tag|" + fields(fresh, terms.text, label, d)
    return hkdf(x25519(secret, other), info)[:16]


def hidden_noise(terms: Terms, rest: bytes, n: int) -> list[int]:
    """n behind the first word of the rest of a pad; with n = 0, that word."""
    return [n + unpack(terms, rest)[0]]


def told_file_message(
    terms: Terms, label: bytes, e: bytes, kh: bytes, d: bytes, x: Sequence[int], n: int
) -> bytes:
    _, rest = told_pad(terms, label, e, kh, x25519_public(e), d)
    tag = told_file_tag(terms, label, e, kh, x25519_public(e), d)
    return told_message(terms, label, e, kh, d, x) + pack(terms, hidden_noise(terms, rest, n)) + tag


def told_file_item(terms: Terms, message: bytes, v: Sequence[int], c: int) -> bytes:
    demand(message[:16] == terms.place, "place")
    *y, b = unpack(terms, message[48:-16])
    return message[16:48] + message[-16:] + pack(terms, [inner(terms, y, v) + b + c])


def told_file_word(
    terms: Terms, label: bytes, secret: bytes, head: bytes, declared: bytes, item: bytes
) -> int:
    """The word that the key holder reads in one item behind its head, salt and weights."""
    salt, v = head[:32], unpack(terms, head[32:])
    check(terms, [signed(one, terms.bits) for one in v])
    d = declared_digest(terms, salt, v)
    demand(d == declared, "declared")
    fresh, tag, s = item[:32], item[32:48], unpack(terms, item[48:])[0]
    demand(tag == told_file_tag(terms, label, secret, fresh, fresh, d), "tag")
    pad, rest = told_pad(terms, label, secret, fresh, fresh, d)
    word = s - inner(terms, pad, v) - hidden_noise(terms, rest, 0)[0]
    return signed(word % (1 << terms.bits), terms.bits)


def file_header(
    session: bytes, evaluator: bytes, labels: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    return {"session": session.hex(), "evaluator": evaluator.hex(), "labels": list(labels), **options}


def file_text(header: Mapping[str, Any], body: bytes, kind: str = "encrypted-scores") -> bytes:
    """What is signed, and what a seal binds if the body is empty."""
    written = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    return b"securefl 8 " + kind.encode() + b"\n" + written + b"\n" + body


class FileHolder:
    """The key holder of a session: it reads each fresh key once."""

    def __init__(self, signing: bytes, evaluator: bytes, named: bytes) -> None:
        self.secret, self.evaluator, self.named = pads_secret(signing), evaluator, named
        self.seen: dict[bytes, bytes] = {}

    def read(self, terms: Terms, header: Mapping[str, Any], body: bytes) -> list[int]:
        """The words of all labels. One that is refused refuses the file, which is plainer than the first."""
        demand(header["evaluator"] == self.named.hex(), "evaluator")
        verify(self.evaluator, file_text(header, body[:-64]), body[-64:])
        plain = unseal(self.secret, body[:-64], file_text(header, b""))
        size = 48 + terms.bits // 8 * (1 + terms.row)
        demand(len(plain) == size * len(header["labels"]), "length")
        items = [plain[at : at + size] for at in range(0, len(plain), size)]
        demand(len({one[:32] for one in items}) == len(items), "twice")
        return [
            self.word(terms, label.encode(), item)
            for label, item in zip(header["labels"], items, strict=True)
        ]

    def word(self, terms: Terms, label: bytes, item: bytes) -> int:
        fresh, tag, words = item[:32], item[32:48], unpack(terms, item[48:])
        demand(tag == file_tag(terms, label, self.secret, fresh, fresh), "tag")
        demand(self.seen.setdefault(fresh, item) == item, "scored once")
        pad, last = dealt_pad(terms, label, self.secret, fresh, fresh)
        word = signed((words[-1] - inner(terms, pad, words[:-1]) + last) % (1 << terms.bits), terms.bits)
        return word
