"""Told pads whose score the key holder reads: the weights are declared before clients mask.

    server      declares d = H(salt, v)
    client      as in `pads`: sends y = x + r, with r and t from (its fresh key, the key holder's, d); its
                noise as b = n + t; and a tag
    server      salt and v, and for each client s = <y, v> + b + c
    key holder  checks v, computes d from it, checks the tag; reads s - <r, v> - t = <x, v> + n + c

The client adds the noise, since the key holder reads the sum: noise of its own would hide nothing from it.

* The server gets nothing back, and the key holder reads a sum with the declared weights or none: for others
  it derives another tag and unrelated pads. So a *malicious* server has it read no entry of a vector.
* The key holder sees v, so it learns the server's weights.
* Key holder and server together open everything.
"""

from __future__ import annotations

import numpy as np

from securefl.core.errors import ConfigError
from securefl.core.keys import PublicKey
from securefl.core.linear import Floats, LinearQuery
from securefl.core.signing import AgreementKey
from securefl.linear import words
from securefl.linear.addressed_pads import drawn_noise, fresh_key, masked_score, tag_of, to_word
from securefl.linear.pad_terms import SALT, PadTerms
from securefl.linear.pads import Masked, commitment, form, mask, pad_and_rest
from securefl.linear.words import Words

_NOTHING_CLEAR: Floats = np.zeros(0)
_QUERY = ""
"""The digest of the weights is one for all clients, whatever name each has."""


def head_bytes(terms: PadTerms) -> int:
    """Exact length of what stands before the items: the salt and the weights."""
    return SALT + terms.word_bytes * terms.row


def declared(terms: PadTerms, salt: bytes, weights: Words) -> bytes:
    """The digest of the weights. salt: 32 bytes that follow from nothing that others know."""
    return commitment(terms, _QUERY, salt, words.packed(weights))


def message(
    hidden: Floats,
    terms: PadTerms,
    name: str,
    told: bytes,
    to: PublicKey,
    *,
    own: AgreementKey | None = None,
    noise: int | None = None,
) -> bytes:
    """The client's part: its message.

    Args:
        noise: as for `addressed_pads.message`. The others, and errors, as for `pads.mask`.
    """
    own, noise = own or AgreementKey.generate(), drawn_noise(terms) if noise is None else noise
    masked = mask(hidden, _NOTHING_CLEAR, terms, name, told, to, own=own)
    _, rest = pad_and_rest(own, to, own.public, terms, name, told)
    share = to_word(noise + _last(rest, terms), terms)
    return masked.packed + share + tag_of(own, to, own.public, terms, name, told)


def _last(rest: bytes, terms: PadTerms) -> int:
    return int.from_bytes(rest[: terms.word_bytes], "little")


def addressed(masked: Masked, tag: bytes, weights: Words, query: LinearQuery, terms: PadTerms) -> bytes:
    """The server's part: a client's item. Arguments and errors as for `addressed_pads.addressed`."""
    whole = masked_score(masked, weights, query, terms) + int.from_bytes(masked.share, "little")
    return masked.fresh.raw + tag + to_word(whole, terms)


def checked(head: bytes, terms: PadTerms) -> tuple[Words, bytes]:
    """The weights before the items, and their digest. Raises ConfigError if no query in bounds has them."""
    salt, weights = head[:SALT], words.unpacked(head[SALT:], terms.word_bits)
    if (wrong := form(weights, terms)) is not None:
        raise ConfigError(wrong)
    # Computed from the weights that came, never taken from a header.
    return weights, declared(terms, salt, weights)


def read(
    agreement: AgreementKey,
    terms: PadTerms,
    name: str,
    told: bytes,
    weights: Words,
    item: bytes,
    *,
    sender: str,
) -> int:
    """The key holder's part: the word <x, v> + n + c of one item.

    Args:
        weights, told: as `checked` returns them. The others, and errors, as for `addressed_pads.read`.
    """
    fresh = fresh_key(agreement, terms, name, item, told, sender=sender)
    pad, rest = pad_and_rest(agreement, fresh, fresh, terms, name, told)
    word = int.from_bytes(item[-terms.word_bytes :], "little") - words.product(pad, weights)
    return int((word - _last(rest, terms)) % 2**terms.word_bits)
