"""Frozen bytes of encrypted matching: a change that breaks deployed parties turns these red.

`python tests/vectors/test_matching_vectors.py` writes matching/vectors.json anew; do so only together with a
new version of the tag or the document, and mark the change in CHANGELOG.md. Everything random is derived from
SHAKE-256 here, so that an independent implementation can make the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_he import BOUNDS, Quiet

from securefl.core.errors import DataError, RemoteProtocolError
from securefl.core.keys import PublicKey, SecretKey
from securefl.core.signing import AgreementKey, SigningKey
from securefl.he import gate
from securefl.he.keys import EncryptionKey, KeyPair
from securefl.he.parameters import COMPACT, STRONG_ENCRYPTED, Parameters
from securefl.linear.encrypted import Opener
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import pad_and_rest
from securefl.linear.terms import LinearTerms
from securefl.matching.document import Document
from securefl.matching.profiles import Variant

FILE = Path(__file__).parent / "matching" / "vectors.json"
SIGNING = SigningKey(SecretKey(bytes(range(32))))


def words(label: str, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.frombuffer(hashlib.shake_256(label.encode()).digest(8 * count), dtype="<u8")


def polynomials(label: str, count: int, primes: tuple[int, ...], degree: int) -> bytes:
    rows = [[words(f"{label}/{i}/{p}", degree) % np.uint64(p) for p in primes] for i in range(count)]
    return gate.pack(np.array(rows, dtype=np.uint64), primes)


def pair(parameters: Parameters) -> KeyPair:
    """Not a real pair: the opener uses the secret alone."""
    n = parameters.poly_modulus_degree
    raw = polynomials("public", 2, (*parameters.primes, parameters.special_prime), n)
    secret = (words("secret", n) % np.uint64(3)).astype(np.uint8).tobytes()
    return KeyPair(EncryptionKey(parameters, PublicKey(raw)), SecretKey(secret))


def terms(scores: int = 1000) -> LinearTerms:
    return LinearTerms(parameters=COMPACT, bounds=BOUNDS.linear(84, Variant.FULL), scores=scores)


P = STRONG_ENCRYPTED


def of_files(scores: int = 1000) -> LinearTerms:
    """Of encrypted weights."""
    return LinearTerms(parameters=P, bounds=BOUNDS.linear(84, Variant.FULL), scores=scores)


def request(kind: str = "addressed", scores: int = 1000) -> bytes:
    (word,) = words("masked", 1)
    tag = gate.tag(kind, pair(P).public.session, of_files(scores).digest())
    raw = tag + gate.pack_integer(int(word) * 2**20, P.modulus)
    raw += polynomials("c1", 2, P.primes, P.poly_modulus_degree)
    return raw + SIGNING.sign(raw).raw


def opened(raw: bytes) -> bytes:
    return Opener(pair(P), of_files(), SIGNING.public, rng=Quiet()).opening(raw, "label")[2]()


def pad() -> bytes:
    own, other = (AgreementKey(SecretKey(bytes([i]) * 32)) for i in (1, 2))
    made = PadTerms(bounds=BOUNDS.linear(84, Variant.FULL), context=b"session|3|0")
    there, here = (
        pad_and_rest(one, two.public, own.public, made, "profile", bytes(32))[0]
        for one, two in ((own, other), (other, own))
    )
    assert np.array_equal(there, here), "both sides derive it"
    return there.tobytes()


def document() -> bytes:
    return Document("encrypted-profile", {"session": "00" * 32, "label": "p1"}, b"body").to_bytes()


def made() -> dict[str, str]:
    return {
        "terms digest": terms().digest().hex(),
        "session": pair(COMPACT).public.session.hex(),
        "request (sha256)": hashlib.sha256(request()).hexdigest(),
        "opened": opened(request()).hex(),
        "pad (sha256)": hashlib.sha256(pad()).hexdigest(),
        "document": document().hex(),
    }


@every("name", made())
def test_bytes_are_frozen(name: str) -> None:
    assert made()[name] == json.loads(FILE.read_text())[name]


def defects() -> dict[str, bytes]:
    """Named ways to spoil a request; the signature fits again where the damage is inside it."""

    def signed(raw: bytes) -> bytes:
        return raw + SIGNING.sign(raw).raw

    good, size = request(), gate.integer_size(P.modulus)
    inner = good[:-64]
    return {
        "of another kind": request("baseline"),
        "of other terms": request(scores=999),
        "an integer at the modulus": signed(
            inner[:16] + P.modulus.to_bytes(size, "little") + inner[16 + size :]
        ),
        "a residue at its prime": signed(
            inner[: 16 + size] + P.primes[0].to_bytes(8, "little") + inner[24 + size :]
        ),
        "cut": signed(inner[:-1]),
        "unsigned": inner + bytes(64),
        "signed by another": inner + SigningKey(SecretKey(bytes(32))).sign(inner).raw,
    }


@every("defect", defects())
def test_defective_requests_are_refused(defect: str) -> None:
    with pytest.raises(RemoteProtocolError):
        opened(defects()[defect])


@every("defect", ["version", "kind", "digest"])
def test_defective_envelopes_are_refused(defect: str) -> None:
    good = document()
    bad = {
        "version": good.replace(b"securefl 8", b"securefl 4", 1),
        "kind": Document("secret-key", {}, b"").to_bytes(),
        "digest": good[:-1] + bytes([good[-1] ^ 1]),
    }[defect]
    assert Document.from_bytes(good, "encrypted-profile").body == b"body"
    with pytest.raises(DataError):
        Document.from_bytes(bad, "encrypted-profile")


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(made(), indent=1) + "\n")
