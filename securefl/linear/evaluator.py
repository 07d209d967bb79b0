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

* A batch (`batches`) has K masked integers, uniform for the same reason, and one polynomial. An integer is a
  difference of two coefficients of a sum of K products; flooding is sized for that (`terms`).
* Mode E multiplies two ciphertexts, so a request has a second and a third polynomial, c1 and c2. A fresh zero
  randomises c1, and a product of two fresh zeros randomises c2 and c1. Since the key holder does not know the
  zeros, both are uniform to it. Without the product, a client that colludes with it could divide c2 by its
  own share of it.
* `addressed` requests, for files, are unmasked: the key holder reads the score. It sees one integer and c1,
  from which score + e + n follows. n is the evaluator's flooding, which hides e and so the weights' norm. The
  other coefficients of the first polynomial are not sent, so they need no mask of zero sum, and no unused
  class needs a value.

A *malicious* evaluator packs some dozens of the key's ternary coefficients, above the flooding, in a request,
and has the whole key after a few hundred openings. The cap limits the number of openings and does not prevent
that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
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
from securefl.linear.batches import combine, cosines, places
from securefl.linear.encryptor import admitted, of_class, spread, weight_row
from securefl.linear.opener import Score, score_of
from securefl.linear.terms import LinearTerms, clear_part


@dataclass(frozen=True, eq=False)
class Baseline:
    """The weights of a query, prepared once: as plaintexts, or in mode E as ciphertexts.

    spread: weights over all slots, for a client that is opened alone. classes: weights of each class, for
    batches.
    """

    spread: tuple[Any, ...] = field(repr=False)
    classes: tuple[tuple[Any, ...], ...] = field(repr=False, default=())
    clear: Floats = field(repr=False, default_factory=lambda: np.zeros(0))
    constant: float = field(repr=False, default=0.0)


@dataclass(frozen=True, eq=False)
class Arrived:
    """One client's message to the evaluator. `clear` is its plaintext part."""

    ciphertext: bytes = field(repr=False)
    clear: Floats | None = field(repr=False, default=None)
    sender: str = "client"


@dataclass(frozen=True, eq=False)
class Blinded(Guarded):
    """Blinded scores: `request` goes to the key holder, the rest stays with the evaluator."""

    request: bytes = field(repr=False)
    masks: tuple[int, ...] = field(repr=False)
    offsets: tuple[float, ...] = field(repr=False)
    senders: tuple[str, ...]


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
        alone = spread(row / terms.classes, terms.ciphertexts, p.slots, terms.classes)
        several = range(terms.classes) if terms.classes > 1 else ()
        own = (of_class(row, terms.ciphertexts, p.slots, terms.classes, j) for j in several)
        return Baseline(
            self._encoded(alone),
            tuple(self._encoded(parts) for parts in own),
            query.clear,
            query.offset,
        )

    def _encoded(self, parts: Sequence[Floats]) -> tuple[Any, ...]:
        return tuple(self._ring.encode(part, self._terms.parameters.weight_scale) for part in parts)

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
        products, offset = self._products(Arrived(ciphertext, clear, sender), baseline, baseline.spread)
        return self._blinded("request", products, (offset,), (sender,))

    def match_batch(self, arrived: Sequence[Arrived], baseline: Baseline) -> Blinded:
        """The scores of up to K clients that trust each other to stay inside the bounds, blinded together.

        Raises:
            RemoteProtocolError: names the first client whose message does not pass the gate.
            ValueError: no clients, or more than K.
        """
        if not 1 <= len(arrived) <= len(baseline.classes):
            raise ValueError(f"Expected 1 to {len(baseline.classes)} clients, got {len(arrived)}.")
        products: list[Any] = []
        offsets = []
        for one, weights in zip(arrived, baseline.classes, strict=False):
            own, offset = self._products(one, baseline, weights)
            products += own
            offsets.append(offset)
        return self._blinded("batch", products, tuple(offsets), tuple(one.sender for one in arrived))

    def addressed(
        self, ciphertext: bytes, baseline: Baseline, clear: Floats | None = None, *, sender: str = "client"
    ) -> bytes:
        """A request whose score only the key holder reads.

        The one coefficient contains the offset and the evaluator's own flooding. The others are not sent.
        """
        terms = self._terms
        products, offset = self._products(Arrived(ciphertext, clear, sender), baseline, baseline.spread)
        if abs(offset) + terms.largest > terms.capacity:
            raise RemoteProtocolError(
                "Expected scores that fit, got a baseline whose scores could wrap. Declare tighter bounds or "
                "larger parameters (of profiles: --weight-bound, or --params strong).",
                sender=sender,
                phase="score",
            )
        noise = wide_gaussian(terms.sigma, self._rng)
        return self._request("addressed", products, (round(offset / terms.unit) + noise,))

    def _products(
        self, arrived: Arrived, baseline: Baseline, weights: tuple[Any, ...]
    ) -> tuple[list[Any], float]:
        """One product per ciphertext, and the plaintext summand of their sum."""
        p, ring = self._terms.parameters, self._ring
        residues = self.admit(arrived.ciphertext, sender=arrived.sender)
        clear = self.checked(arrived.clear, arrived.sender)
        ciphers = [ring.ciphertext(each, float(self._terms.data_scale)) for each in residues]
        if not p.encrypted_baseline:
            pairs = zip(ciphers, weights, strict=True)
            # SEAL refuses a product with zero, which would add nothing
            products = [ring.weighted(cipher, own) for cipher, own in pairs if not own.is_zero()]
            return products, baseline.constant + float(clear @ baseline.clear)
        row = np.concatenate([np.zeros(self._terms.hidden_length), clear, [self._terms.bounds.scale]])
        rows = spread(row, self._terms.ciphertexts, p.slots, 1)
        for cipher, part in zip(ciphers, rows, strict=True):
            ring.with_plain(cipher, ring.encode(part, self._terms.data_scale))
        return [ring.multiplied(c, w) for c, w in zip(ciphers, weights, strict=True)], 0.0

    def _blinded(
        self, kind: str, products: list[Any], offsets: tuple[float, ...], senders: tuple[str, ...]
    ) -> Blinded:
        integers = self._terms.classes if kind == "batch" else 1
        masks = tuple(self._rng.randrange(self._terms.parameters.modulus) for _ in range(integers))
        return Blinded(self._request(kind, products, masks), masks, offsets, senders)

    def _request(self, kind: str, products: list[Any], masks: tuple[int, ...]) -> bytes:
        """The re-randomised total: its masked integers, and its polynomials from the second on, signed."""
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
        found = [
            p.compose(tuple(int(r) for r in whole[0, :, n]))
            for n in places(p.poly_modulus_degree, len(masks))
        ]
        opened = (
            gate.pack_integer((own + mask) % p.modulus, p.modulus)
            for own, mask in zip(combine(found, p.modulus), masks, strict=True)
        )
        message = self._tag(kind) + b"".join(opened) + gate.pack(whole[1:], p.primes)
        return message + self._signing.sign(message).raw

    # Opening ------------------------------------------------------------------------------------

    def unblind(self, blinded: Blinded, reply: bytes, *, sender: str = "key holder") -> Score:
        """The score. Raises RemoteProtocolError(client) if no vector inside the bounds has it."""
        hidden = self._opened(blinded, "reply", reply, sender)[0] * self._terms.unit
        return self._score(hidden, blinded, 0, self._terms.error_bound())

    def unblind_batch(self, blinded: Blinded, reply: bytes, *, sender: str = "key holder") -> list[Score]:
        """The scores, in the order of `senders`.

        Raises:
            RemoteProtocolError: one of them cannot be a score. Then none of them can be trusted: open the
                members one by one.
        """
        terms = self._terms
        integers = self._opened(blinded, "batch-reply", reply, sender)
        sums = cosines(terms.classes) @ np.array(integers, dtype=np.float64)
        hidden = sums * terms.unit / terms.classes
        bound = terms.error_bound(len(blinded.senders), batch=True)
        return [
            self._score(float(h), blinded, j, bound) for j, h in enumerate(hidden[: len(blinded.senders)])
        ]

    def _opened(self, blinded: Blinded, kind: str, reply: bytes, sender: str) -> list[int]:
        p = self._terms.parameters
        size = gate.integer_size(p.modulus)
        raw = gate.body(reply, self._tag(kind), size * len(blinded.masks), sender=sender)
        numbers = (raw[i * size : (i + 1) * size] for i in range(len(blinded.masks)))
        opened = (gate.unpack_integer(number, p.modulus, sender=sender) for number in numbers)
        return [p.centre(o - mask) for o, mask in zip(opened, blinded.masks, strict=True)]

    def _score(self, hidden: float, blinded: Blinded, place: int, bound: float) -> Score:
        return score_of(hidden, blinded.offsets[place], self._terms, bound, sender=blinded.senders[place])
