"""Additively homomorphic sums: the server learns the exact sum over the survivors, the key holder nothing.

    client      integers -> ciphertexts under the key holder's key, sealed to the server on their way
    evaluator   gate, then sum; adds one fresh encryption of uniform pads and flooding; signs the request
    key holder  decrypts, removes the noise by rounding; replies integers mod p_j, once per place (the
                round, attempt, stage and name of a sum)
    evaluator   subtracts its pads: the sum, bit for bit

`terms` has the coding. What each party sees, and why it learns no more than its output (all parties
semi-honest, key holder and server not colluding, no client colluding with the server):

* A client sees the public key.
* The evaluator sees ciphertexts, which are pseudorandom under RLWE, and sum + pad mod p_j exactly. A reply
  contains no noise that depends on the key, so no flooding is needed against the evaluator, and many replies
  reveal nothing about the key. Its view can be simulated from the sum only.
* The key holder decrypts noise e, and sum + pad mod every p_j, which is uniform since the pad is. The second
  polynomial and e depend on encryption randomness only (coding rounds nothing, and SEAL adds a message after
  the noise). So its view has the same distribution for all data, without any assumption. If it colludes with
  clients, this holds for the other clients' data. e depends on the number of clients in the sum and on the
  fresh encryption. Flooding hides that, up to an advantage of 2^-22.8 over all tau openings of a key.

What a dishonest party can do:

* A client can spoil the sum. Within the bounds no check sees it, as under every mask. Beyond them the
  evaluator refuses the sum, unless the result is a possible sum, and no party can tell which client did it.
  If the gate refuses a message, it names the client.
* A client can send a multiple of the secret key in place of a vector: it chooses a second polynomial instead
  of drawing it. The sum then contains the key plus the other clients' vectors. A party that reads the sum and
  knows enough of the others has the key. With the server's help it opens every ciphertext of the key, so
  client and server must not collude.
* A *malicious* evaluator gets the key from one request of N integers, or has one client's vector opened. No
  cap prevents that: the evaluator is trusted to follow the protocol. The key holder answers one request per
  place, so the evaluator cannot get a second sum with one client fewer.
* A malicious key holder can shift the sum, unseen within the bounds. It learns nothing by that, but it must
  not see the clients' channel. Tags bind bytes to key, terms and place against mix-ups. Against forgers,
  authenticated channels are needed.

Costs on one core, for a ciphertext of 8,192 coefficients (`strong`, 262 kB) of 60 bits: a client 8 ms, the
evaluator 0.3 ms a client and 9 ms a request, the key holder 5 ms. Upload for each value, in full ciphertexts:

    bits of a sum, with its sign      8     12    15    20    30    59
    strong, bytes                    4.6   6.4     8   10.7   16    32
    compact, bytes                    8     12    24    24     -     -
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

import numpy as np

from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import Guarded, PublicKey, Signature
from securefl.core.signing import SIGNATURE_BYTES, SigningKey, verify
from securefl.he import gate
from securefl.he.gate import Residues
from securefl.he.keys import EncryptionKey, KeyPair, agreed
from securefl.he.openings import Openings
from securefl.he.ring import Ring
from securefl.sums.encrypted.terms import Integers, Place, SumTerms, centred, gaussians, plus, uniform

__all__ = ["BlindedSum", "EncryptedTotal", "Place", "SumEncryptor", "SumEvaluator", "SumOpener", "SumTerms"]


class SumEncryptor:
    """The client's part. It holds no secret."""

    def __init__(self, public: EncryptionKey, terms: SumTerms) -> None:
        self._terms, self._ring = terms, Ring.of(agreed(public, terms.parameters).parameters)
        self._encryptor = self._ring.encryptor(public.residues())
        self._tag = gate.tag("sum", public.session, terms.digest)

    def encrypt(self, integers: Integers) -> bytes:
        """One message from int64 (length,).

        Raises LocalProtocolError for another dtype or shape, or an integer beyond the bound.
        """
        coefficients = self._terms.encode(integers)
        # One unit of noise in every coefficient: a vector may be all zero, which SEAL refuses to transform.
        coefficients = plus(coefficients, np.ones_like(coefficients), self._terms.parameters.primes)
        parts = (self._ring.encrypt(self._encryptor, self._ring.plain(each)) for each in coefficients)
        return self._tag + b"".join(gate.pack(part, self._terms.parameters.primes) for part in parts)


@dataclass(frozen=True, eq=False)
class EncryptedTotal:
    """The sum of ciphertexts so far, residues (ciphertexts, 2, primes, N), and its senders."""

    residues: Residues = field(repr=False)
    senders: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class BlindedSum(Guarded):
    """A sum that the key holder is to open. The pads stay with the evaluator."""

    pads: Residues = field(repr=False)
    senders: tuple[str, ...]


class SumEvaluator:
    """The server's part of one sum. `rng` draws pads and flooding: the operating system's by default."""

    def __init__(
        self,
        public: EncryptionKey,
        terms: SumTerms,
        signing: SigningKey,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self._terms, self._ring = terms, Ring.of(agreed(public, terms.parameters).parameters)
        self._encryptor = self._ring.encryptor(public.residues())
        self._signing, self._rng = signing, rng or random.SystemRandom()
        self._tags = {
            kind: gate.tag(kind, public.session, terms.digest) for kind in ("sum", "sum-request", "sum-reply")
        }

    @property
    def message_bytes(self) -> int:
        """Exact length of a client's message."""
        return gate.TAG + _size(self._terms)

    def admit(self, message: bytes, *, sender: str) -> Residues:
        """The checks of a message: residues (ciphertexts, 2, primes, N), or RemoteProtocolError(sender)."""
        raw = gate.body(message, self._tags["sum"], _size(self._terms), sender=sender)
        return _ciphertexts(raw, self._terms, sender)

    def add(self, total: EncryptedTotal | None, message: bytes, *, sender: str) -> EncryptedTotal:
        """The total with one more client. If `total` is None, this message begins one.

        A refused message leaves `total` as it was.

        Raises:
            RemoteProtocolError: names the sender of a message that does not pass the gate, a sender that is
                in `total` already, or one client more than declared (the sum could wrap).
        """
        residues = self.admit(message, sender=sender)
        if total is None:
            return EncryptedTotal(residues, (sender,))
        if sender in total.senders or len(total.senders) >= self._terms.clients:
            raise RemoteProtocolError(
                f"Expected one vector from each of at most {self._terms.clients} clients, got one more. The "
                "total is unchanged: leave this vector out.",
                sender=sender,
                phase="gate",
            )
        whole = plus(total.residues, residues, self._terms.parameters.primes)
        return EncryptedTotal(whole, (*total.senders, sender))

    def request(self, total: EncryptedTotal) -> tuple[BlindedSum, bytes]:
        """Blind the total for the key holder.

        Every call draws new pads, and the key holder answers one request per place. So keep the bytes, and
        send them again if the reply is lost.

        Returns:
            The pads, which stay here, and the signed bytes for the key holder.
        """
        terms, primes = self._terms, self._terms.parameters.primes
        shape = (terms.ciphertexts, terms.parameters.poly_modulus_degree)
        # Uniform modulo each prime by itself is uniform modulo their product (Chinese remainder theorem).
        pads = np.stack(
            [uniform(p, shape[0] * shape[1], self._rng).reshape(shape) for p in terms.payload], axis=1
        )
        flooding = gaussians(terms.sigma, shape[0] * shape[1], self._rng).reshape(shape)
        # The first prime gets no pad: there the key holder reads the noise that it removes.
        zeros = np.zeros((shape[0], 1, shape[1]), dtype=np.uint64)
        noise = np.mod(flooding[:, None], np.array(primes, dtype=np.int64)[:, None]).astype(np.uint64)
        coefficients = plus(np.concatenate([zeros, pads], axis=1), noise, primes)
        fresh = [self._ring.encrypt(self._encryptor, self._ring.plain(each)) for each in coefficients]
        blinded = plus(total.residues, np.stack(fresh), primes)
        message = self._tags["sum-request"] + b"".join(gate.pack(each, primes) for each in blinded)
        return BlindedSum(pads, total.senders), message + self._signing.sign(message).raw

    def unblind(self, blinded: BlindedSum, reply: bytes, *, sender: str = "key holder") -> Integers:
        """The sum over `blinded.senders`, int64 (length,), exact.

        Raises:
            RemoteProtocolError: names the sender of a reply that cannot be read. It names no sender if the
                sum is impossible for vectors within the bound: the reply or a client's vector is wrong.
                Discard the round.
        """
        terms, payload = self._terms, self._terms.payload
        degree = terms.parameters.poly_modulus_degree
        size = gate.residues_size(terms.ciphertexts, payload, degree)
        raw = gate.body(reply, self._tags["sum-reply"], size, sender=sender)
        masked = gate.unpack(raw, terms.ciphertexts, payload, degree, sender=sender)
        moduli = np.array(payload, dtype=np.uint64)[:, None]
        return terms.decode(plus(masked, (moduli - blinded.pads) % moduli, payload))


class SumOpener(Guarded):
    """The key holder's part of one sum: it opens one request that the evaluator signed.

    It repeats the reply to that request. `openings` is the store of this key for all its sums (a file if the
    key outlives the process). It caps them together at tau, for which the flooding is sized.
    """

    def __init__(self, keys: KeyPair, terms: SumTerms, evaluator: PublicKey, *, openings: Openings) -> None:
        public, p = agreed(keys.public, terms.parameters), terms.parameters
        self._terms, self._evaluator, self._openings = terms, evaluator, openings
        self._ring = Ring.of(p)
        self._place = gate.tag("sum-place", public.session, terms.place.text().encode())
        # Residues are unsigned: a digit -1 of the secret is p - 1 modulo each prime.
        secret = np.mod(keys.coefficients(), np.array(p.primes, dtype=np.int64)[:, None])
        self._secret = self._ring.plain(secret.astype(np.uint64))
        self._tags = {
            kind: gate.tag(kind, public.session, terms.digest) for kind in ("sum-request", "sum-reply")
        }

    @property
    def message_bytes(self) -> int:
        """Length of the ciphertexts in a request."""
        return gate.TAG + _size(self._terms)

    def open(self, request: bytes, *, sender: str = "evaluator") -> bytes:
        """sum + pad mod p_j of every coefficient. The same request again gets the stored reply.

        Raises:
            RemoteProtocolError: names the sender of a request that does not pass the gate, has no valid
                signature, is another one for this place, or goes beyond the cap.
        """
        raw = gate.body(
            request, self._tags["sum-request"], _size(self._terms) + SIGNATURE_BYTES, sender=sender
        )
        message, signature = request[:-SIGNATURE_BYTES], request[-SIGNATURE_BYTES:]
        try:
            verify(self._evaluator, Signature(signature), message)
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=sender, phase="gate") from None
        residues = _ciphertexts(raw[:-SIGNATURE_BYTES], self._terms, sender)
        # The digest leaves the signature out, since its owner can make a second one for the same request.
        digest = hashlib.sha256(message).digest()
        # Stored by key and place, not by terms: only the first request is opened.
        stored = self._openings.once(
            self._place,
            self._terms.integers,
            self._terms.openings,
            lambda: digest + self._opened(residues),
            sender=sender,
        )
        if stored[: len(digest)] != digest:
            raise RemoteProtocolError(
                "Expected the request that was opened before, got another sum of this round, attempt, stage "
                "and name. Send the first again, or make a new attempt.",
                sender=sender,
                phase="open",
            )
        return stored[len(digest) :]

    def _opened(self, ciphertexts: Residues) -> bytes:
        words = b"".join(gate.pack(self._words(each)[None], self._terms.payload) for each in ciphertexts)
        return self._tags["sum-reply"] + words

    def _words(self, ciphertext: Residues) -> Residues:
        """c0 + c1 s of one ciphertext, (payload, N), without its noise, which is its residue mod p_0."""
        primes = self._terms.parameters.primes
        twice = self._ring.ciphertext(np.stack([ciphertext[1], ciphertext[1]]), 1.0)
        product = self._ring.residues(self._ring.weighted(twice, self._secret))[0]
        whole = plus(ciphertext[0], product, primes)
        # Both halves are equal, since SEAL transforms only ciphertexts.
        opened = self._ring.coefficients(self._ring.ciphertext(np.stack([whole, whole]), 1.0))[0]
        noise = centred(opened[:1], primes[:1])
        payload = np.array(self._terms.payload, dtype=np.int64)[:, None]
        return plus(opened[1:], np.mod(-noise, payload).astype(np.uint64), self._terms.payload)


def _size(terms: SumTerms) -> int:
    p = terms.parameters
    return gate.residues_size(2 * terms.ciphertexts, p.primes, p.poly_modulus_degree)


def _ciphertexts(raw: bytes, terms: SumTerms, sender: str) -> Residues:
    """Residues (ciphertexts, 2, primes, N) of raw bytes, through the gate."""
    p = terms.parameters
    whole = gate.unpack(raw, 2 * terms.ciphertexts, p.primes, p.poly_modulus_degree, sender=sender)
    residues = whole.reshape(terms.ciphertexts, 2, len(p.primes), p.poly_modulus_degree)
    for each in residues:
        gate.not_transparent(each, sender=sender)
    return residues
