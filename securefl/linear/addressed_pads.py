"""Pads whose score the key holder reads: for files, where the server learns no score.

What the dealt and the told ones share, and the dealt ones. `addressed_told` has the told ones.

    client      r and t from its fresh key and the key holder's; a seed rho, with p = PRG(rho);
                sends y = x + r, rho, g = <r, p> + t - n, and a tag; n is its noise
    server      delta = v - p, and the word s = <y, v> - g + c; c is the offset and the clear part's product
    key holder  checks the tag; z = <r, delta> - t; reads s - z = <x, v> + n + c

The client adds the noise (`pad_terms`): the key holder reads the sum, so its own would hide nothing from it.
n is in the message, so a request that is repeated has the same. A profile that is encrypted again has other
noise, and counts as another one.

The tag follows from the same keys as the pad, for the same terms and name. Under others the word would be a
number of no meaning, which nothing tells from a score.

* The server gets nothing back. y and g are uniform without r and t, so it learns nothing, whatever it sends.
* The key holder sees delta, uniform since p is, and a word from which the score follows. The weights and c
  stay hidden in one sum. With one client, which knows its p, it learns v, and then c.
* Nothing binds the weights. A *malicious* server has the key holder read one word of its choice, such as one
  entry of a vector, in place of a score.
* Two deltas for one fresh key differ by the difference of their weights. So a server sends one, ever, and the
  key holder answers one. Both keep a record, which this module does not.
* Key holder and server together open everything.
"""

from __future__ import annotations

import hmac
import os
from dataclasses import replace
from math import fsum
from typing import Final

from securefl.core.agreement import fields
from securefl.core.errors import CryptoError
from securefl.core.formats import prefix
from securefl.core.keys import PublicKey, SecretKey
from securefl.core.linear import Floats, LinearQuery
from securefl.core.signing import AgreementKey
from securefl.linear import words
from securefl.linear.opener import Score
from securefl.linear.pad_terms import KEY, SECRET, SEED, PadTerms
from securefl.linear.pads import Masked, admit, noise_of, refusal, rounded
from securefl.linear.terms import clear_part
from securefl.linear.words import Words

TAG: Final = 16
_FLOAT: Final = 2.0**-51


def message_bytes(terms: PadTerms) -> int:
    """Exact length of a client's message."""
    return terms.message_bytes + (0 if terms.dealt else terms.word_bytes) + TAG


def item_bytes(terms: PadTerms) -> int:
    """Exact length of an item: a fresh key, a tag, a share of the weights if they are dealt, and one word."""
    return KEY + TAG + terms.word_bytes * (terms.row + 1 if terms.dealt else 1)


def error_bound(terms: PadTerms) -> float:
    """The largest |score - div|. It always holds. The constant c is rounded to a word too."""
    unit = terms.data_scale * terms.weight_scale
    return terms.error_bound + (0.5 / unit + _FLOAT * terms.capacity) / terms.bounds.scale


# What both kinds share ------------------------------------------------------------------------------


def tag_of(
    own: AgreementKey, other: PublicKey, fresh: PublicKey, terms: PadTerms, name: str, told: bytes = b""
) -> bytes:
    """The tag of one message, the same on both sides. told: the digest of the weights, of told pads."""
    purpose = prefix("dealt-pads/tag" if terms.dealt else "pads/tag")
    bound = fields(fresh.raw, terms.digest, name.encode(), *(() if terms.dealt else (told,)))
    return own.agree(other, purpose + bound).reveal()[:TAG]


def received(raw: bytes, clear: Floats, terms: PadTerms, *, sender: str) -> tuple[Masked, bytes]:
    """The gate: a client's message and its tag. Errors as for `pads.admit`."""
    if len(raw) != message_bytes(terms):
        raise refusal(f"Expected {message_bytes(terms)} bytes, got {len(raw)}.", sender, "gate")
    masked = admit(raw[: terms.message_bytes], clear, terms, sender=sender)
    # Of dealt pads the share stands before the words, of told ones the masked noise behind them.
    share = masked.share if terms.dealt else raw[terms.message_bytes : -TAG]
    return replace(masked, share=share), raw[-TAG:]


def drawn_noise(terms: PadTerms) -> int:
    """A client's noise for one message, from the operating system."""
    return noise_of(os.urandom(SECRET), terms.most_noise)


def masked_score(masked: Masked, weights: Words, query: LinearQuery, terms: PadTerms) -> int:
    """<y, v> + c. Raises RemoteProtocolError that names the client if its clear part does not fit."""
    clear = clear_part(masked.clear, terms.bounds, masked.sender)
    constant = fsum((query.offset, *(clear * query.clear)))
    if terms.bounds.product + abs(constant) > terms.capacity:
        raise refusal(
            "Expected plaintext values with which a score fits the words, got values that make it wrap.",
            masked.sender,
        )
    whole = words.product(words.unpacked(masked.words, terms.word_bits), weights)
    # Exact: the scales are powers of two, and Python rounds the float to a whole number of any size.
    return whole + round(constant * terms.data_scale * terms.weight_scale)


def to_word(whole: int, terms: PadTerms) -> bytes:
    """The word of an integer."""
    return int(whole % 2**terms.word_bits).to_bytes(terms.word_bytes, "little")


def fresh_key(
    agreement: AgreementKey, terms: PadTerms, name: str, item: bytes, told: bytes = b"", *, sender: str
) -> PublicKey:
    """The key holder's checks of one item, and its fresh key.

    Raises:
        RemoteProtocolError: another length, a fresh key of small order, or a message that was made for other
            terms, another name, other weights or another key.
    """
    if len(item) != item_bytes(terms):
        raise refusal(f"Expected an item of {item_bytes(terms)} bytes, got {len(item)}.", sender)
    fresh = PublicKey(item[:KEY])
    try:
        tag = tag_of(agreement, fresh, fresh, terms, name, told)
    except CryptoError as error:
        raise refusal(str(error), sender) from None
    if not hmac.compare_digest(tag, item[KEY : KEY + TAG]):
        raise refusal(
            f"Expected a message that its client made for us, this server and {name!r}, got another.", sender
        )
    return fresh


def score(word: int, terms: PadTerms, *, sender: str) -> Score:
    """The score in a word. Raises RemoteProtocolError(sender) if no honest client has it."""
    product = words.centred(word, terms.word_bits) / (terms.data_scale * terms.weight_scale)
    value, error = product / terms.bounds.scale, error_bound(terms)
    if not terms.bounds.allows(value, error):
        raise refusal(
            "Expected a score inside the declared bounds, got one that no honest client gives.",
            sender,
            "score",
        )
    return Score(value, error)


# Dealt pads -----------------------------------------------------------------------------------------


def message(
    hidden: Floats,
    terms: PadTerms,
    name: str,
    to: PublicKey,
    *,
    own: AgreementKey | None = None,
    seed: bytes | None = None,
    noise: int | None = None,
) -> bytes:
    """The client's part: mask its vector. The message must be sealed to the server.

    Args:
        hidden: float64 (h,), inside the declared bounds.
        terms: with `dealt`.
        name: under which the key holder reads the score.
        to: the key holder's X25519 key.
        own, seed: the fresh key and 32 secret bytes, used for nothing else; by default from the operating
            system.
        noise: n, by default drawn (`drawn_noise`). Tests give it.

    Returns:
        `message_bytes` bytes.

    Raises:
        LocalProtocolError: another length, or values outside the bounds.
    """
    own, whole = own or AgreementKey.generate(), rounded(hidden, terms)
    seed, noise = os.urandom(SEED) if seed is None else seed, drawn_noise(terms) if noise is None else noise
    pad, last = pad_and_last(own, to, own.public, terms, name)
    share = to_word(words.product(pad, share_of_client(seed, terms)) + last - noise, terms)
    masked = words.packed(words.plus(whole, pad))
    return terms.place + own.public.raw + seed + share + masked + tag_of(own, to, own.public, terms, name)


def pad_and_last(
    own: AgreementKey, other: PublicKey, fresh: PublicKey, terms: PadTerms, name: str
) -> tuple[Words, int]:
    """The pad of one fresh key, and one word more: uniform, the same on both sides."""
    bound = fields(fresh.raw, terms.digest, name.encode())
    key = own.agree(other, prefix("dealt-pads/pad") + bound)
    stream = words.keystream(key, terms.row + 1, terms.word_bits)
    return stream[:-1], int.from_bytes(words.packed(stream[-1:]), "little")


def share_of_client(seed: bytes, terms: PadTerms) -> Words:
    """The share of the weights that a client's seed stands for."""
    return words.keystream(SecretKey(seed), terms.row, terms.word_bits)


def addressed(masked: Masked, tag: bytes, weights: Words, query: LinearQuery, terms: PadTerms) -> bytes:
    """The server's part: a client's item for the key holder.

    Args:
        masked, tag: the client's message, as `received` returns it.
        weights: of the query, as words (`pads.weights_of`).
        query: of the terms' bounds.
        terms: with `dealt`.

    Raises:
        RemoteProtocolError: names the client whose clear part is outside the bounds, or makes a score wrap.
    """
    whole = masked_score(masked, weights, query, terms)
    delta = words.minus(weights, share_of_client(masked.share[:SEED], terms))
    own = int.from_bytes(masked.share[SEED:], "little")
    return masked.fresh.raw + tag + words.packed(delta) + to_word(whole - own, terms)


def read(agreement: AgreementKey, terms: PadTerms, name: str, item: bytes, *, sender: str) -> int:
    """The key holder's part: the word <x, v> + n + c of one item.

    Args:
        agreement: the key that the client agreed with.
        terms: with `dealt`.
        name: under which the client made its message.
        item: `item_bytes` bytes.
        sender: the name for refusals.

    Raises:
        RemoteProtocolError: as for `fresh_key`.
    """
    fresh = fresh_key(agreement, terms, name, item, sender=sender)
    end = len(item) - terms.word_bytes
    pad, last = pad_and_last(agreement, fresh, fresh, terms, name)
    sums = words.product(pad, words.unpacked(item[KEY + TAG : end], terms.word_bits)) - last
    word: int = (int.from_bytes(item[end:], "little") - sums) % 2**terms.word_bits
    return word
