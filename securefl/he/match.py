"""Encrypted matching against a plaintext baseline, opened blindly: client, evaluator, key holder.

    client      hidden features -> one packed ciphertext
    evaluator   ciphertext * weights + fresh zero; sends the second polynomial and one coefficient of the
                first, masked by an integer uniform mod Q; there is no rotation, so no partial sum exists
    key holder  one inner product with its key, plus flooding: one integer mod Q back
    evaluator   subtracts its mask

Each ciphertext is opened alone: one client's junk cannot shift another's score. What each party sees,
and why it learns no more than its output (all of them semi-honest, key holder and server not colluding):

* The client sees the public key.
* The evaluator sees ciphertexts, which RLWE makes pseudorandom, and reply - mask = <f, w> + e + n, with the
  weights as they were rounded: e is encryption noise, below t but for the probability of eight standard
  deviations, n the flooding. A simulator that is given <f, w> + n alone is told apart with an advantage
  below 2^-22.8 over all tau openings of the key.
* The key holder sees an integer that the mask makes uniform mod Q, and c1 * w + u * pk1 + e1 with u and e1
  fresh. No other part of the ciphertext arrives, so that is an RLWE sample for a secret u that nobody else
  uses: both are simulated by uniform values, whatever features, weights and score. This stays so when a
  client hands it c1: without the fresh zero, the quotient would be the baseline.

A *malicious* evaluator can choose what is opened and so query the key, a coefficient a time: it is trusted to
follow the protocol, and the number of openings is capped.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securefl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.he import gate
from securefl.he.keys import EncryptionKey, KeyPair, agreed
from securefl.he.seal import Ring
from securefl.he.terms import Terms
from securefl.profiles import Query, Vector


class Encryptor:
    """The client's part; built once per session, holds nothing secret."""

    def __init__(self, public: EncryptionKey, terms: Terms) -> None:
        self._terms, self._ring = terms, Ring(agreed(public, terms.parameters).parameters)
        self._encryptor = self._ring.encryptor(public.residues())
        self._tag = gate.tag("ciphertext", public.session, terms.digest())

    def encrypt(self, hidden: Vector) -> bytes:
        """`Features.split(variant).hidden` of a profile clipped to the bounds, as one ciphertext."""
        p, terms = self._terms.parameters, self._terms
        norm, limit = float(np.linalg.norm(hidden)), terms.bounds.feature_norm(terms.length)
        if hidden.shape != (terms.hidden_length,) or not norm <= limit * (1 + 1e-9):
            raise LocalProtocolError(
                f"Expected {terms.hidden_length} finite hidden features inside the declared bounds, "
                f"shape {hidden.shape} of norm {norm:.3g} came; make them with profiles.features."
            )
        residues = self._ring.encrypt(self._encryptor, self._ring.encode(hidden, p.data_scale))
        return self._tag + gate.pack(residues, p.primes)


@dataclass(frozen=True, eq=False)
class Baseline:
    """A baseline's weights, encoded once for all clients that are matched with it."""

    hidden: Any = field(repr=False)
    clear: Vector = field(repr=False)
    constant: float = field(repr=False)


@dataclass(frozen=True, eq=False)
class Blinded:
    """A score on its way: `request` goes to the key holder, the rest stays with the evaluator."""

    request: bytes = field(repr=False)
    mask: int = field(repr=False)
    offset: float = field(repr=False)
    sender: str


@dataclass(frozen=True)
class Score:
    """A released divergence; |value - div| <= error_bound except with probability 1e-6."""

    value: float
    error_bound: float


class Evaluator:
    """The server's part; built once per session. `rng` is the operating system's outside of tests."""

    def __init__(self, public: EncryptionKey, terms: Terms, *, rng: random.Random | None = None) -> None:
        self._terms, self._ring = terms, Ring(agreed(public, terms.parameters).parameters)
        self._encryptor = self._ring.encryptor(public.residues())
        self._rng = rng or random.SystemRandom()
        self._ciphertext = gate.tag("ciphertext", public.session, terms.digest())
        self._request = gate.tag("request", public.session, terms.digest())
        self._reply = gate.tag("reply", public.session, terms.digest())

    def baseline(self, query: Query) -> Baseline:
        """Encodes the weights; ConfigError if they are larger than declared (flooding hangs on W)."""
        weights, terms = query.split(self._terms.variant), self._terms
        if len(query.mean) != terms.length:
            raise ConfigError(f"Expected a baseline of {terms.length} elements, {len(query.mean)} came.")
        if not (norm := float(np.linalg.norm(weights.hidden))) <= terms.weight_norm:
            raise ConfigError(
                f"Expected weights of norm up to {terms.weight_norm:.3g}, {norm:.3g} came: use an anchor "
                "nearer to the baseline, or declare a larger Bounds.weight (scores get as much noisier)."
            )
        plain = self._ring.encode(weights.hidden, terms.parameters.weight_scale)
        return Baseline(plain, weights.clear, query.constant)

    @property
    def ciphertext_bytes(self) -> int:
        """Exact length of a client's ciphertext."""
        p = self._terms.parameters
        return gate.TAG + gate.residues_size(2, p.primes, p.poly_modulus_degree)

    def admit(self, ciphertext: bytes, *, sender: str = "client") -> gate.Residues:
        """The gate alone: a client's ciphertext as residues, or RemoteProtocolError(sender)."""
        p = self._terms.parameters
        size = gate.residues_size(2, p.primes, p.poly_modulus_degree)
        raw = gate.body(ciphertext, self._ciphertext, size, sender=sender)
        residues = gate.unpack(raw, 2, p.primes, p.poly_modulus_degree, sender=sender)
        gate.not_transparent(residues, sender=sender)
        return residues

    def match(
        self, ciphertext: bytes, baseline: Baseline, clear: Vector | None = None, *, sender: str = "client"
    ) -> Blinded:
        """Score of one client, blinded. `clear` is `Features.split(variant).clear`, nothing for full.

        Raises RemoteProtocolError(sender) for bytes or clear values that do not pass the gate.
        """
        p = self._terms.parameters
        residues = self.admit(ciphertext, sender=sender)
        offset = baseline.constant + float(self._checked(clear, sender) @ baseline.clear)
        cipher = self._ring.ciphertext(residues, float(p.data_scale))
        product = self._ring.coefficients(self._ring.product(cipher, baseline.hidden, self._encryptor))
        mask = self._rng.randrange(p.modulus)
        opened = (p.compose(tuple(int(r) for r in product[0, :, 0])) + mask) % p.modulus
        request = self._request + gate.pack_integer(opened, p.modulus) + gate.pack(product[1:], p.primes)
        return Blinded(request, mask, offset, sender)

    def unblind(self, blinded: Blinded, reply: bytes, *, sender: str = "key holder") -> Score:
        """The score. RemoteProtocolError(client) if it lies where no profile inside the bounds can be."""
        p, terms = self._terms.parameters, self._terms
        raw = gate.body(reply, self._reply, gate.integer_size(p.modulus), sender=sender)
        opened = gate.unpack_integer(raw, p.modulus, sender=sender)
        hidden = p.centre(opened - blinded.mask) * p.unit
        value, error = (hidden + blinded.offset) / terms.length, terms.error_bound()
        if abs(hidden) > terms.largest + terms.length * error or value < -error:
            raise RemoteProtocolError(
                "The score is negative or outside the declared bounds, which no clipped profile gives.",
                sender=blinded.sender,
                phase="score",
            )
        return Score(value, error)

    def _checked(self, clear: Vector | None, sender: str) -> Vector:
        """The plaintext part, if it is a variance per element inside the bounds and their log sum."""
        values = np.empty(0) if clear is None else np.asarray(clear, dtype=np.float64)
        terms, bounds = self._terms, self._terms.bounds
        if values.shape == (terms.clear_length,):
            variance, logs = values[:-1], values[-1:]
            inside = (variance >= bounds.variance_low) & (variance <= bounds.variance_high)
            if inside.all() and (abs(logs) <= bounds.log_sum(terms.length) * (1 + 1e-9)).all():
                return values
        raise RemoteProtocolError(
            f"Expected {terms.clear_length} plaintext values inside the declared bounds, "
            f"shape {values.shape} came.",
            sender=sender,
            phase="gate",
        )


class Opener:
    """The key holder's part: exact integers in numpy, no homomorphic library touches a request.

    Opens at most tau different requests; the same request again gets the stored answer and is counted once,
    for fresh noise on the same value would average out. Count and answers live in memory: a
    key holder that restarts must take a new key.
    """

    def __init__(self, keys: KeyPair, terms: Terms, *, rng: random.Random | None = None) -> None:
        public = agreed(keys.public, terms.parameters)
        secret = keys.coefficients()
        # (c1 * s)_0 = c1_0 s_0 - sum over j > 0 of c1_j s_(N - j)  in Z[X] / (X^N + 1)
        self._row = np.concatenate([secret[:1], -secret[:0:-1]])
        self._terms, self._rng = terms, rng or random.SystemRandom()
        self._request = gate.tag("request", public.session, terms.digest())
        self._reply = gate.tag("reply", public.session, terms.digest())
        self._answers: dict[bytes, bytes] = {}

    @property
    def opened(self) -> int:
        """Different requests opened so far."""
        return len(self._answers)

    def open(self, request: bytes, *, sender: str = "evaluator") -> bytes:
        """One integer mod Q. RemoteProtocolError(sender) for a bad request, and beyond the cap."""
        p = self._terms.parameters
        size = gate.integer_size(p.modulus)
        whole = size + gate.residues_size(1, p.primes, p.poly_modulus_degree)
        raw = gate.body(request, self._request, whole, sender=sender)
        masked = gate.unpack_integer(raw[:size], p.modulus, sender=sender)
        residues = gate.unpack(raw[size:], 1, p.primes, p.poly_modulus_degree, sender=sender)[0]
        if (answer := self._answers.get(digest := hashlib.sha256(request).digest())) is not None:
            return answer
        if self.opened >= self._terms.scores:
            raise RemoteProtocolError(
                f"This key's {self._terms.scores} openings are used up; start a session with a new key.",
                sender=sender,
                phase="open",
            )
        flooded = masked + self._inner_product(residues) + self._noise()
        answer = self._reply + gate.pack_integer(self._rounded(flooded), p.modulus)
        self._answers[digest] = answer
        return answer

    def _inner_product(self, residues: gate.Residues) -> int:
        # halves of 32 bits: 2^13 of them still sum exactly in 64
        low = (residues & np.uint64(0xFFFFFFFF)).astype(np.int64) @ self._row
        high = (residues >> np.uint64(32)).astype(np.int64) @ self._row
        sums = (int(a) + (int(b) << 32) for a, b in zip(low, high, strict=True))
        return self._terms.parameters.compose(tuple(sums))

    def _noise(self) -> int:
        grid = self._terms.grid
        return grid * round(self._terms.sigma / grid * self._rng.gauss(0.0, 1.0))

    def _rounded(self, value: int) -> int:
        grid = self._terms.grid
        return (value + grid // 2) // grid * grid % self._terms.parameters.modulus
