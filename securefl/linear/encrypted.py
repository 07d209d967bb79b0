"""Encrypted weights (mode E), for files: the key holder reads scores, the server neither vectors nor weights.

    client      hidden features -> packed ciphertexts, as ever
    owner       weights and offset -> ciphertexts too
    server      their product + fresh zeros; sends one coefficient of the first polynomial, with its flooding,
                and the other polynomials; there is no rotation, so no partial sum exists
    key holder  one inner product with its key and its square, plus flooding: the score

What each party sees, and why it learns no more than its output (all parties semi-honest, key holder and
server not colluding):

* The client and the owner of the weights see the public key.
* The server sees ciphertexts, which are pseudorandom under RLWE.
* The key holder sees one integer, and a second and a third polynomial, c1 and c2. A fresh zero randomises c1,
  and a product of two fresh zeros randomises c2 and c1. Since the key holder does not know the zeros, both
  are uniform to it. Without the product, a client that colludes with it could divide c2 by its own share of
  it. From the integer score + e + n follows. n is the server's flooding, which hides the encryption noise e
  and so the weights' norm. The other coefficients of the first polynomial are not sent.

**Nothing is checked.** A *malicious* server packs some dozens of the key's ternary coefficients, above the
flooding, in a request, and has the whole key after a few hundred openings that the key holder tells. The cap
limits the number of openings and does not prevent that.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, CryptoError, RemoteProtocolError
from securefl.core.keys import Guarded, PublicKey, Signature
from securefl.core.linear import Floats
from securefl.core.signing import SIGNATURE_BYTES, SigningKey, verify
from securefl.he import gate
from securefl.he.flooding import wide_gaussian
from securefl.he.integers import coefficient_rows, products
from securefl.he.keys import EncryptionKey, KeyPair, agreed
from securefl.he.openings import Openings
from securefl.he.ring import Ring
from securefl.linear.addressed import Opening
from securefl.linear.encryptor import Encryptor, admitted, spread
from securefl.linear.terms import LinearTerms, flooded
from securefl.linear.turn import Score, clear_part, read_score


@dataclass(frozen=True, eq=False)
class EncryptedFiles:
    """Ciphertexts that meet encrypted weights between files. key: the key holder's for these terms."""

    terms: LinearTerms
    key: Any = None

    head_bytes, loose_bytes = 0, SIGNATURE_BYTES

    @property
    def message_bytes(self) -> int:
        """Exact length of a client's message."""
        return self.terms.ciphertext_bytes

    @property
    def item_bytes(self) -> int:
        """Exact length of an item: one integer, the polynomials from the second on, and a signature."""
        return gate.TAG + _rest_bytes(self.terms)

    def error_bound(self, together: int) -> float:
        """The largest |score - div| of so many scores at once, except with probability 1e-6."""
        return self.terms.error_bound(together, floods=2)

    def message(self, hidden: Floats, name: str, told: bytes, signing: SigningKey | None = None) -> bytes:
        """The client's part: its ciphertexts. Errors as for `Encryptor.encrypt`."""
        return Encryptor(self.key, self.terms).encrypt(hidden)


def _rest_bytes(terms: LinearTerms) -> int:
    """The bytes of a request behind its tag."""
    p = terms.parameters
    rest = gate.residues_size(p.polynomials - 1, p.primes, p.poly_modulus_degree)
    return gate.integer_size(p.modulus) + rest + SIGNATURE_BYTES


def _tag(kind: str, public: EncryptionKey, terms: LinearTerms) -> bytes:
    """The first bytes of a message of this kind. Raises ConfigError for terms of weights in plaintext."""
    if not terms.parameters.encrypted_baseline:
        raise ConfigError(
            f"Expected terms of encrypted weights, got those of {terms.parameters.name!r}: weights in "
            "plaintext are declared first, and their openings are checked."
        )
    return gate.tag(kind, agreed(public, terms.parameters).session, terms.digest())


class LinearEvaluator:
    """The server's part, for a whole session.

        >>> import numpy as np
        >>> from securefl.core.signing import SigningKey
        >>> from securefl.he.keys import KeyPair
        >>> from securefl.he.parameters import STRONG_ENCRYPTED
        >>> from securefl.linear import Encryptor, LinearBounds, LinearQuery, Opener
        >>> from securefl.linear import LinearEvaluator, LinearTerms
        >>> bounds = LinearBounds(hidden_length=2, norm=2.0, weight_norm=2.0, row_norm=2.0, product=4.0)
        >>> terms = LinearTerms(parameters=STRONG_ENCRYPTED, bounds=bounds, scores=10)
        >>> pair, signing = KeyPair.generate(STRONG_ENCRYPTED), SigningKey.generate()
        >>> evaluator, owner = LinearEvaluator(pair.public, terms, signing), Encryptor(pair.public, terms)
        >>> weights = owner.encrypt_baseline(LinearQuery(bounds, np.array([1.0, 1.0])))
        >>> sealed = owner.encrypt(np.array([1.0, 0.5]))
        >>> request = evaluator.addressed(sealed, evaluator.encrypted_baseline(weights))
        >>> round(Opener(pair, terms, signing.public).read(request).value, 1)
        1.5

    `rng` is the operating system's randomness outside of tests.

    Raises:
        ConfigError: the key is of other parameters than the terms, or these are of weights in plaintext.
    """

    def __init__(
        self,
        public: EncryptionKey,
        terms: LinearTerms,
        signing: SigningKey,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self._tags = {kind: _tag(kind, public, terms) for kind in ("addressed", "baseline", "ciphertext")}
        self._terms, self._ring = terms, Ring.of(terms.parameters)
        self._encryptor = self._ring.encryptor(public.residues())
        self._signing, self._rng = signing, rng or random.SystemRandom()

    def encrypted_baseline(self, message: bytes, *, sender: str = "baseline owner") -> tuple[Any, ...]:
        """The checked ciphertexts of a baseline that `Encryptor.encrypt_baseline` made."""
        scale = float(self._terms.parameters.weight_scale)
        return tuple(
            self._ring.ciphertext(each, scale) for each in self._admitted(message, "baseline", sender)
        )

    def _admitted(self, message: bytes, kind: str, sender: str) -> list[gate.Residues]:
        return admitted(message, self._tags[kind], self._terms, sender=sender)

    def addressed(
        self,
        ciphertext: bytes,
        baseline: tuple[Any, ...],
        clear: Floats | None = None,
        *,
        sender: str = "client",
    ) -> bytes:
        """A request whose score only the key holder reads.

        Args:
            ciphertext: the client's message.
            baseline: the encrypted weights.
            clear: the plaintext part, float64 (c,). None if there is none.
            sender: the client's name, for refusals.

        Raises:
            RemoteProtocolError: the message does not pass the gate, or clear values are outside the bounds.
        """
        terms, p, ring = self._terms, self._terms.parameters, self._ring
        residues = self._admitted(ciphertext, "ciphertext", sender)
        clear = clear_part(clear, terms.bounds, sender)
        ciphers = [ring.ciphertext(each, float(terms.data_scale)) for each in residues]
        row = np.concatenate([np.zeros(terms.hidden_length), clear, [terms.bounds.scale]])
        for cipher, part in zip(ciphers, spread(row, terms.ciphertexts, p.slots), strict=True):
            ring.with_plain(cipher, ring.encode(part, terms.data_scale))
        parts = [ring.multiplied(c, w) for c, w in zip(ciphers, baseline, strict=True)]
        return self._request(parts, wide_gaussian(terms.sigma, self._rng))

    def _request(self, products: list[Any], noise: int) -> bytes:
        """The re-randomised total: one integer with noise, and its polynomials from the second on, signed."""
        p, ring = self._terms.parameters, self._ring
        zero = ring.zero(self._encryptor, products[0].scale)
        # The third polynomial needs a fresh one too. A zero is the same at any scale. SEAL adds only equal
        # scales, so the product gets the others' scale.
        pair = [ring.zero(self._encryptor, 2.0**39) for _ in range(2)]
        fresh = ring.multiplied(*pair)
        fresh.scale = products[0].scale
        whole = ring.coefficients(ring.total([*products, fresh, zero]))
        own = p.compose(tuple(int(r) for r in whole[0, :, 0]))
        opened = gate.pack_integer((own + noise) % p.modulus, p.modulus)
        message = self._tags["addressed"] + opened + gate.pack(whole[1:], p.primes)
        return message + self._signing.sign(message).raw


class Opener(Guarded):
    """Reads the scores of requests that the evaluator signed, at most tau. `LinearEvaluator` has an example.

    The same request again gets the stored integer, since fresh noise on the same value would average out. The
    evaluator must be semi-honest: requests that it makes up reveal the whole key within a few hundred
    openings. If `openings` is a file, count and integers outlive the process. If it is not, a key holder that
    restarts must take a new key.

    Raises:
        ConfigError: the key is of other parameters than the terms, or these are of weights in plaintext.
    """

    def __init__(
        self,
        keys: KeyPair,
        terms: LinearTerms,
        evaluator: PublicKey,
        *,
        openings: Openings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._tag = _tag("addressed", keys.public, terms)
        self._terms, self._evaluator = terms, evaluator
        self._rng = rng or random.SystemRandom()
        self._openings = openings or Openings()
        self._powers = _powers(keys.coefficients())

    @property
    def opened(self) -> int:
        """The number of integers opened so far, of this key and these terms."""
        return self._openings.opened

    def read(self, request: bytes, *, together: int = 1, sender: str = "evaluator") -> Score:
        """The score of a request.

        Args:
            request: the evaluator's signed bytes.
            together: the number of scores for which the error bound holds at once.
            sender: the name for refusals.

        Raises:
            RemoteProtocolError: the request does not pass the gate, has no valid signature or is beyond tau,
                or its score is outside the declared bounds.
        """
        terms, (once, _, opened) = self._terms, self.opening(request, sender)
        stored = self._openings.once(once, 1, terms.scores, opened, sender=sender)
        error = terms.error_bound(together, floods=2)
        return read_score(int.from_bytes(stored, "little"), terms, error, sender=sender)

    def opening(self, request: bytes, name: str) -> Opening:
        """How to open a request that passes the gate. Raises RemoteProtocolError(name) for others."""
        p = self._terms.parameters
        size, degree, rest = gate.integer_size(p.modulus), p.poly_modulus_degree, p.polynomials - 1
        raw = gate.body(request, self._tag, _rest_bytes(self._terms), sender=name)
        try:
            verify(self._evaluator, Signature(request[-SIGNATURE_BYTES:]), request[:-SIGNATURE_BYTES])
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=name, phase="gate") from None
        sent = gate.unpack_integer(raw[:size], p.modulus, sender=name)
        polynomials = gate.unpack(raw[size:-SIGNATURE_BYTES], rest, p.primes, degree, sender=name)

        def opened() -> bytes:
            """The integer + c1 s + c2 s^2 + noise, on the grid."""
            parts = (products(row, own, p)[0] for row, own in zip(self._powers, polynomials, strict=True))
            return gate.pack_integer(flooded(sent + sum(parts), self._terms, self._rng), p.modulus)

        # The digest leaves the signature out, which may differ between two requests for one opening.
        return hashlib.sha256(request[:-SIGNATURE_BYTES]).digest(), b"", opened


def _powers(secret: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """For s and s^2: the row that gives the first coefficient of a product with it."""
    # The square modulo X^N + 1: coefficients that wrap around change their sign.
    whole = np.convolve(secret, secret)
    square = whole[: len(secret)].copy()
    square[: len(secret) - 1] -= whole[len(secret) :]
    return [coefficient_rows(power, [0]) for power in (secret, square)]
