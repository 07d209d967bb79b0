"""Encryption of vectors: the client's part, and in mode E that of the baseline's owner."""

from __future__ import annotations

from securefl.core.errors import ConfigError
from securefl.core.linear import Floats, LinearQuery
from securefl.he import gate
from securefl.he.keys import EncryptionKey, agreed
from securefl.he.ring import Ring
from securefl.he.zeros import Zeros
from securefl.linear.terms import LinearTerms


class Encryptor:
    """Encrypts vectors under a key holder's public key, for a whole session.

        >>> import numpy as np
        >>> from securefl.he.keys import KeyPair
        >>> from securefl.he.parameters import COMPACT
        >>> from securefl.linear import Encryptor, LinearBounds, LinearTerms
        >>> bounds = LinearBounds(hidden_length=2, norm=2.0, weight_norm=2.0, row_norm=2.0, product=4.0)
        >>> terms = LinearTerms(parameters=COMPACT, bounds=bounds, scores=10)
        >>> sealed = Encryptor(KeyPair.generate(COMPACT).public, terms).encrypt(np.array([1.0, 0.5]))
        >>> len(sealed) == terms.ciphertext_bytes
        True

    A client that waits can `prepare`: about half of its next message's encryption is done then. It keeps
    prepared zeros for one message, in memory (`he.zeros`). In all it costs the same.

    Raises:
        ConfigError: the key is of other parameters than the terms.
    """

    def __init__(self, public: EncryptionKey, terms: LinearTerms) -> None:
        self._terms, self._ring = terms, Ring(agreed(public, terms.parameters).parameters)
        self._zeros = Zeros(self._ring, public, most=terms.ciphertexts)
        self._session = public.session

    def prepare(self) -> bool:
        """Encrypt one zero beforehand, for a later message. Returns whether that message needs another."""
        return self._zeros.prepare()

    def encrypt(self, hidden: Floats) -> bytes:
        """The hidden part of a client's vector as one message.

        Args:
            hidden: float64 (h,), inside the declared bounds.

        Returns:
            `terms.ciphertext_bytes` bytes.

        Raises:
            DataError: another length, or values outside the bounds.
        """
        self._terms.bounds.require_hidden(hidden)
        return self._packed("ciphertext", hidden, self._terms.data_scale)

    def encrypt_baseline(self, query: LinearQuery) -> bytes:
        """Mode E: the query's weights and offset as one message. The evaluator learns neither."""
        return self._packed("baseline", weight_row(query, self._terms), self._terms.parameters.weight_scale)

    def _packed(self, kind: str, values: Floats, scale: int) -> bytes:
        terms, p = self._terms, self._terms.parameters
        parts = spread(values, terms.ciphertexts, p.slots)
        residues = (self._zeros.encrypt(self._ring.encode(part, scale), scale) for part in parts)
        tag = gate.tag(kind, self._session, terms.digest())
        return tag + b"".join(gate.pack(each, p.primes) for each in residues)


def admitted(message: bytes, tag: bytes, terms: LinearTerms, *, sender: str) -> list[gate.Residues]:
    """The residues (2, primes, N) of each ciphertext of a message with this tag.

    Raises RemoteProtocolError(sender) for other bytes.
    """
    p, parts = terms.parameters, []
    size = gate.residues_size(2, p.primes, p.poly_modulus_degree)
    raw = gate.body(message, tag, terms.ciphertexts * size, sender=sender)
    for i in range(terms.ciphertexts):
        part = raw[i * size : (i + 1) * size]
        parts.append(gate.unpack(part, 2, p.primes, p.poly_modulus_degree, sender=sender))
        gate.not_transparent(parts[-1], sender=sender)
    return parts


def weight_row(query: LinearQuery, terms: LinearTerms) -> Floats:
    """The weights of a row. Raises ConfigError for a query of other bounds, or with weights above them.

    The flooding is sized for the bounds of the weights.
    """
    if query.bounds != terms.bounds:
        own, found = (f"{b.hidden_length} + {b.clear_length} entries" for b in (terms.bounds, query.bounds))
        raise ConfigError(
            f"Expected a query inside the bounds of its key ({own}), got one of other bounds ({found}). "
            "Declare the key's bounds, or make another key."
        )
    return query.row(encrypted=terms.parameters.encrypted_baseline)


def spread(values: Floats, ciphertexts: int, slots: int) -> list[Floats]:
    """The slots of each ciphertext."""
    return [values[i * slots : (i + 1) * slots] for i in range(ciphertexts)]
