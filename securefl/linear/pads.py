"""Pads: a client masks its vector, and no party has a homomorphic key.

    server      v = round(s_w w); draws a salt, and tells each client d = H(salt, v) before it asks
    client      x = round(s_x f); y = x + r mod t, with r from (its fresh X25519 key, the key holder's, d)
    server      tells the key holder salt, v, and the fresh keys of the clients whose y came, signed
    key holder  checks v, computes d from it, derives each r and n under that d, and answers <r, v> - n mod t
    server      <y, v> - (<r, v> - n) = <x, v> + n

t is 2^64 or 2^128. n is bounded noise, without which one entry would be read from S modulo a number
(`pad_terms` has the rule and its proof). The digest d of the weights is in the key of every pad, so a pad
opens one inner product
and no other: for other weights, another salt or another place the key holder derives unrelated pads.

* The server sees y, which is uniform without the pads, and of each client one sum, with noise, with weights
  that it declared before the client answered. A *malicious* server gets no more: there is no key to read, and
  clients that collude with it have their own pads only.
* The key holder sees v, so it learns the server's weights. It learns how many clients are asked and how
  many answer, not which. It sees no y, which travels sealed to the server. It can shift a score without
  knowing it.
* Key holder and server together open everything.

The fresh key travels with y, so no pad is used twice and a client keeps no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from securefl.core.agreement import Directory, Identity, fields, u32
from securefl.core.errors import ConfigError, CryptoError
from securefl.core.formats import prefix
from securefl.core.keys import PublicKey, SecretKey
from securefl.core.linear import Floats, LinearBounds
from securefl.core.signing import AgreementKey
from securefl.core.wire import Header
from securefl.he.parameters import STRONG
from securefl.linear import words
from securefl.linear.pad_terms import COVER, KEY, PLACE, SECRET, PadTerms
from securefl.linear.scheme import LinearScheme, Report, Sent
from securefl.linear.turn import Answer, Declared, PublicQuery, refusal
from securefl.linear.words import Words
from securefl.storage.own_record import PartyKeys

_WORDS: Final[Mapping[str, int]] = {STRONG.name: 64, "words-64": 64, "words-128": 128}
"""The length of words by the plan's `parameters`, whose default is a homomorphic key's."""


# The client -----------------------------------------------------------------------------------------


def mask(
    hidden: Floats,
    terms: PadTerms,
    name: str,
    told: bytes,
    to: PublicKey,
    *,
    own: AgreementKey | None = None,
) -> bytes:
    """The client's part: mask its vector. The message must be sealed to the server.

    Args:
        hidden: float64 (h,), inside the declared bounds.
        terms: the terms of the exchange.
        name: of the query.
        told: the digest of the query's weights, 32 bytes, as the server declared it.
        to: the key holder's X25519 key.
        own: the fresh key, used for nothing else; by default from the operating system.

    Raises:
        DataError: another length, or values outside the bounds.
    """
    own, whole = own or AgreementKey.generate(), rounded(hidden, terms)
    pad, _ = pad_and_rest(own, to, own.public, terms, name, told)
    return terms.place + own.public.raw + words.packed(words.plus(whole, pad))


def rounded(hidden: Floats, terms: PadTerms) -> Words:
    """A client's vector as words. Raises DataError for another length or values outside the bounds."""
    terms.bounds.require_hidden(hidden)
    return words.from_floats(np.rint(hidden * terms.data_scale), terms.word_bits)


def pad_and_rest(
    own: AgreementKey, other: PublicKey, fresh: PublicKey, terms: PadTerms, name: str, told: bytes
) -> tuple[Words, bytes]:
    """The pad of one fresh key, and 32 bytes more: uniform, the same on both sides.

    The rest is the secret of the noise in rounds, and hides the client's noise between files.
    """
    bound = fields(fresh.raw, terms.digest, name.encode(), told)
    key: SecretKey = own.agree(other, prefix("pads/pad") + bound)
    more = 8 * SECRET // terms.word_bits
    stream = words.keystream(key, terms.row + more, terms.word_bits)
    return stream[: terms.row], words.packed(stream[terms.row :])


def noise_of(secret: bytes, most: int) -> int:
    """A whole number from -most to most that follows from 32 secret bytes, uniform but for 2^-128.

    most: below 2^127.
    """
    return int.from_bytes(secret, "little") % (2 * most + 1) - most


# The server -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Masked:
    """A client's message as it passed the gate. share: between files alone (`linear.addressed`)."""

    fresh: PublicKey
    words: Words = field(repr=False)
    share: bytes = field(default=b"", repr=False)


def admit(message: bytes, terms: PadTerms, *, sender: str) -> Masked:
    """The gate: the message of a client, or RemoteProtocolError(sender).

    It refuses a weak fresh key, for which the key holder would refuse the whole request, and the message of
    another place: with pads derived for other terms, the result would be a wrong score.
    """
    if len(message) != terms.message_bytes:
        raise refusal(f"Expected {terms.message_bytes} bytes, got {len(message)}.", sender, "gate")
    place, fresh = message[:PLACE], PublicKey(message[PLACE : PLACE + KEY])
    if place != terms.place:
        raise refusal(
            "Expected our tag, got the tag of another round, session or set of terms.", sender, "gate"
        )
    try:
        AgreementKey.generate().agree(fresh, prefix("pads/gate"))
    except CryptoError:
        raise refusal("Expected a fresh key for key agreement, got a weak one.", sender, "gate") from None
    at = len(message) - terms.weights_bytes
    return Masked(fresh, terms.unpacked(message[at:]), message[PLACE + KEY : at])


# The key holder -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PadAnswerer:
    """The key holder's part: <r, v> - n of each client.

    agreement: its X25519 key, made anew in each process, so that a restart forgets nothing that counts.
    """

    agreement: AgreementKey
    key: ClassVar[bytes] = b""

    def begin(self, query: PublicQuery, weights: Words) -> Answer:
        terms = query.terms
        most, modulus = COVER * words.total(weights), 2**terms.word_bits

        def answer(entry: bytes, sender: str) -> bytes:
            own, fresh = self.agreement, PublicKey(entry)
            try:
                pad, secret = pad_and_rest(own, fresh, fresh, terms, query.name, query.told)
            except CryptoError as error:  # a weak fresh key
                raise refusal(str(error), sender) from None
            found: int = (words.product(pad, weights) - noise_of(secret, most)) % modulus
            return found.to_bytes(terms.word_bytes, "little")

        return answer


# The scheme -----------------------------------------------------------------------------------------


class Pads(LinearScheme):
    """`scores = "pads"`: words masked by pads that the key holder knows. Arguments as for `CheckedCkks`."""

    key_holder_learns: ClassVar[str] = (
        "how many are asked and answer, not which; the weights of each query, such as the server's baseline"
    )

    def __init__(self, parameters: str, asks: int, clients: int) -> None:
        if parameters not in _WORDS:
            raise ConfigError(
                f'Expected `parameters` of "words-64" or "words-128" with scores = "pads", got '
                f"{parameters!r}: pads have no homomorphic key. Leave the line out for words of 64 bits."
            )
        self._word_bits = _WORDS[parameters]

    def terms(self, bounds: LinearBounds, header: Header) -> PadTerms:
        # Another session, round, stage or attempt has other pads.
        context = header.session + u32(*header.place())
        return PadTerms(bounds=bounds, context=context, word_bits=self._word_bits)

    def purpose(self, terms: PadTerms) -> bytes:
        return b"pads"

    def generated(self, terms: PadTerms, own: PartyKeys, report: Report) -> tuple[PadAnswerer, bytes]:
        # In memory alone: a key holder that is restored from a backup answers under another key.
        made = PadAnswerer(AgreementKey.generate())
        return made, made.agreement.public.raw

    def public(self, terms: PadTerms, raw: bytes) -> PadKey:
        AgreementKey.generate().agree(PublicKey(raw), prefix("pads/pinned"))  # refuses a weak one
        return PadKey(PublicKey(raw))

    def admit(self, sealed: bytes, terms: PadTerms, key: PadKey, sender: str) -> Masked:
        return admit(sealed, terms, sender=sender)

    def entry(self, declared: Declared, key: PadKey, one: Sent, directory: Directory) -> tuple[bytes, int]:
        message: Masked = one.message
        return message.fresh.raw, words.product(message.words, declared.factors)


@dataclass(frozen=True)
class PadKey:
    """The key holder's key for agreeing on pads, which it signed."""

    agreement: PublicKey
    name: ClassVar[bytes] = b""

    def concealer(self, terms: PadTerms) -> PadKey:
        return self

    def conceal(self, query: PublicQuery, own: Identity | None, hidden: Floats) -> bytes:
        return mask(hidden, query.terms, query.name, query.told, self.agreement)

    def prepare(self) -> bool:
        return False  # a pad binds its query's place: nothing of it is known before the call
