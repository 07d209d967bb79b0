"""The wire form of ring elements, and the checks that every received element passes.

Bytes of a peer never reach SEAL's own deserialisation: forged headers crash it, make it read beyond the
input, or pass without an error. A message is a tag and residues modulo each prime: little-endian integers of
as many bytes as their prime needs, in an exact length. Sizes, scales, parameter ids and flags are not sent,
so a peer cannot forge them. The tag binds kind, version, key and terms. It detects mix-ups. Authenticated
channels stop forgery.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import RemoteProtocolError
from securefl.core.formats import prefix

TAG: Final = 16
Residues = NDArray[np.uint64]


def tag(kind: str, session: bytes, terms: bytes) -> bytes:
    """The first bytes of every message of this kind under this key and these terms."""
    return hashlib.sha256(prefix(f"he/{kind}") + session + terms).digest()[:TAG]


def integer_size(modulus: int) -> int:
    """The number of bytes of an integer mod `modulus`."""
    return (modulus.bit_length() + 7) // 8


def residues_size(polynomials: int, primes: tuple[int, ...], degree: int) -> int:
    """The number of bytes of so many ring elements (`polynomials`)."""
    return polynomials * degree * sum(map(integer_size, primes))


def pack(residues: Residues, primes: tuple[int, ...]) -> bytes:
    """Residues of shape (polynomials, primes, degree), uint64, as bytes."""
    # Of each little-endian word, only the low bytes that its prime can use are sent. The others are zero.
    octets = np.ascontiguousarray(residues, dtype="<u8").view(np.uint8).reshape(*residues.shape, 8)
    rows = (poly[i, :, : integer_size(p)].tobytes() for poly in octets for i, p in enumerate(primes))
    return b"".join(rows)


def unpack(raw: bytes, polynomials: int, primes: tuple[int, ...], degree: int, *, sender: str) -> Residues:
    """The inverse of `pack`. It refuses another length, and any residue that is not below its prime."""
    _exact(raw, residues_size(polynomials, primes, degree), "residues", sender)
    residues = np.empty((polynomials, len(primes), degree), dtype=np.uint64)
    octets, start = np.frombuffer(raw, dtype=np.uint8), 0
    for poly in residues:
        for row, prime in zip(poly, primes, strict=True):
            width = integer_size(prime)
            wide = np.zeros((degree, 8), dtype=np.uint8)
            wide[:, :width] = octets[start : start + degree * width].reshape(degree, width)
            row[:] = wide.view("<u8")[:, 0]
            # Each integer has one encoding. A residue that is not reduced would be a second one.
            if (worst := int(row.max())) >= prime:
                raise _refusal(f"Expected residues below {prime}, got {worst}", sender)
            start += degree * width
    return residues


def unpack_integer(raw: bytes, modulus: int, *, sender: str) -> int:
    """A little-endian integer mod `modulus`, of exact length."""
    _exact(raw, integer_size(modulus), "an integer", sender)
    if (value := int.from_bytes(raw, "little")) >= modulus:
        raise _refusal("Expected an integer below the modulus, got a larger one", sender)
    return value


def pack_integer(value: int, modulus: int) -> bytes:
    """The inverse of `unpack_integer`."""
    return value.to_bytes(integer_size(modulus), "little")


def body(raw: bytes, expected: bytes, size: int, *, sender: str) -> bytes:
    """The `size` bytes after the tag. Refuses another length or another tag."""
    _exact(raw, TAG + size, "a message", sender)
    if raw[:TAG] != expected:
        raise _refusal("Expected this message's tag, got one of another kind, key or set of terms", sender)
    return raw[TAG:]


def not_transparent(residues: Residues, *, sender: str) -> None:
    """Refuse a ciphertext whose second polynomial is zero modulo a prime: it would hide nothing."""
    if not residues[1].any(axis=-1).all():
        raise _refusal("Expected a ciphertext or a key, got a transparent one, which hides nothing", sender)


def _exact(raw: bytes, size: int, what: str, sender: str) -> None:
    if not isinstance(raw, bytes):
        raise _refusal(f"Expected {what} as bytes, got {type(raw).__name__}", sender)
    if len(raw) != size:
        raise _refusal(f"Expected {what} of {size} bytes, got {len(raw)}", sender)


def _refusal(what: str, sender: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{what}; refused before any arithmetic.", sender=sender, phase="gate")
