"""The evaluator's part of matching by pads; the protocol and its views stand in `pads`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt

import numpy as np

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.keys import Guarded
from securefl.core.linear import LinearQuery
from securefl.core.signing import SigningKey
from securefl.he import gate
from securefl.he.flooding import wide_gaussian
from securefl.he.keys import EncryptionKey, agreed
from securefl.he.ring import Ring
from securefl.linear.opener import Score
from securefl.linear.pad_terms import PARAMETERS, WORD_BITS, PadTerms
from securefl.linear.pads import Masked, framed, integer_residues, scaled
from securefl.linear.terms import clear_part

_FLOOD_BITS = 40


@dataclass(frozen=True, eq=False)
class PadOpening(Guarded):
    """One block on its way: `request` goes to the key holder, the rest stays with the evaluator."""

    request: bytes = field(repr=False)
    masks: tuple[int, ...] = field(repr=False)
    clients: tuple[int, ...]


class PadEvaluator:
    """The evaluator's part for one batch of clients: list them, ask for the sums, unmask."""

    def __init__(
        self,
        public: EncryptionKey,
        terms: PadTerms,
        signing: SigningKey,
        query: LinearQuery,
        *,
        rng: random.Random | None = None,
        ring: Ring | None = None,
    ) -> None:
        self._terms, self._signing = terms, signing
        self._rng = rng or random.SystemRandom()
        self._ring = ring or Ring(agreed(public, PARAMETERS).parameters)
        self._encryptor = self._ring.encryptor(public.residues())
        if query.bounds != terms.bounds:
            raise ConfigError("Expected a query of the bounds of its pads, got one of others.")
        self._query = query
        self._weights = np.rint(query.row(encrypted=False) * terms.weight_scale).astype(np.int64)
        # Reversed: then the sum <r, v> of a client is one coefficient of the product, the last of its row.
        self._plain = self._ring.plain(integer_residues(self._weights[::-1].astype(object)))

    def list(self, masked: Sequence[Masked]) -> bytes:
        """Whose pads the key holder is to encrypt, in this order; signed."""
        return self._sign(b"pads", b"".join(one.fresh.raw for one in masked))

    def request(
        self, ciphertext: bytes, first: int, there: Sequence[Masked | None], *, sender: str = "key holder"
    ) -> PadOpening:
        """Ask for the sums of one block, that begins with client `first` of the list.

        there: the block's messages; None for a client that dropped out, whose sum is not opened.
        """
        p, degree = PARAMETERS, PARAMETERS.poly_modulus_degree
        residues = gate.unpack(ciphertext, 2, p.primes, degree, sender=sender)
        gate.not_transparent(residues, sender=sender)
        cipher = self._ring.weighted(self._ring.ciphertext(residues, 1.0), self._plain)
        whole = self._ring.coefficients(
            self._ring.total([cipher, self._ring.zero(self._encryptor, cipher.scale)])
        )
        clients = tuple(i for i, one in enumerate(there) if one is not None)
        masks = tuple(self._rng.randrange(2**WORD_BITS) for _ in clients)
        items = []
        for client, blind in zip(clients, masks, strict=True):
            where = (client + 1) * self._terms.row - 1
            found = p.compose(tuple(int(r) for r in whole[0, :, where]))
            opened = (found + scaled(blind) + wide_gaussian(self._flooding, self._rng)) % p.modulus
            # Two bytes hold every place: a ciphertext has 8,192.
            items.append(where.to_bytes(2, "little") + gate.pack_integer(opened, p.modulus))
        body = gate.pack(whole[1:], p.primes) + b"".join(items)
        return PadOpening(self._sign(b"open", body), masks, tuple(first + client for client in clients))

    @cached_property
    def _flooding(self) -> float:
        """2^40 standard deviations of the largest noise that the terms allow, far below the unit Q / 2^64.

        The key holder sees how wide it is, so it follows from the terms, and not from the weights at hand.
        """
        terms = self._terms
        largest = terms.bounds.weight_norm * terms.weight_scale + sqrt(terms.row) / 2
        return 2.0**_FLOOD_BITS * PARAMETERS.fresh_noise * (largest + 1)

    def scores(
        self, opening: PadOpening, reply: bytes, masked: Sequence[Masked], *, sender: str = "key holder"
    ) -> dict[int, Score | RemoteProtocolError]:
        """The score of each client in the opening, or an error in its place."""
        if len(reply) != 8 * len(opening.masks):
            raise RemoteProtocolError(
                f"Expected one sum for each of {len(opening.masks)} places, got {len(reply)} bytes.",
                sender=sender,
                phase="pads",
            )
        sums = np.frombuffer(reply, dtype="<u8")
        found: dict[int, Score | RemoteProtocolError] = {}
        for client, blind, own in zip(opening.clients, opening.masks, sums, strict=True):
            try:
                found[client] = self._score(masked[client], (int(own) - blind) % 2**WORD_BITS)
            except RemoteProtocolError as error:
                found[client] = error
        return found

    def _score(self, masked: Masked, pad: int) -> Score:
        terms, sender = self._terms, masked.sender
        if len(masked.words) != 8 * terms.row or masked.place != terms.place:
            raise RemoteProtocolError(
                "Expected masked words of this round's terms, got others.", sender=sender, phase="pads"
            )
        clear = clear_part(masked.clear, terms.bounds, sender)
        words = np.frombuffer(masked.words, dtype="<u8")
        # Wrapping is the arithmetic here: words count modulo 2^64, and a negative weight is its residue.
        with np.errstate(over="ignore"):
            product = int((words * self._weights.astype(np.uint64)).sum(dtype=np.uint64))
        whole = (product - pad) % 2**WORD_BITS
        centred = whole - 2**WORD_BITS if whole >= 2 ** (WORD_BITS - 1) else whole
        hidden = centred / (terms.data_scale * terms.weight_scale)
        scale, error = terms.bounds.scale, terms.error_bound
        value = (hidden + self._query.offset + float(clear @ self._query.clear)) / scale
        if abs(hidden) > terms.bounds.product + scale * error or not terms.bounds.allows(value, error):
            raise RemoteProtocolError(
                "Expected a score inside the declared bounds, got one that no honest client gives.",
                sender=sender,
                phase="score",
            )
        return Score(value, terms.error_bound)

    def _sign(self, kind: bytes, body: bytes) -> bytes:
        return body + self._signing.sign(framed(kind, self._terms, body)).raw
