"""Scores that the key holder reads: for files, where the server learns no score.

**Told pads and checked ciphertexts**: the weights are declared before clients conceal, as in a turn (`turn`).

    client      as in rounds; under pads its noise too, b = n + t with t from its fresh key, and a tag; under
                CKKS its signing key
    server      salt and weights; for each client s = <y, v> + b + c, or a = (V c0)_0 + c + noise and c1; c is
                the offset and the clear part's product
    key holder  checks the weights, computes d from them, checks tag or signature; reads s - <r, v> - t =
                <x, v> + n + c, or a + (V c1 s)_0 + noise

* The server gets nothing back, and the key holder reads a sum with the declared weights or none. So a
  *malicious* server has it read a shifted score, and no entry of a vector; under CKKS with one client of the
  key holder's list it can have it read one entry of another's vector.
* The key holder sees the weights, so it learns the baseline; and under CKKS which client's key signed.

**Dealt pads**: nothing is declared, and the key holder sees a share of the weights.

    client      r and t from its fresh key and the key holder's; a seed rho, with p = PRG(rho);
                sends y = x + r, rho, g = <r, p> + t - n, and a tag; n is its noise
    server      delta = v - p, and the word s = <y, v> - g + c
    key holder  checks the tag; z = <r, delta> - t; reads s - z = <x, v> + n + c

* y and g are uniform without r and t, so the server learns nothing, whatever it sends.
* The key holder sees delta, uniform since p is, and a word from which the score follows. The weights and c
  stay hidden in one sum. With one client, which knows its p, it learns v, and then c.
* Nothing binds the weights. A *malicious* server has the key holder read one word of its choice, such as one
  entry of a vector, in place of a score.
* Two deltas for one fresh key differ by the difference of their weights. So a server sends one, ever, and the
  key holder answers one. Both keep a record, which this module does not.

Under pads the client adds the noise (`pad_terms`): the key holder reads the sum, so its own would hide
nothing from it. n is in the message, so a request that is repeated has the same. A profile that is encrypted
again has other noise, and counts as another one. The tag follows from the same keys as the pad, for the same
terms and name. Under others the word would be a number of no meaning, which nothing tells from a score.

Key holder and server together open everything.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass
from math import fsum
from typing import Any, Final

from securefl.core.agreement import fields
from securefl.core.errors import CryptoError
from securefl.core.formats import prefix
from securefl.core.keys import PublicKey, SecretKey
from securefl.core.linear import Floats
from securefl.core.signing import AgreementKey, SigningKey
from securefl.linear import words
from securefl.linear.pad_terms import KEY, SECRET, SEED, PadTerms
from securefl.linear.pads import admit, mask, noise_of, pad_and_rest, rounded
from securefl.linear.turn import SALT, Declared, PublicQuery, clear_part, refusal
from securefl.linear.words import Words

TAG: Final = 16
QUERY: Final = ""
"""The digest of the weights is one for all clients, whatever name each has."""
_FLOAT: Final = 2.0**-51

Opening = tuple[bytes, bytes, Callable[[], bytes]]
"""What is opened once, the request for it, and the function that opens it: an integer, little-endian."""


def constant_of(declared: Declared, clear: Floats, sender: str) -> int:
    """c as an integer. Raises RemoteProtocolError that names the client if its clear part does not fit."""
    query, terms = declared.query, declared.terms
    constant = fsum((query.offset, *(clear_part(clear, terms.bounds, sender) * query.clear)))
    if terms.bounds.product + abs(constant) > terms.capacity:
        raise refusal(
            "Expected a constant with which a score fits, got one that makes it wrap. Declare tighter "
            "bounds, or larger parameters (of profiles: --weight-bound, or --params strong or pads-128).",
            sender,
            "score",
        )
    # Under pads exact: the scales are powers of two, and Python rounds a float to a whole number of any size.
    found: int = round(constant / terms.unit)
    return found


# Pads -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PadFiles:
    """Pads between files, dealt or told as the terms say. key: the key holder's X25519 key."""

    terms: PadTerms
    key: Any = None

    loose_bytes = 0

    @property
    def message_bytes(self) -> int:
        """Exact length of a client's message."""
        return self.terms.message_bytes + (0 if self.terms.dealt else self.terms.word_bytes) + TAG

    @property
    def head_bytes(self) -> int:
        """Exact length of what stands before the items: the salt and the weights, if they are told."""
        return 0 if self.terms.dealt else SALT + self.terms.weights_bytes

    @property
    def item_bytes(self) -> int:
        """Exact length of an item: a fresh key, a tag, a share of weights that are dealt, and a word."""
        return KEY + TAG + self.terms.word_bytes * (self.terms.row + 1 if self.terms.dealt else 1)

    def error_bound(self, together: int) -> float:
        """The largest |score - div|. It always holds. The constant c is rounded to a word too."""
        terms = self.terms
        return terms.error_bound + (0.5 * terms.unit + _FLOAT * terms.capacity) / terms.bounds.scale

    def message(
        self,
        hidden: Floats,
        name: str,
        told: bytes,
        signing: SigningKey | None = None,
        *,
        own: AgreementKey | None = None,
        seed: bytes | None = None,
        noise: int | None = None,
    ) -> bytes:
        """The client's part: mask its vector. The message must be sealed to the server.

        Args:
            hidden: float64 (h,), inside the declared bounds.
            name: under which the key holder reads the score.
            told: the digest of the weights; of dealt pads b"".
            signing: no use under pads.
            own, seed: the fresh key and 32 secret bytes, used for nothing else; by default from the operating
                system.
            noise: n, by default drawn. Tests give it.

        Returns:
            `message_bytes` bytes.

        Raises:
            LocalProtocolError: another length, or values outside the bounds.
        """
        terms, to, own = self.terms, self.key, own or AgreementKey.generate()
        noise = noise_of(os.urandom(SECRET), terms.most_noise) if noise is None else noise
        tag = _tag(own, to, own.public, terms, name, told)
        if not terms.dealt:
            _, rest = pad_and_rest(own, to, own.public, terms, name, told)
            return (
                mask(hidden, terms, name, told, to, own=own) + _word(noise + _last(rest, terms), terms) + tag
            )
        seed, whole = os.urandom(SEED) if seed is None else seed, rounded(hidden, terms)
        pad, last = pad_and_last(own, to, own.public, terms, name)
        share = _word(words.product(pad, share_of_client(seed, terms)) + last - noise, terms)
        return terms.place + own.public.raw + seed + share + words.packed(words.plus(whole, pad)) + tag

    def item(self, declared: Declared, raw: bytes, clear: Floats, name: str) -> bytes:
        """The server's part: a client's item for the key holder.

        Args:
            declared: the weights; of dealt pads they are told to nobody.
            raw: the client's message.
            clear: the plaintext part.
            name: of the client, also for refusals.

        Raises:
            RemoteProtocolError: names the client whose message does not pass the gate, or whose clear part is
                outside the bounds, or makes a score wrap.
        """
        terms, weights = self.terms, declared.factors
        if len(raw) != self.message_bytes:
            raise refusal(f"Expected {self.message_bytes} bytes, got {len(raw)}.", name, "gate")
        masked, tag = admit(raw[: terms.message_bytes], terms, sender=name), raw[-TAG:]
        whole = words.product(masked.words, weights) + constant_of(declared, clear, name)
        if not terms.dealt:
            noise = int.from_bytes(raw[terms.message_bytes : -TAG], "little")
            return masked.fresh.raw + tag + _word(whole + noise, terms)
        delta = words.minus(weights, share_of_client(masked.share[:SEED], terms))
        own = int.from_bytes(masked.share[SEED:], "little")
        return masked.fresh.raw + tag + words.packed(delta) + _word(whole - own, terms)

    def opening(
        self, agreement: AgreementKey, weights: Words | None, query: PublicQuery, item: bytes, name: str
    ) -> Opening:
        """The key holder's part: how to open an item to the word <x, v> + n + c.

        Args:
            agreement: the key that the client agreed with.
            weights, query: as `turn.told_weights` returns them; of dealt pads None, and a digest b"".
            item: `item_bytes` bytes.
            name: under which the client made its message, also for refusals.

        The function raises RemoteProtocolError for a fresh key of small order, or a message that was made for
        other terms, another name, other weights or another key.
        """
        terms, told, fresh = self.terms, query.told, PublicKey(item[:KEY])

        def opened() -> bytes:
            try:
                tag = _tag(agreement, fresh, fresh, terms, name, told)
            except CryptoError as error:
                raise refusal(str(error), name) from None
            if not hmac.compare_digest(tag, item[KEY : KEY + TAG]):
                raise refusal(
                    f"Expected a message that its client made for us, this server and {name!r}, got one for "
                    "others, or a changed one. Have it made again.",
                    name,
                )
            end = len(item) - terms.word_bytes
            if weights is None:
                pad, last = pad_and_last(agreement, fresh, fresh, terms, name)
                sums = words.product(pad, terms.unpacked(item[KEY + TAG : end])) - last
            else:
                pad, rest = pad_and_rest(agreement, fresh, fresh, terms, name, told)
                sums = words.product(pad, weights) + _last(rest, terms)
            return _word(int.from_bytes(item[end:], "little") - sums, terms)

        # The fresh key alone: a second difference for it would be a second equation on its client's vector.
        once = hashlib.sha256(prefix("matching/once") + fresh.raw).digest()
        return once, self.digest(item, name, told), opened

    def digest(self, item: bytes, name: str, told: bytes) -> bytes:
        """SHA-256 of an item, with its terms and name, and the digest of told weights."""
        whole = fields(self.terms.digest, name.encode(), item, told)
        return hashlib.sha256(prefix("matching/item") + whole).digest()


def _tag(
    own: AgreementKey, other: PublicKey, fresh: PublicKey, terms: PadTerms, name: str, told: bytes
) -> bytes:
    """The tag of one message, the same on both sides."""
    purpose = prefix("dealt-pads/tag" if terms.dealt else "pads/tag")
    bound = fields(fresh.raw, terms.digest, name.encode(), *(() if terms.dealt else (told,)))
    return own.agree(other, purpose + bound).reveal()[:TAG]


def pad_and_last(
    own: AgreementKey, other: PublicKey, fresh: PublicKey, terms: PadTerms, name: str
) -> tuple[Words, int]:
    """The dealt pad of one fresh key, and one word more: uniform, the same on both sides."""
    bound = fields(fresh.raw, terms.digest, name.encode())
    key = own.agree(other, prefix("dealt-pads/pad") + bound)
    stream = words.keystream(key, terms.row + 1, terms.word_bits)
    return stream[:-1], int.from_bytes(words.packed(stream[-1:]), "little")


def share_of_client(seed: bytes, terms: PadTerms) -> Words:
    """The share of the weights that a client's seed stands for."""
    return words.keystream(SecretKey(seed), terms.row, terms.word_bits)


def _word(whole: int, terms: PadTerms) -> bytes:
    return int(whole % terms.modulus).to_bytes(terms.word_bytes, "little")


def _last(rest: bytes, terms: PadTerms) -> int:
    return int.from_bytes(rest[: terms.word_bytes], "little")
