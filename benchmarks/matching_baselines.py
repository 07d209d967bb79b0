"""What encrypted profile matching is compared with: the published way, Paillier, and two servers.

Every system has the same interface, so that `matching.py` runs them in turn:

    setup(q, rng)                 makes keys (from the system's entropy) and runs one client drawn from rng
    client(profile) -> bytes      what one client sends
    server(message, baseline)     -> bytes, what goes to the key holder
    holder(reply) -> float        the divergence
    bytes_up, bytes_to_holder     of the last run

None of them hides more than its docstring says: no flooding, no masks, no checks of what arrives.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from hashlib import shake_256
from struct import pack, unpack_from
from typing import Any, Protocol

import numpy as np
import tenseal as ts
from numpy.typing import NDArray

from securefl.dp.moments import MeanVariance
from securefl.matching.profiles import VARIANCE_FLOOR, Features, Floats, ProfileQuery, Variant


class System(Protocol):
    """One way to match profiles, see above."""

    bytes_up: int
    bytes_to_holder: int

    def setup(self, q: int, rng: np.random.Generator) -> None: ...
    def client(self, profile: MeanVariance) -> bytes: ...
    def server(self, message: bytes, baseline: MeanVariance) -> bytes: ...
    def holder(self, reply: bytes) -> float: ...


class ElementWise:
    """Mean-only as published: every mean its own CKKS ciphertext, variances in plaintext.

    The server computes (mu - mu_B)^2 / (2 q s_B) for each, adds the ciphertexts and the plaintext rest; no
    rotations. The key holder reads the score. TenSEAL, N 8192, moduli [60, 40, 40, 60], scale 2^40.
    """

    def setup(self, q: int, rng: np.random.Generator) -> None:
        self._secret: Any = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
        self._secret.global_scale = 2.0**40
        self._public: Any = ts.context_from(
            self._secret.serialize(save_secret_key=False, save_galois_keys=False)
        )
        _warm_up(self, q, rng)

    def client(self, profile: MeanVariance) -> bytes:
        parts = [ts.ckks_vector(self._public, [float(mean)]).serialize() for mean in profile.mean]
        sizes = pack(f"<{len(parts)}I", *map(len, parts))
        message = b"".join([pack("<I", len(parts)), sizes, _floored(profile).tobytes(), *parts])
        self.bytes_up = len(message)
        return message

    def server(self, message: bytes, baseline: MeanVariance) -> bytes:
        (q,) = unpack_from("<I", message)
        sizes = unpack_from(f"<{q}I", message, 4)
        variances = _floored(baseline)
        ratio = np.frombuffer(message, np.float64, q, 4 + 4 * q) / variances
        start, total = 4 + 12 * q, None
        for size, mean, variance in zip(sizes, baseline.mean, variances, strict=True):
            term: Any = ts.ckks_vector_from(self._public, message[start : start + size])
            start += size
            term -= [float(mean)]
            term.square_()
            term *= [0.5 / (q * float(variance))]
            total = term if total is None else total.add_(term)
        assert total is not None
        total += [0.5 * float(np.mean(ratio - np.log(ratio) - 1.0))]
        reply: bytes = total.serialize()
        self.bytes_to_holder = len(reply)
        return reply

    def holder(self, reply: bytes) -> float:
        return float(ts.ckks_vector_from(self._secret, reply).decrypt()[0])


class Paillier:
    """Full, as an inner product: 2q + 1 ciphertexts under a 2048-bit key, weights in plaintext.

    Both are rounded to 2^-28. The server's answer is re-randomised; the key holder reads the score. Needs
    `phe`, and `gmpy2` for speed; `setup` raises ImportError without `phe`.
    """

    _PRECISION = 2.0**-28  # of features and of weights
    _SIZE = 512  # bytes of a residue modulo n^2

    def setup(self, q: int, rng: np.random.Generator) -> None:
        from phe import EncodedNumber, EncryptedNumber, paillier  # only here: optional

        self._q = q
        self._encoded: Any = EncodedNumber
        self._encrypted: Any = EncryptedNumber
        self._public, self._secret = paillier.generate_paillier_keypair(n_length=2048)
        _warm_up(self, q, rng)

    def client(self, profile: MeanVariance) -> bytes:
        hidden = _features(profile)
        encrypted = [self._public.encrypt(float(v), precision=self._PRECISION) for v in hidden]
        message = b"".join(int(c.ciphertext()).to_bytes(self._SIZE, "big") for c in encrypted)
        self.bytes_up = len(message)
        return message

    def server(self, message: bytes, baseline: MeanVariance) -> bytes:
        weights, constant = _weights(baseline)
        exponent = self._encode(0.0, self._PRECISION).exponent
        total: Any = None
        for i, weight in enumerate(weights):
            residue = int.from_bytes(message[i * self._SIZE : (i + 1) * self._SIZE], "big")
            term = self._encrypted(self._public, residue, exponent)
            term = term * self._encode(float(weight), self._PRECISION)
            total = term if total is None else total + term
        total += self._encode(constant, self._PRECISION**2)
        reply = int(total.ciphertext(be_secure=True)).to_bytes(self._SIZE, "big")
        self.bytes_to_holder = len(reply)
        return reply

    def holder(self, reply: bytes) -> float:
        exponent = self._encode(0.0, self._PRECISION**2).exponent
        score = self._encrypted(self._public, int.from_bytes(reply, "big"), exponent)
        return float(self._secret.decrypt(score)) / self._q

    def _encode(self, value: float, precision: float) -> Any:
        return self._encoded.encode(self._public, value, precision=precision)


class SecretSharing:
    """Full, as an inner product shared between two servers that do not collude: the floor.

    Additive shares modulo 2^64 of features at scale 2^24; one share is a 32-byte seed. The baseline is known
    to both servers, whose work `server` does one after the other (its time is that of both). The third party
    adds two words. q * div must stay below 2^15. No public-key work; channels to the servers are not counted.
    """

    _SCALE = 2.0**24

    def setup(self, q: int, rng: np.random.Generator) -> None:
        self._q = q
        _warm_up(self, q, rng)

    def client(self, profile: MeanVariance) -> bytes:
        seed = secrets.token_bytes(32)
        values = self._fixed(_features(profile))
        message = seed + (values - self._expand(seed, len(values))).tobytes()
        self.bytes_up = len(message)
        return message

    def server(self, message: bytes, baseline: MeanVariance) -> bytes:
        weights, constant = _weights(baseline)
        fixed = self._fixed(weights)
        first = fixed @ self._expand(message[:32], len(fixed))
        second = fixed @ np.frombuffer(message, np.uint64, offset=32)
        with_constant = (int(second) + round(constant * self._SCALE**2)) % 2**64
        reply = pack("<QQ", int(first), with_constant)
        self.bytes_to_holder = len(reply)
        return reply

    def holder(self, reply: bytes) -> float:
        shares = np.frombuffer(reply, np.uint64)
        total = (shares[:1] + shares[1:]).view(np.int64)[0]
        return float(total) / self._SCALE**2 / self._q

    def _fixed(self, values: Floats) -> NDArray[np.uint64]:
        return np.rint(values * self._SCALE).astype(np.int64).view(np.uint64)

    def _expand(self, seed: bytes, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(shake_256(seed).digest(8 * count), np.uint64)


def _floored(profile: MeanVariance) -> Floats:
    return np.maximum(profile.variance, VARIANCE_FLOOR)


def _features(profile: MeanVariance) -> Floats:
    """[mu, mu^2 + s, sum log s], without anchor and clipping: the profiles here need neither."""
    return Features(profile.mean, _floored(profile), clipped=0).split(Variant.FULL).hidden


@lru_cache(maxsize=4)
def _weights(baseline: MeanVariance) -> tuple[Floats, float]:
    """Weights and constant of q * div; kept, since a baseline stays while its clients come."""
    found = ProfileQuery(baseline.mean, _floored(baseline))
    return found.weights, found.constant


def _drawn(q: int, rng: np.random.Generator) -> MeanVariance:
    return MeanVariance(rng.normal(size=q), rng.uniform(0.5, 4, q), 100)


def _warm_up(system: System, q: int, rng: np.random.Generator) -> None:
    system.holder(system.server(system.client(_drawn(q, rng)), _drawn(q, rng)))
