"""What pads make of one vector, seen from every side at once, for a page that shows a match.

In a real matching no party has all of this: it takes the key holder's secret and the client's vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from securefl.core.linear import Floats, LinearQuery
from securefl.core.signing import AgreementKey
from securefl.linear import words
from securefl.linear.addressed import TAG, PadFiles, pad_and_last
from securefl.linear.pad_terms import KEY
from securefl.linear.pads import admit, rounded


@dataclass(frozen=True, kw_only=True, eq=False)
class PaddedVector:
    """What pads make of one client's vector. All are integers below 2^bits, in one order.

    plain: the client's values as integers. masked: what the evaluator sees of them. share: what the key
    holder sees of the baseline's weights. word: the one integer of the score's side. regained: the largest
    difference between `plain` and what evaluator and key holder together compute from `masked`.
    """

    bits: int
    plain: Sequence[int]
    masked: Sequence[int]
    weights: Sequence[int]
    share: Sequence[int]
    word: int
    regained: int


def padded_vector(
    files: PadFiles,
    holder: AgreementKey,
    query: LinearQuery,
    vector: Floats,
    *,
    label: str,
    message: bytes,
    request: bytes,
) -> PaddedVector:
    """What the pads of one match made of a vector.

    Args:
        files: the cipher of the match.
        holder: the key holder's key for pads.
        query: the baseline's.
        vector: the client's, before it was concealed.
        label: the client's.
        message: what the evaluator got of the client, and `request` what the key holder got of it.
    """
    terms = files.terms
    masked = admit(message[: terms.message_bytes], terms, sender=label)
    arrived, end = masked.words, files.item_bytes - terms.word_bytes
    # What evaluator and key holder could do together: take off the pad, which follows from both their parts.
    pad, _ = pad_and_last(holder, masked.fresh, masked.fresh, terms, label)
    plain, bits = rounded(vector, terms), terms.word_bits
    apart = words.minus(words.minus(arrived, pad), plain)
    return PaddedVector(
        bits=bits,
        plain=[words.centred(one, bits) for one in _integers(plain)],
        masked=_integers(arrived),
        weights=[words.centred(one, bits) for one in _integers(terms.encoded(query))],
        share=_integers(words.unpacked(request[KEY + TAG : end], bits)),
        word=int.from_bytes(request[end:], "little"),
        regained=max(abs(words.centred(one, bits)) for one in _integers(apart)),
    )


def _integers(row: words.Words) -> list[int]:
    """Words as integers from 0 to 2^bits - 1."""
    raw = words.packed(row)
    size = len(raw) // len(row)
    return [int.from_bytes(raw[at : at + size], "little") for at in range(0, len(raw), size)]
