"""Dealt pads: as pads, and the key holder does not see the weights.

    client      r and t from its fresh key and the key holder's; a seed rho, with p = PRG(rho);
                sends y = x + r, rho and g = <r, p> + t
    server      tells the key holder delta = v - p of each client, signed
    key holder  answers z = <r, delta> - t, for the first delta of a fresh key
    server      <y, v> - z - g = <x, v>

* To the key holder delta is uniform, since p is. It learns how many clients are asked and how many answer,
  not which. With one client, which knows its p, it learns v.
* To the server z and g are uniform but for their sum, since t is. So of each client it learns one sum.
  Nothing says with which weights: a *malicious* server reads one word of its choice, such as one entry.
* Key holder and server together open everything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from securefl.core.agreement import fields, u32
from securefl.core.keys import Guarded, PublicKey, SecretKey
from securefl.core.linear import Floats, LinearQuery
from securefl.core.signing import AgreementKey, SigningKey
from securefl.linear import words
from securefl.linear.opener import Score
from securefl.linear.pad_terms import INDEX, KEY, SEED, PadTerms
from securefl.linear.pads import Masked, PadKeyHolder, distinct, framed, opened, rounded, weights_of
from securefl.linear.words import Words


def mask(
    hidden: Floats,
    clear: Floats,
    terms: PadTerms,
    name: str,
    to: PublicKey,
    *,
    own: AgreementKey | None = None,
    seed: bytes | None = None,
) -> Masked:
    """The client's part: mask its vector. Arguments and errors as for `pads.mask`; seed: 32 secret bytes."""
    own, whole = own or AgreementKey.generate(), rounded(hidden, terms)
    seed = os.urandom(SEED) if seed is None else seed
    pad, last = pad_and_last(own, to, own.public, terms, name)
    share = (words.product(pad, _spread(seed, terms)) + last) % 2**terms.word_bits
    return Masked(
        terms.place,
        own.public,
        words.packed(words.plus(whole, pad)),
        clear,
        share=seed + share.to_bytes(terms.word_bytes, "little"),
    )


def pad_and_last(
    own: AgreementKey, other: PublicKey, fresh: PublicKey, terms: PadTerms, name: str
) -> tuple[Words, int]:
    """The pad of one fresh key, and one word more: uniform, the same on both sides."""
    bound = fields(fresh.raw, terms.digest, name.encode())
    key = own.agree(other, b"securefl/dealt-pad/1|" + bound)
    stream = words.keystream(key, terms.row + 1, terms.word_bits)
    return stream[:-1], int.from_bytes(words.packed(stream[-1:]), "little")


def _spread(seed: bytes, terms: PadTerms) -> Words:
    """The share of the weights that a client's seed stands for."""
    return words.keystream(SecretKey(seed), terms.row, terms.word_bits)


def share_of_weights(masked: Masked, weights: Words, terms: PadTerms) -> tuple[Words, int]:
    """The key holder's share delta of the weights for one client, and the client's word g."""
    delta = words.minus(weights, _spread(masked.share[:SEED], terms))
    return delta, int.from_bytes(masked.share[SEED:], "little")


class DealtServer(Guarded):
    """The server's part for one query. Arguments and errors as for `pads.PadServer`."""

    def __init__(self, terms: PadTerms, index: int, signing: SigningKey, query: LinearQuery) -> None:
        self._terms, self._index, self._signing, self._query = terms, index, signing, query
        self._weights = weights_of(query, terms)

    def request(self, masked: Sequence[Masked]) -> bytes:
        """The signed request for the sums of these clients, in their order."""
        shares = [share_of_weights(one, self._weights, self._terms)[0] for one in masked]
        items = [one.fresh.raw + words.packed(own) for one, own in zip(masked, shares, strict=True)]
        body = u32(self._index) + b"".join(items)
        return body + self._signing.sign(framed(self._terms, body)).raw

    def score(self, masked: Masked, pad: bytes) -> Score:
        """A client's score, from the key holder's word. Errors as for `pads.PadServer.score`."""
        whole = int.from_bytes(pad, "little") + int.from_bytes(masked.share[SEED:], "little")
        return opened(masked, whole, self._weights, self._query, self._terms)


class DealtKeyHolder(PadKeyHolder):
    """The key holder's part of one exchange. Arguments as for `pads.PadKeyHolder`."""

    def _sums(self, name: str, body: bytes, sender: str) -> list[int]:
        """<r, delta> - t of each client, with its share delta of the weights."""
        terms, size = self._terms, KEY + self._terms.word_bytes * self._terms.row
        items = [body[at : at + size] for at in range(INDEX, len(body), size)]
        # A second share for one fresh key would be a second equation on its client's vector.
        fresh = distinct([one[:KEY] for one in items], sender)
        sums = []
        for key, item in zip(fresh, items, strict=True):
            pad, last = pad_and_last(self._agreement, key, key, terms, name)
            delta = words.unpacked(item[KEY:], terms.word_bits)
            sums.append((words.product(pad, delta) - last) % 2**terms.word_bits)
        return sums
