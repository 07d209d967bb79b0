"""Encrypted linear queries with blinded openings: the protocol of client, evaluator and key holder.

    client      hidden features -> one packed ciphertext
    evaluator   ciphertext * weights + fresh zero; sends the second polynomial and one coefficient of the
                first, masked by an integer uniform mod Q; there is no rotation, so no partial sum exists
    key holder  one inner product with its key, plus flooding: one integer mod Q back
    evaluator   subtracts its mask

Each ciphertext is opened alone, so one client's junk cannot shift another's score. What each party sees,
and why it learns no more than its output (all parties semi-honest, key holder and server not colluding):

* The client sees the public key.
* The evaluator sees ciphertexts, which are pseudorandom under RLWE, and reply - mask = <f, w> + e + n, with
  rounded weights: e is encryption noise, n the flooding. A simulator that gets only <f, w> + n is
  distinguished with an advantage below 2^-22.8 over all tau openings of the key (`terms`).
* The key holder sees an integer that the mask makes uniform mod Q, and c1 * w + u * pk1 + e1 with fresh u and
  e1. It receives no other part of the ciphertext, so that is an RLWE sample for a secret u that is used
  nowhere else. Uniform values simulate both, for all features, weights and scores. This holds also if a
  client gives it c1: without the fresh zero, the quotient would be the baseline.

The same holds for the other forms of a request:

* Mode E multiplies two ciphertexts, so a request has a second and a third polynomial, c1 and c2. A fresh zero
  randomises c1, and a product of two fresh zeros randomises c2 and c1. Since the key holder does not know the
  zeros, both are uniform to it. Without the product, a client that colludes with it could divide c2 by its
  own share of it.
* `addressed` requests, for files, are unmasked: the key holder reads the score. It sees one integer and c1,
  from which score + e + n follows. n is the evaluator's flooding, which hides e and so the weights' norm. The
  other coefficients of the first polynomial are not sent, so they need no mask of zero sum.

A *malicious* evaluator packs some dozens of the key's ternary coefficients, above the flooding, in a request,
and has the whole key after a few hundred openings. The cap limits the number of openings and does not prevent
that.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import Guarded
from securefl.core.linear import Floats, LinearQuery
from securefl.core.signing import SigningKey
from securefl.he import gate
from securefl.he.flooding import wide_gaussian
from securefl.he.keys import EncryptionKey, agreed
from securefl.he.ring import Ring
from securefl.linear.encryptor import admitted, spread, weight_row
from securefl.linear.opener import Score, score_of
from securefl.linear.terms import LinearTerms, clear_part


@dataclass(frozen=True, eq=False)
class Baseline:
    """The weights of a query, prepared once: as plaintexts, or in mode E as ciphertexts."""

    weights: tuple[Any, ...] = field(repr=False)
    clear: Floats = field(repr=False, default_factory=lambda: np.zeros(0))
    constant: float = field(repr=False, default=0.0)


@dataclass(frozen=True, eq=False)
class Blinded(Guarded):
    """A blinded score: `request` goes to the key holder, the rest stays with the evaluator."""

    request: bytes = field(repr=False)
    mask: int = field(repr=False)
    offset: float = field(repr=False)
    sender: str


class LinearEvaluator:
    """The server's part, for a whole session.

        >>> import numpy as np
        >>> from securefl.core.signing import SigningKey
        >>> from securefl.he.keys import KeyPair
        >>> from securefl.he.parameters import COMPACT
        >>> from securefl.linear import Encryptor, LinearBounds, LinearQuery, Opener
        >>> from securefl.linear import LinearEvaluator, LinearTerms
        >>> bounds = LinearBounds(hidden_length=2, norm=2.0, weight_norm=2.0, row_norm=2.0, product=4.0)
        >>> terms = LinearTerms(parameters=COMPACT, bounds=bounds, scores=10)
        >>> pair, signing = KeyPair.generate(COMPACT), SigningKey.generate()
        >>> evaluator = LinearEvaluator(pair.public, terms, signing)
        >>> sealed = Encryptor(pair.public, terms).encrypt(np.array([1.0, 0.5]))
        >>> blinded = evaluator.match(sealed, evaluator.baseline(LinearQuery(bounds, np.array([1.0, 1.0]))))
        >>> reply = Opener(pair, terms, signing.public).open(blinded.request)
        >>> round(evaluator.unblind(blinded, reply).value, 1)
        1.5

    `rng` is the operating system's randomness outside of tests.

    Raises:
        ConfigError: the key is of other parameters than the terms.
    """

    def __init__(
        self,
        public: EncryptionKey,
        terms: LinearTerms,
        signing: SigningKey,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self._terms, self._ring = terms, Ring.of(agreed(public, terms.parameters).parameters)
        self._encryptor = self._ring.encryptor(public.residues())
        self._signing, self._rng = signing, rng or random.SystemRandom()
        self._session = public.session

    def _tag(self, kind: str) -> bytes:
        return gate.tag(kind, self._session, self._terms.digest())

    # Baselines ----------------------------------------------------------------------------------

    def baseline(self, query: LinearQuery) -> Baseline:
        """The encoded weights of a query.

        Raises ConfigError if they are larger than declared: the flooding is sized for W.
        """
        terms, p = self._terms, self._terms.parameters
        row = weight_row(query, terms)
        parts = spread(row, terms.ciphertexts, p.slots)
        encoded = tuple(self._ring.encode(part, p.weight_scale) for part in parts)
        return Baseline(encoded, query.clear, query.offset)

    def encrypted_baseline(self, message: bytes, *, sender: str = "baseline owner") -> Baseline:
        """Mode E: the checked ciphertexts of a baseline that `Encryptor.encrypt_baseline` made."""
        scale = float(self._terms.parameters.weight_scale)
        residues = self._admitted(message, "baseline", sender)
        return Baseline(tuple(self._ring.ciphertext(each, scale) for each in residues))

    # The gate -----------------------------------------------------------------------------------

    def admit(self, ciphertext: bytes, *, sender: str = "client") -> list[gate.Residues]:
        """The checks of a client's message: its residues, or RemoteProtocolError(sender)."""
        return self._admitted(ciphertext, "ciphertext", sender)

    def _admitted(self, message: bytes, kind: str, sender: str) -> list[gate.Residues]:
        return admitted(message, self._tag(kind), self._terms, sender=sender)

    def checked(self, clear: Floats | None, sender: str) -> Floats:
        """The plaintext part. Raises RemoteProtocolError(sender) for values outside the bounds."""
        return clear_part(clear, self._terms.bounds, sender)

    # Matching -----------------------------------------------------------------------------------

    def match(
        self, ciphertext: bytes, baseline: Baseline, clear: Floats | None = None, *, sender: str = "client"
    ) -> Blinded:
        """The blinded score of one client.

        Args:
            ciphertext: the client's message.
            baseline: the prepared weights.
            clear: the plaintext part, float64 (c,). None if there is none.
            sender: the client's name, for refusals.

        Raises:
            RemoteProtocolError: the message does not pass the gate, or clear values are outside the bounds.
        """
        products, offset = self._products(ciphertext, clear, sender, baseline)
        mask = self._rng.randrange(self._terms.parameters.modulus)
        return Blinded(self._request("request", products, mask), mask, offset, sender)

    def addressed(
        self, ciphertext: bytes, baseline: Baseline, clear: Floats | None = None, *, sender: str = "client"
    ) -> bytes:
        """A request whose score only the key holder reads.

        The one coefficient contains the offset and the evaluator's own flooding. The others are not sent.
        """
        terms = self._terms
        products, offset = self._products(ciphertext, clear, sender, baseline)
        if abs(offset) + terms.largest > terms.capacity:
            raise RemoteProtocolError(
                "Expected scores that fit, got a baseline whose scores could wrap. Declare tighter bounds or "
                "larger parameters (of profiles: --weight-bound, or --params strong).",
                sender=sender,
                phase="score",
            )
        noise = wide_gaussian(terms.sigma, self._rng)
        return self._request("addressed", products, round(offset / terms.unit) + noise)

    def _products(
        self, ciphertext: bytes, clear: Floats | None, sender: str, baseline: Baseline
    ) -> tuple[list[Any], float]:
        """One product per ciphertext, and the plaintext summand of their sum."""
        p, ring = self._terms.parameters, self._ring
        residues, weights = self.admit(ciphertext, sender=sender), baseline.weights
        clear = self.checked(clear, sender)
        ciphers = [ring.ciphertext(each, float(self._terms.data_scale)) for each in residues]
        if not p.encrypted_baseline:
            pairs = zip(ciphers, weights, strict=True)
            # SEAL refuses a product with zero, which would add nothing
            products = [ring.weighted(cipher, own) for cipher, own in pairs if not own.is_zero()]
            return products, baseline.constant + float(clear @ baseline.clear)
        row = np.concatenate([np.zeros(self._terms.hidden_length), clear, [self._terms.bounds.scale]])
        rows = spread(row, self._terms.ciphertexts, p.slots)
        for cipher, part in zip(ciphers, rows, strict=True):
            ring.with_plain(cipher, ring.encode(part, self._terms.data_scale))
        return [ring.multiplied(c, w) for c, w in zip(ciphers, weights, strict=True)], 0.0

    def _request(self, kind: str, products: list[Any], mask: int) -> bytes:
        """The re-randomised total: its masked integer, and its polynomials from the second on, signed."""
        p, ring = self._terms.parameters, self._ring
        zero = ring.zero(self._encryptor, products[0].scale)
        if p.encrypted_baseline:  # the third polynomial needs a fresh one too
            # A zero is the same at any scale. SEAL adds only equal scales, so the product gets the others'
            # scale.
            pair = [ring.zero(self._encryptor, 2.0**39) for _ in range(2)]
            fresh = ring.multiplied(*pair)
            fresh.scale = products[0].scale
            products = [*products, fresh]
        whole = ring.coefficients(ring.total([*products, zero]))
        own = p.compose(tuple(int(r) for r in whole[0, :, 0]))
        opened = gate.pack_integer((own + mask) % p.modulus, p.modulus)
        message = self._tag(kind) + opened + gate.pack(whole[1:], p.primes)
        return message + self._signing.sign(message).raw

    # Opening ------------------------------------------------------------------------------------

    def unblind(self, blinded: Blinded, reply: bytes, *, sender: str = "key holder") -> Score:
        """The score. Raises RemoteProtocolError(client) if no vector inside the bounds has it."""
        terms, p = self._terms, self._terms.parameters
        raw = gate.body(reply, self._tag("reply"), gate.integer_size(p.modulus), sender=sender)
        opened = p.centre(gate.unpack_integer(raw, p.modulus, sender=sender) - blinded.mask)
        return score_of(
            opened * terms.unit, blinded.offset, terms, terms.error_bound(), sender=blinded.sender
        )
