"""CKKS ring operations with TenSEAL. Only this module gives peers' values to TenSEAL or reads SEAL's layout.

SEAL represents a polynomial with N coefficients by residues: its values modulo each prime. TenSEAL offers no
view of them, and saves and loads only files with a name. So residues pass through an anonymous file in
memory. This module writes the whole input, with its header; no byte of it is copied from a peer's message.
The output is a `DynArray`: a header, then count and values, compressed with zstd. The copy of zstd inside
TenSEAL's extension decompresses it. If a build compresses otherwise, or does not export zstd, elements are
read one by one (8 ms instead of 1 ms). Every new ring runs a self-test. It refuses a TenSEAL with another
layout, whose results would be wrong.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import tenseal.sealapi as sealapi
from numpy.typing import NDArray

from securefl.core.errors import ConfigError
from securefl.he.gate import Residues
from securefl.he.parameters import Parameters

_HEADER: Final = struct.Struct("<HBBBBHQ")
_MAGIC: Final = 0xA15E
# parms_id, NTT flag, size, degree, primes, scale, correction factor (BGV only: 1)
_CIPHERTEXT: Final = struct.Struct("<4QBQQQdQ")
# parms_id, coefficients, scale
_PLAINTEXT: Final = struct.Struct("<4QQd")
_NONE, _ZSTD = 0, 2
_OTHER_TENSEAL: Final = "Install a version of TenSEAL that securefl requires."


class Ring:
    """One SEAL context, made from pinned parameters, with functions to encode, encrypt and multiply.

    It keeps no key: keys are arguments and results only. NTT form is SEAL's transformed form, in which a
    product is taken value by value.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        moduli = [sealapi.Modulus(p) for p in (*parameters.primes, parameters.special_prime)]
        settings: Any = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
        settings.set_poly_modulus_degree(parameters.poly_modulus_degree)
        settings.set_coeff_modulus(moduli)
        self._context: Any = sealapi.SEALContext(settings, True, sealapi.SEC_LEVEL_TYPE.TC128)
        if not self._context.parameters_set():
            raise ConfigError(
                f"Expected parameters that SEAL accepts, got {parameters.name!r}: "
                f"{self._context.parameters_error_message()}. {_OTHER_TENSEAL}"
            )
        self._data_id: list[int] = self._context.first_parms_id()
        self._key_id: list[int] = self._context.key_parms_id()
        self._encoder: Any = sealapi.CKKSEncoder(self._context)
        self._evaluator: Any = sealapi.Evaluator(self._context)
        self._self_test()

    @staticmethod
    @cache
    def of(parameters: Parameters) -> Ring:
        """The ring of these parameters. SEAL's tables and the self-test take 25 ms, once in a process."""
        return Ring(parameters)

    def generate(self) -> tuple[Residues, NDArray[np.int8]]:
        """A new key pair: public key residues (2, primes + 1, N) in NTT form, and secret coefficients (N,).

        The secret coefficients are -1, 0 or 1.
        """
        generator: Any = sealapi.KeyGenerator(self._context)
        public: Any = sealapi.PublicKey()
        generator.create_public_key(public)
        secret: Any = generator.secret_key()
        shape = (len(self.parameters.primes) + 1, self.parameters.poly_modulus_degree)
        rows = _read(secret.data().dyn_array()).reshape(shape)[:-1]
        # SEAL keeps the secret in NTT form. TenSEAL transforms only ciphertexts back, so it is put in one.
        coefficients = self.coefficients(self.ciphertext(np.stack([rows, rows]), 1.0))[0]
        minus_one = np.array(self.parameters.primes, dtype=np.uint64)[:, None] - np.uint64(1)
        negative = coefficients == minus_one
        ternary = np.where(negative, 0, coefficients).astype(np.int8) - negative.astype(np.int8)
        if (ternary[0] != ternary).any() or not (negative | (coefficients <= 1)).all():
            raise ConfigError(
                f"Expected secret keys of TenSEAL with coefficients -1, 0 and 1, got others. {_OTHER_TENSEAL}"
            )
        return _read(public.data().dyn_array()).reshape(2, *shape), ternary[0]

    def encryptor(self, public: Residues) -> Any:
        """SEAL's encryptor for public key residues that passed the gate."""
        key: Any = sealapi.PublicKey()
        _load(partial(key.load, self._context), self._written(public, self._key_id, 1.0))
        return sealapi.Encryptor(self._context, key)

    def encode(self, values: NDArray[np.float64], scale: int) -> Any:
        """Values in the first slots, zero in the others, as a plaintext."""
        # The caller sets the scale. TenSEAL's own vectors take it from bytes that a client may have written.
        plain: Any = sealapi.Plaintext()
        self._encoder.encode(values.tolist(), float(scale), plain)
        return plain

    def encoded(self, values: NDArray[np.float64], scale: int) -> Residues:
        """Residues (primes, N) of the coefficients of `encode`."""
        shape = (len(self.parameters.primes), self.parameters.poly_modulus_degree)
        if (plain := self.encode(values, scale)).is_zero():
            return np.zeros(shape, dtype=np.uint64)
        # TenSEAL shows no plaintext's values. In NTT form, ones are the polynomial 1.
        ones = self.ciphertext(np.ones((2, *shape), dtype=np.uint64), 1.0)
        return np.asarray(self.coefficients(self.weighted(ones, plain))[0])

    def transformed(self, coefficients: Residues) -> Residues:
        """The NTT form (primes, N) of a polynomial with these residues of its coefficients."""
        # Ones beside it, since SEAL refuses a ciphertext of zeros.
        cipher = self.ciphertext(np.stack([coefficients, np.ones_like(coefficients)]), 1.0, ntt=False)
        self._evaluator.transform_to_ntt_inplace(cipher)
        return np.asarray(self.residues(cipher)[0])

    def plain(self, coefficients: Residues) -> Any:
        """A plaintext from the residues (primes, N) of its coefficients, at scale 1."""
        values = np.ascontiguousarray(self.transformed(coefficients), dtype="<u8")
        fields = _PLAINTEXT.pack(*self._data_id, values.size, 1.0)
        array = struct.pack("<Q", values.size) + values.tobytes()
        plain: Any = sealapi.Plaintext()
        _load(partial(plain.load, self._context), _wrapped(fields + _wrapped(array)))
        return plain

    def encrypt(self, encryptor: Any, plain: Any) -> Residues:
        """A fresh ciphertext's residues (2, primes, N), NTT form."""
        cipher: Any = sealapi.Ciphertext()
        encryptor.encrypt(plain, cipher)
        return self.residues(cipher)

    def ciphertext(self, residues: Residues, scale: float, *, ntt: bool = True) -> Any:
        """SEAL's ciphertext from residues (2, primes, N). This module writes its header and scale."""
        cipher: Any = sealapi.Ciphertext()
        _load(partial(cipher.load, self._context), self._written(residues, self._data_id, scale, ntt))
        return cipher

    def weighted(self, cipher: Any, weights: Any) -> Any:
        """cipher * weights, in place."""
        self._evaluator.multiply_plain_inplace(cipher, weights)
        return cipher

    def multiplied(self, cipher: Any, other: Any) -> Any:
        """cipher * other, in place. The product keeps three polynomials: no relinearisation key exists."""
        self._evaluator.multiply_inplace(cipher, other)
        return cipher

    def with_plain(self, cipher: Any, plain: Any) -> Any:
        """cipher + plain, in place."""
        self._evaluator.add_plain_inplace(cipher, plain)
        return cipher

    def total(self, ciphers: Sequence[Any]) -> Any:
        """The sum of ciphertexts of one scale. It overwrites the first."""
        first, *others = ciphers
        for other in others:
            self._evaluator.add_inplace(first, other)
        return first

    def zero(self, encryptor: Any, scale: float) -> Any:
        """A fresh encryption of zero at this scale."""
        zero: Any = sealapi.Ciphertext()
        encryptor.encrypt_zero(zero)
        zero.scale = scale
        return zero

    def coefficients(self, cipher: Any) -> Residues:
        """Residues (size, primes, N) of the coefficients. `cipher` is no longer in NTT form afterwards."""
        self._evaluator.transform_from_ntt_inplace(cipher)
        return self.residues(cipher)

    def residues(self, cipher: Any) -> Residues:
        """Residues (size, primes, N), in the form the ciphertext is in."""
        shape = (cipher.size(), len(self.parameters.primes), self.parameters.poly_modulus_degree)
        return _read(cipher.dyn_array()).reshape(shape)

    def _written(self, residues: Residues, parms_id: list[int], scale: float, ntt: bool = True) -> bytes:
        size, primes, degree = residues.shape
        values = np.ascontiguousarray(residues, dtype="<u8").tobytes()
        array = struct.pack("<Q", residues.size) + values
        fields = _CIPHERTEXT.pack(*parms_id, int(ntt), size, degree, primes, scale, 1)
        return _wrapped(fields + _wrapped(array))

    def _self_test(self) -> None:
        """Write distinct residues, read them back in both ways, and check scale, form and NTT values.

        Raises ConfigError if TenSEAL returns anything else.
        """
        p = self.parameters
        count = 2 * len(p.primes) * p.poly_modulus_degree
        pattern = np.arange(1, count + 1, dtype=np.uint64).reshape(2, len(p.primes), p.poly_modulus_degree)
        try:
            cipher = self.ciphertext(pattern, 2.0**30)
            array = cipher.dyn_array()
            fine = (
                (cipher.size(), cipher.scale, cipher.is_ntt_form()) == (2, 2.0**30, True)
                and cipher.parms_id() == self._data_id
                and np.array_equal(self.residues(cipher), pattern)
                and all(array.at(i) == i + 1 for i in range(0, count, count // 16))
                # the constant 1 at scale 8 is 8 in every NTT residue
                and (_read(self.encode(np.ones(p.slots), 8).dyn_array()) == 8).all()
            )
        except (RuntimeError, ValueError, IndexError, struct.error) as error:
            raise ConfigError(
                f"Expected a TenSEAL that loads the bytes of this package, got: {error}. {_OTHER_TENSEAL}"
            ) from error
        if not fine:
            raise ConfigError(f"Expected SEAL 4's layout of ciphertexts, got another. {_OTHER_TENSEAL}")


def _wrapped(content: bytes) -> bytes:
    """The content behind SEAL's header for uncompressed content, in the version of the loaded library."""
    major, minor = _version()
    return _HEADER.pack(_MAGIC, _HEADER.size, major, minor, _NONE, 0, _HEADER.size + len(content)) + content


def _version() -> tuple[int, int]:
    header: Any = sealapi.Serialization.SEALHeader()
    return int(header.version_major), int(header.version_minor)


def _read(array: Any) -> Residues:
    """All values of a SEAL `DynArray`."""
    count = int(array.size())
    blob = _saved(array.save)
    magic, _, _, _, mode, _, size = _HEADER.unpack_from(blob)
    if magic != _MAGIC or size != len(blob):
        raise ConfigError(f"Expected SEAL's header, got an unknown one. {_OTHER_TENSEAL}")
    if mode != _ZSTD or (decompress := _zstd()) is None:
        return np.fromiter(map(array.at, range(count)), dtype=np.uint64, count=count)
    words = np.empty(count + 1, dtype=np.uint64)
    decompress(words, blob[_HEADER.size :])
    if int(words[0]) != count:
        raise ConfigError(f"Expected an array of {count} values, got {int(words[0])}. {_OTHER_TENSEAL}")
    return words[1:]


@cache
def _zstd() -> Callable[[NDArray[np.uint64], bytes], None] | None:
    """The zstd function that TenSEAL's extension module exports, or None if it exports none."""
    try:
        library = ctypes.CDLL(sys.modules[sealapi.Ciphertext.__module__].__file__ or "")
        function = library.ZSTD_decompress
    except (OSError, AttributeError, KeyError):
        return None
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]

    def decompress(target: NDArray[np.uint64], source: bytes) -> None:
        if function(target.ctypes.data, target.nbytes, source, len(source)) != target.nbytes:
            raise ConfigError(
                f"Expected SEAL's output to decompress, got bytes that do not. {_OTHER_TENSEAL}"
            )

    return decompress


def _saved(save: Callable[[str], None]) -> bytes:
    with _private_file() as path:
        try:
            save(str(path))
        except RuntimeError:
            # SEAL does not tell what the system refused, such as a byte beyond a limit on files. This does.
            path.write_bytes(path.read_bytes() + bytes(2**16))
            raise
        return path.read_bytes()


def _load(load: Callable[[str], None], content: bytes) -> None:
    with _private_file() as path:
        path.write_bytes(content)
        load(str(path))


@contextmanager
def _private_file() -> Iterator[Path]:
    """A file name for SEAL to save to or load from.

    If the system has anonymous files, the file is in memory and in no folder.
    """
    # A secret key passes through it, and must not stay in any folder.
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / "object"
        return
    descriptor = os.memfd_create("securefl")
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
