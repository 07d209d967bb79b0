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

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from securefl.core.agreement import digest, fields, u32
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.formats import prefix
from securefl.core.keys import Guarded, PublicKey, SecretKey, Signature
from securefl.core.linear import Floats, LinearQuery, spread_of, too_sharp
from securefl.core.signing import SIGNATURE_BYTES, AgreementKey, SigningKey, verify
from securefl.linear import words
from securefl.linear.opener import Score
from securefl.linear.pad_terms import COVER, INDEX, KEY, PLACE, SALT, SECRET, PadTerms
from securefl.linear.terms import clear_part
from securefl.linear.words import Words


@dataclass(frozen=True, eq=False)
class Masked:
    """A client's message: its fresh key, the masked words, and the plaintext part of its vector.

    `place` is a tag of the terms for which the message was made. With pads derived for other terms, the
    result would be a wrong score. `share`: between files alone (`linear.addressed_pads`).
    """

    place: bytes
    fresh: PublicKey
    words: bytes = field(repr=False)
    clear: Floats = field(repr=False)
    sender: str = "client"
    share: bytes = field(default=b"", repr=False)

    @property
    def packed(self) -> bytes:
        """All bytes without the clear values, which travel separately."""
        return self.place + self.fresh.raw + self.share + self.words


def mask(
    hidden: Floats,
    clear: Floats,
    terms: PadTerms,
    name: str,
    told: bytes,
    to: PublicKey,
    *,
    own: AgreementKey | None = None,
) -> Masked:
    """The client's part: mask its vector. The message must be sealed to the server.

    Args:
        hidden: float64 (h,), inside the declared bounds.
        clear: float64 (c,), the plaintext part.
        terms: the terms of the exchange.
        name: of the query.
        told: the digest of the query's weights, 32 bytes, as the server declared it.
        to: the key holder's X25519 key.
        own: the fresh key, used for nothing else; by default from the operating system.

    Raises:
        LocalProtocolError: another length, or values outside the bounds.
    """
    own, whole = own or AgreementKey.generate(), rounded(hidden, terms)
    pad, _ = pad_and_rest(own, to, own.public, terms, name, told)
    masked = words.plus(whole, pad)
    return Masked(terms.place, own.public, words.packed(masked), clear)


def rounded(hidden: Floats, terms: PadTerms) -> Words:
    """A client's vector as words. Raises LocalProtocolError for another length or values outside bounds."""
    if not terms.bounds.holds_hidden(hidden):
        raise LocalProtocolError(
            f"Expected {terms.row} hidden features inside the declared bounds, got others."
        )
    return words.from_floats(np.rint(hidden * terms.data_scale), terms.word_bits)


def admit(message: bytes, clear: Floats, terms: PadTerms, *, sender: str) -> Masked:
    """The gate: the message of a client, or RemoteProtocolError(sender).

    It refuses a weak fresh key, for which the key holder would refuse the whole request.
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
    at = len(message) - terms.word_bytes * terms.row
    return Masked(place, fresh, message[at:], clear, sender, message[PLACE + KEY : at])


def refusal(what: str, sender: str, phase: str = "pads") -> RemoteProtocolError:
    return RemoteProtocolError(what, sender=sender, phase=phase)


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


def commitment(terms: PadTerms, name: str, salt: bytes, weights: bytes) -> bytes:
    """The digest of a query's weights, to which its pads are bound. salt: 32 bytes, or others guess them."""
    return digest(b"weights", b"", fields(salt, terms.digest, name.encode(), weights))


def framed(terms: PadTerms, body: bytes) -> bytes:
    """The bytes that the server signs, with the terms."""
    return prefix("pads/request") + fields(terms.digest) + body


class PadServer(Guarded):
    """The server's part for one query: declare its weights, request the sums, subtract them.

    Args:
        terms: of the exchange.
        index, name: of the query in the exchange.
        signing: the server's key, as the roster has it.
        query: of the terms' bounds.
        salt: 32 bytes; tests inject them.

    Attributes:
        told: the digest of the weights, which clients get before they answer.
        error_bound: the largest error of its scores. It always holds.

    Raises:
        ConfigError: a query of other bounds, or with weights outside them.
    """

    def __init__(
        self,
        terms: PadTerms,
        index: int,
        name: str,
        signing: SigningKey,
        query: LinearQuery,
        *,
        salt: bytes | None = None,
    ) -> None:
        self._terms, self._index, self._signing, self._query = terms, index, signing, query
        self._salt = os.urandom(SALT) if salt is None else salt
        self._weights = weights_of(query, terms)
        self.error_bound = error_of(query, self._weights, terms)
        self.told = commitment(terms, name, self._salt, words.packed(self._weights))

    def request(self, masked: Sequence[Masked]) -> bytes:
        """The signed request for the sums of these clients, in their order."""
        keys = b"".join(one.fresh.raw for one in masked)
        body = u32(self._index) + self._salt + words.packed(self._weights) + keys
        return body + self._signing.sign(framed(self._terms, body)).raw

    def score(self, masked: Masked, pad: bytes) -> Score:
        """A client's score, from the key holder's sum of its pad.

        Raises RemoteProtocolError that names the client if no honest one has such a score.
        """
        terms, bits = self._terms, self._terms.word_bits
        clear = clear_part(masked.clear, terms.bounds, masked.sender)
        whole = words.product(words.unpacked(masked.words, bits), self._weights)
        product = words.centred((whole - int.from_bytes(pad, "little")) % 2**bits, bits)
        hidden = product / 2 ** (terms.data_bits + terms.weight_bits)
        scale, error = terms.bounds.scale, self.error_bound
        value = (hidden + self._query.offset + float(clear @ self._query.clear)) / scale
        if abs(hidden) > terms.bounds.product + scale * error or not terms.bounds.allows(value, error):
            raise refusal(
                "Expected a score inside the declared bounds, got one that no honest client gives.",
                masked.sender,
                "score",
            )
        return Score(value, error)


def weights_of(query: LinearQuery, terms: PadTerms) -> Words:
    """A query's weights as words. Raises ConfigError for other bounds, or weights outside them."""
    if query.bounds != terms.bounds:
        raise ConfigError("Expected a query with the bounds of its pads, got one with other bounds.")
    scaled = np.rint(query.row(encrypted=False) * terms.weight_scale)
    weights = words.from_floats(scaled, terms.word_bits)
    if (wrong := form(weights, terms)) is not None:
        raise ConfigError(f"{wrong} Use a public anchor nearer to the baseline, or wider bounds.")
    return weights


def error_of(query: LinearQuery, weights: Words, terms: PadTerms) -> float:
    """The largest error of this query's scores, with the noise. It always holds."""
    scale = terms.weight_scale
    apart = float(np.linalg.norm(query.hidden - words.to_floats(weights) / scale))
    return terms.error_of(apart, words.total(weights) / scale)


class PadKeyHolder(Guarded):
    """The key holder's part of one exchange: one sum with noise for each client and query.

    Args:
        agreement: its X25519 key, made anew in each process, so that a restart forgets nothing that counts.
        terms: of the exchange, from its own copy of the plan.
        names: of the exchange's queries.
        cohort: the most clients of one query.
        server: the server's signing key.
    """

    def __init__(
        self,
        agreement: AgreementKey,
        terms: PadTerms,
        names: tuple[str, ...],
        cohort: int,
        server: PublicKey,
    ) -> None:
        self._agreement, self._terms, self._server = agreement, terms, server
        self._names, self._cohort = names, cohort
        self._answered: dict[str, tuple[bytes, bytes]] = {}

    def open(self, request: bytes, *, sender: str = "server") -> bytes:
        """The sum of each client's pad in a signed request, with noise, word by word.

        The same request again gets the same reply, and the same pad the same noise. Another one of the same
        query is refused, so a client's vector meets one set of weights.

        Raises:
            RemoteProtocolError: other bytes than a request's, weights of no query inside the bounds, a fresh
                key that is weak or comes twice, or a second request of one query.
        """
        terms = self._terms
        each = terms.request_bytes(1) - terms.request_bytes(0)
        listed, rest = divmod(len(request) - terms.request_bytes(0), each)
        if rest or not 0 < listed <= self._cohort:
            raise refusal(
                f"Expected a request for the sums of 1 to {self._cohort} clients, got another length.", sender
            )
        body = request[:-SIGNATURE_BYTES]
        try:
            verify(self._server, Signature(request[-SIGNATURE_BYTES:]), framed(terms, body))
        except CryptoError as error:
            raise refusal(str(error), sender) from None
        index = int.from_bytes(body[:INDEX], "little")
        if index >= len(self._names):
            raise refusal(f"Expected one of {len(self._names)} queries, got number {index}.", sender)
        name, found = self._names[index], hashlib.sha256(body).digest()
        if name in self._answered:
            before, reply = self._answered[name]
            if before != found:
                raise refusal(f"Expected the first request of {name!r} again, got another.", sender)
            return reply
        try:
            sums = self._sums(name, body, sender)
        except CryptoError as error:  # a weak fresh key
            raise refusal(str(error), sender) from None
        reply = b"".join(one.to_bytes(terms.word_bytes, "little") for one in sums)
        self._answered[name] = found, reply
        return reply

    def _sums(self, name: str, body: bytes, sender: str) -> list[int]:
        """<r, v> - n of each client, mod t, with the weights v in the request."""
        terms, start = self._terms, INDEX + SALT
        end = start + terms.word_bytes * terms.row
        salt, sent = body[INDEX:start], body[start:end]
        weights = words.unpacked(sent, terms.word_bits)
        if (wrong := form(weights, terms)) is not None:
            raise refusal(wrong, sender)
        fresh = [PublicKey(body[at : at + KEY]) for at in range(end, len(body), KEY)]
        # One key twice is one pad twice, and two clients under one pad reveal their difference.
        if len({one.raw for one in fresh}) < len(fresh):
            raise refusal("Expected each fresh key once, got one twice.", sender)
        # Computed from the weights that came, never taken from the request: a digest that the request stated
        # could be that of other weights.
        told = commitment(terms, name, salt, sent)
        most, modulus = COVER * words.total(weights), 2**terms.word_bits
        found = (pad_and_rest(self._agreement, one, one, terms, name, told) for one in fresh)
        return [(words.product(pad, weights) - noise_of(secret, most)) % modulus for pad, secret in found]


def form(weights: Words, terms: PadTerms) -> str | None:
    """Why these words are the weights of no query inside the bounds. None if they may be."""
    bounds, scale = terms.bounds, terms.weight_scale
    values = words.to_floats(weights) / scale
    if not values.any():
        return "Expected a weight that is not 0, got none."
    if not spread_of(values) <= bounds.spread * (1 + 1e-9):
        return too_sharp(values, bounds)
    longest = bounds.weight_norm + np.sqrt(terms.row) / (2 * scale)
    if not float(np.linalg.norm(values)) <= longest * (1 + 1e-9):
        return f"Expected weights of norm up to {bounds.weight_norm:.3g}, got longer ones."
    at = 0
    for run in bounds.weights:
        own = values[at : at + run.count]
        # A step of rounding, and what float64 cannot tell apart.
        slack = 1 / scale + 1e-12 * max(abs(run.low), abs(run.high))
        if not ((own >= run.low - slack) & (own <= run.high + slack)).all():
            return (
                f"Expected weights {at} to {at + run.count - 1} from {run.low:g} to {run.high:g}, got others."
            )
        at += run.count
    return None
