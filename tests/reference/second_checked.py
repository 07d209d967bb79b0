"""A second implementation of checked openings, from SPEC.md section 6 alone, in Python's integers.

It has no code of securefl. A refusal is `Refused`. It covers the compact ring with one ciphertext: what a
client signs, a server's request, and the key holder's reply without noise.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reference.second_secagg import Refused, demand, fields, sha256, sign, u32, verify

N = 4096
PRIMES = (1152921504606830593, 536813569)
BYTES = tuple((p.bit_length() + 7) // 8 for p in PRIMES)
Q = PRIMES[0] * PRIMES[1]
HALF = N * sum(BYTES)
SHARE = (Q.bit_length() + 7) // 8
WEIGHT_SCALE = 2**24
REFUSED = b"\xff" * SHARE


@dataclass(frozen=True)
class Terms:
    """text: of the key's terms. key: names the public key."""

    text: str
    context: bytes
    key: bytes
    weight_norm: float

    @property
    def digest(self) -> bytes:
        return sha256(b"securefl/8|linear/terms|" + self.text.encode())

    @property
    def place(self) -> bytes:
        return sha256(b"securefl/8|checked/place|" + fields(self.digest, self.context))

    @property
    def largest(self) -> float:
        return WEIGHT_SCALE * self.weight_norm * math.sqrt(2 / N) + math.sqrt(N) / 2

    @property
    def width(self) -> int:
        return (math.floor(self.largest).bit_length() + 8) // 8

    def commitment(self, name: str, salt: bytes, weights: bytes) -> bytes:
        return sha256(b"securefl/8|checked|" + fields(salt, self.place, name.encode(), weights))

    def said(self, name: str, told: bytes, client: str, h1: bytes) -> bytes:
        whole = fields(self.key, self.place, name.encode(), told, client.encode(), h1)
        return b"securefl/8|checked/statement|" + whole


def hash_of(c1: bytes) -> bytes:
    return sha256(b"securefl/8|checked/c1|" + c1)


def client_message(
    terms: Terms, tag: bytes, c0: bytes, c1: bytes, name: str, told: bytes, client: str, own: bytes
) -> bytes:
    return tag + c0 + c1 + sign(own, terms.said(name, told, client, hash_of(c1)))


def request(
    terms: Terms, index: int, salt: bytes, weights: bytes, entries: Sequence[bytes], own: bytes
) -> bytes:
    """entries: number, signature and c1 of each client."""
    head = u32(index) + salt + weights
    return head + b"".join(entries) + sign(own, framed(terms, head, entries))


def framed(terms: Terms, head: bytes, entries: Sequence[bytes]) -> bytes:
    """What the server signs: of each c1 its hash."""
    short = head + b"".join(one[:68] + hash_of(one[68:]) for one in entries)
    return b"securefl/8|checked/request|" + fields(terms.place) + short


def integers(raw: bytes, width: int) -> list[int]:
    return [int.from_bytes(raw[at : at + width], "little", signed=True) for at in range(0, len(raw), width)]


def residues(raw: bytes) -> list[list[int]]:
    found, at = [], 0
    for prime, width in zip(PRIMES, BYTES, strict=True):
        found.append([int.from_bytes(raw[at + width * i : at + width * (i + 1)], "little") for i in range(N)])
        at += width * N
        demand(max(found[-1]) < prime, "a residue that is not reduced")
        demand(any(found[-1]), "transparent")
    return found


# The ring -------------------------------------------------------------------------------------------


def root(prime: int) -> int:
    """The least primitive 2N-th root of unity."""
    exponent = (prime - 1) // (2 * N)
    one = next(g for x in range(2, 99) if pow(g := pow(x, exponent, prime), N, prime) == prime - 1)
    square, least, power = one * one % prime, one, one
    for _ in range(N):
        power = power * square % prime
        least = min(least, power)
    return least


def reversed_bits(i: int) -> int:
    return int(format(i, f"0{N.bit_length() - 1}b")[::-1], 2)


def evaluated(coefficients: Sequence[int], prime: int) -> list[int]:
    """Values at the odd powers of the root, in bit-reversed order."""
    psi = root(prime)
    values = [c * pow(psi, i, prime) % prime for i, c in enumerate(coefficients)]
    values = _transform(values, psi * psi % prime, prime)
    return [values[reversed_bits(i)] for i in range(N)]


def _transform(values: list[int], omega: int, prime: int) -> list[int]:
    if len(values) == 1:
        return values
    even = _transform(values[::2], omega * omega % prime, prime)
    odd = _transform(values[1::2], omega * omega % prime, prime)
    power, first, second = 1, [], []
    for a, b in zip(even, odd, strict=True):
        first.append((a + power * b) % prime)
        second.append((a - power * b) % prime)
        power = power * omega % prime
    return first + second


def opened(weights: Sequence[int], secret: Sequence[int], half: Sequence[Sequence[int]]) -> int:
    """(V c1 s)_0 mod Q. With s = 1 it is (V c0)_0."""
    found = []
    for prime, own in zip(PRIMES, half, strict=True):
        pairs = zip(evaluated(weights, prime), evaluated(secret, prime), own, strict=True)
        total = sum(v * s * c for v, s, c in pairs)
        found.append(total * pow(N, -1, prime) % prime)
    return sum(r * (Q // p) * pow(Q // p, -1, p) for r, p in zip(found, PRIMES, strict=True)) % Q


# The key holder ---------------------------------------------------------------------------------------


def shares(
    terms: Terms,
    item: bytes,
    names: Sequence[str],
    server: bytes,
    members: Mapping[int, tuple[str, bytes]],
    secret: Sequence[int],
) -> list[int | None]:
    """The share of each entry without noise. None for one that is refused."""
    start, size = 36 + terms.width * N, 68 + HALF
    count, rest = divmod(len(item) - start - 64, size)
    demand(count > 0 and rest == 0, "length")
    head, entries = item[:start], [item[at : at + size] for at in range(start, len(item) - 64, size)]
    verify(server, framed(terms, head, entries), item[-64:])
    (index,) = struct.unpack("<I", head[:4])
    demand(index < len(names), "index")
    weights = integers(head[36:], terms.width)
    demand(math.sqrt(sum(w * w for w in weights)) <= terms.largest * (1 + 1e-9), "norm")
    demand(len({one[:4] for one in entries}) == len(entries), "twice")
    told = terms.commitment(names[index], head[4:36], head[36:])
    found: list[int | None] = []
    for one in entries:
        number, signature, c1 = struct.unpack("<I", one[:4])[0], one[4:68], one[68:]
        client, public = members.get(number, ("", bytes(32)))
        try:
            demand(client != "", "no member")
            verify(public, terms.said(names[index], told, client, hash_of(c1)), signature)
        except Refused:
            found.append(None)
        else:
            found.append(opened(weights, secret, residues(c1)))
    return found
