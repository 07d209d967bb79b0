from __future__ import annotations

import copy
import gc
import pickle
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as sealapi
from support.every import every
from support.tiny_he import SIGNER

import securefl.he
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.keys import PublicKey, SecretKey
from securefl.he import gate
from securefl.he import ring as ring_of
from securefl.he.keys import EncryptionKey, KeyPair, checked
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters
from securefl.linear.encrypted import LinearEvaluator, Opener
from securefl.linear.encryptor import Encryptor
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Bounds, Variant

SETS = pytest.mark.parametrize("parameters", [STRONG, COMPACT], ids=lambda p: p.name)


@cache
def pair(parameters: Parameters) -> KeyPair:
    return KeyPair.generate(parameters)


def terms(parameters: Parameters) -> LinearTerms:
    return LinearTerms(parameters=parameters, bounds=Bounds().linear(10, Variant.FULL), scores=10)


def residues(parameters: Parameters) -> gate.Residues:
    rng = np.random.default_rng(3)
    n = parameters.poly_modulus_degree
    return np.array([[rng.integers(0, p, n, dtype=np.uint64) for p in parameters.primes] for _ in range(2)])


@SETS
def test_what_is_written_is_what_seal_holds_and_what_is_read(parameters: Parameters) -> None:
    ring, values = ring_of.Ring(parameters), residues(parameters)
    cipher = ring.ciphertext(values, 2.0**30)
    array = cipher.dyn_array()
    np.testing.assert_array_equal(ring.residues(cipher), values)
    assert [array.at(i) for i in range(0, values.size, 997)] == values.ravel()[::997].tolist()


@SETS
def test_reading_without_the_extensions_zstd_gives_the_same(
    parameters: Parameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_of, "_zstd", lambda: None)
    ring, values = ring_of.Ring(parameters), residues(parameters)
    np.testing.assert_array_equal(ring.residues(ring.ciphertext(values, 2.0**30)), values)


def test_files_on_disk_serve_where_there_are_no_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.memfd_create")
    ring, values = ring_of.Ring(COMPACT), residues(COMPACT)
    np.testing.assert_array_equal(ring.residues(ring.ciphertext(values, 2.0**30)), values)


@every(
    "change",
    [
        lambda patch: patch.setattr(ring_of, "_version", lambda: (9, 9)),
        lambda patch: patch.setattr(ring_of, "_MAGIC", 0x1234),
        lambda patch: patch.setattr(ring_of, "_CIPHERTEXT", struct.Struct("<4QBQQQd")),
        lambda patch: patch.setattr(ring_of, "_read", lambda array: np.arange(array.size(), dtype=np.uint64)),
    ],
)
def test_another_layout_is_refused_loudly(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    with pytest.raises(ConfigError, match="TenSEAL"):
        ring_of.Ring(COMPACT)


def test_weak_parameters_are_refused_by_seal() -> None:
    weak = Parameters(
        name="weak",
        poly_modulus_degree=4096,
        primes=STRONG.primes,
        special_prime=STRONG.special_prime,
        data_scale=2**60,
        weight_scale=2**40,
    )
    with pytest.raises(ConfigError, match="SEAL accepts, got 'weak'"):
        ring_of.Ring(weak)


@SETS
def test_the_secret_is_uniform_ternary_and_fits_the_public_key(parameters: Parameters) -> None:
    secret = pair(parameters).coefficients()
    n = parameters.poly_modulus_degree
    assert set(secret.tolist()) == {-1, 0, 1}
    # binomial counts: six standard deviations, a false alarm in 10^8
    assert all(abs(np.sum(secret == v) - n / 3) < 6 * np.sqrt(n * 2 / 9) for v in (-1, 0, 1))
    assert (KeyPair.generate(parameters).coefficients() != secret).any()


@SETS
def test_keys_hold_two_polynomials_and_nothing_for_rotation_or_relinearisation(
    parameters: Parameters,
) -> None:
    keys, n = pair(parameters), parameters.poly_modulus_degree
    widths = sum((p.bit_length() + 7) // 8 for p in (*parameters.primes, parameters.special_prime))
    assert len(keys.public.key.raw) == 2 * n * widths
    assert len(keys.secret.reveal()) == n
    for module in Path(securefl.he.__file__).parent.glob("*.py"):
        text = module.read_text()
        assert not any(word in text for word in ("create_galois", "create_relin", "rotate_", "relinearize"))


@every("parameters", [COMPACT, STRONG_ENCRYPTED])
def test_public_parts_hold_no_secret_and_cannot_decrypt(parameters: Parameters) -> None:
    """Trap: a context that was made public still decrypts. All that public parts reach is searched."""
    public = EncryptionKey(parameters, PublicKey(pair(parameters).public.key.raw))
    secrets = (sealapi.SecretKey, sealapi.Decryptor, sealapi.KeyGenerator, SecretKey, KeyPair, Opener)
    parties: list[object] = [Encryptor(public, terms(parameters))]
    if parameters.encrypted_baseline:
        parties.append(LinearEvaluator(public, terms(parameters), SIGNER))
    for party in parties:
        found = [o for o in reachable(party) if isinstance(o, secrets)]
        assert not [o for o in found if o is not SIGNER.secret]
    assert [o for o in reachable({"control": [pair(parameters)]}) if isinstance(o, secrets)]


def reachable(start: object) -> list[object]:
    seen: dict[int, object] = {}
    waiting: list[Any] = [start]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type) or type(item).__name__ in ("module", "function"):
            continue
        seen[id(item)] = item
        waiting.extend(gc.get_referents(item))
    return list(seen.values())


def test_secrets_are_redacted_and_never_pickled_or_copied() -> None:
    keys = pair(COMPACT)
    assert "redacted" in repr(keys.secret)
    assert repr(keys.secret.reveal()[:8]) not in repr(keys)
    for spread in (pickle.dumps, copy.deepcopy):
        with pytest.raises(LocalProtocolError):
            spread(keys)


def test_the_session_is_the_public_key() -> None:
    public = pair(COMPACT).public
    again = EncryptionKey(COMPACT, PublicKey(public.key.raw))
    assert public.session == again.session
    assert len(public.session) == 32
    assert KeyPair.generate(COMPACT).public.session != public.session


@every("damage", ["short", "long", "empty", "large", "transparent"])
def test_public_keys_from_peers_pass_the_gate(damage: str) -> None:
    raw = pair(COMPACT).public.key.raw
    bad = {
        "short": raw[:-1],
        "long": raw + b"\0",
        "empty": b"",
        "large": b"\xff" * 8 + raw[8:],
        "transparent": raw[: len(raw) // 2] + bytes(len(raw) // 2),
    }[damage]
    with pytest.raises(RemoteProtocolError, match="phase gate"):
        Encryptor(EncryptionKey(COMPACT, PublicKey(bad)), terms(COMPACT))


def test_a_key_of_other_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="compact"):
        Encryptor(pair(COMPACT).public, terms(STRONG))
    with pytest.raises(LocalProtocolError, match="secret key"):
        KeyPair(pair(COMPACT).public, SecretKey(b"\1" * 8192)).coefficients()
    with pytest.raises(LocalProtocolError, match="secret key"):
        KeyPair(pair(COMPACT).public, SecretKey(b"\3" * 4096)).coefficients()


@every("half", [0, 1])
def test_a_key_that_its_owner_signed_and_that_is_none_is_the_owners_fault(half: int) -> None:
    """With a half that is zero, everybody reads what is encrypted: the key is refused before it is used."""
    raw = pair(COMPACT).public.key.raw
    assert checked(COMPACT, raw).session == pair(COMPACT).public.session
    size = len(raw) // 2
    for bad in (raw[:-1], raw[:size] + bytes(size) if half else bytes(size) + raw[size:]):
        with pytest.raises(CryptoError):
            checked(COMPACT, bad)
