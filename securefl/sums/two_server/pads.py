"""Pads of a two-server sum: the seeds they are derived from, the boxes of these seeds, and sums of pads.

The pad of a vector is the keystream of its seed (`secagg.masks`). There is one seed for one vector of one
client in one attempt. It is derived from the secret of the round in the client's journal and from the
agreement, which names the attempt. So an attempt that is run again sends the same bytes, and another attempt
has other seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import fields, tagged, u32
from securefl.core.entropy import derived
from securefl.core.errors import CryptoError
from securefl.core.keys import SecretKey, Share
from securefl.core.signing import AgreementKey, seal, unseal
from securefl.secagg.masks import Words, apply_masks
from securefl.secagg.packing import centred, pack, packed_bytes, reduce, unpack, word, words
from securefl.sums.two_server.agreement import Agreement

SEED_BYTES: Final = 32
BOX_BYTES: Final = 32 + SEED_BYTES + 16
"""A fresh key, the seed, and the tag of the AEAD."""
SEALING_BYTES: Final = 32 + 16


# Seeds and boxes --------------------------------------------------------------------------------


def seeds_of(secret: SecretKey, agreed: Agreement, member: int) -> tuple[SecretKey, ...]:
    """A client's seeds, one per vector, for this attempt only."""
    numbers = range(len(agreed.vectors))
    return tuple(derived(secret, b"seed|" + _place(agreed, member, number)) for number in numbers)


def box(secret: SecretKey, agreed: Agreement, member: int, number: int, seed: SecretKey) -> Share:
    """A seed in a box for the key holder, bound to this member, this vector and this attempt."""
    place = _place(agreed, member, number)
    return Share(seal(agreed.holder, seed.reveal(), place, secret=derived(secret, b"box")))


def opened(key: AgreementKey, agreed: Agreement, member: int, boxes: Sequence[Share]) -> list[SecretKey]:
    """A member's seeds, one per vector. Raises CryptoError for a box that does not open at this place."""
    seeds = []
    for number, one in enumerate(boxes):
        if len(one.raw) != BOX_BYTES:
            raise CryptoError(f"Expected a box of {BOX_BYTES} bytes, got {len(one.raw)}.")
        seeds.append(SecretKey(unseal(key, one.raw, _place(agreed, member, number))))
    return seeds


def _place(agreed: Agreement, member: int, number: int) -> bytes:
    """The context of a box: agreement, sum and attempt, and the client's name."""
    vector, name = agreed.vectors[number], agreed.roster.members[member].name
    return tagged(
        b"two-server box", agreed.context, fields(u32(member, number), name.encode(), vector.encoded())
    )


# Vectors ----------------------------------------------------------------------------------------


def total_pads(
    agreed: Agreement, seeds: Sequence[Sequence[SecretKey]], noise: Mapping[str, NDArray[np.int64]]
) -> bytes:
    """The sums of all members' pads, packed one after the other.

    Noise is subtracted from the sums. The server subtracts the sums, so its total contains the noise.
    """
    parts = []
    for number, vector in enumerate(agreed.vectors):
        total: Words = np.zeros(vector.length, word(vector.bits))
        apply_masks(total, number, add=[own[number] for own in seeds])
        if vector.name in noise:
            total -= words(noise[vector.name], vector.bits)
        reduce(total, vector.bits)
        parts.append(pack(total, vector.bits).tobytes())
    return b"".join(parts)


def pads_of(agreed: Agreement, packed: bytes) -> list[Words]:
    """The inverse of `total_pads`. Raises CryptoError for another length, or bits that no value has."""
    if len(packed) != pads_bytes(agreed):
        raise CryptoError(f"Expected {pads_bytes(agreed)} bytes of pads, got {len(packed)}.")
    rest, found = np.frombuffer(packed, np.uint8), []
    for vector in agreed.vectors:
        size = packed_bytes(vector.length, vector.bits)
        found.append(unpack(rest[:size], vector.length, vector.bits))
        rest = rest[size:]
    return found


def pads_bytes(agreed: Agreement) -> int:
    """The number of bytes of the sums of pads before they are sealed."""
    return sum(packed_bytes(vector.length, vector.bits) for vector in agreed.vectors)


def unpadded(padded: Sequence[Words], pads: Words, bits: int) -> NDArray[np.int64]:
    """The sum of the clients' integers, from all members' padded vectors and the sum of their pads."""
    total: Words = np.zeros(len(pads), pads.dtype)
    # Words wrap modulo 2^32 or 2^64, which 2^bits divides, so one reduction at the end is enough.
    for one in padded:
        total += one
    total -= pads
    return centred(total, bits)
