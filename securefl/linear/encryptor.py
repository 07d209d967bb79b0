"""The client's part, and in mode E that of the baseline's owner: values to ciphertexts."""

from __future__ import annotations

import numpy as np

from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.linear import Floats, LinearQuery
from securefl.he import gate
from securefl.he.keys import EncryptionKey, agreed
from securefl.he.ring import Ring
from securefl.linear.terms import LinearTerms


class Encryptor:
    """Made once per session; holds nothing secret."""

    def __init__(self, public: EncryptionKey, terms: LinearTerms) -> None:
        self._terms, self._ring = terms, Ring(agreed(public, terms.parameters).parameters)
        self._encryptor = self._ring.encryptor(public.residues())
        self._session = public.session

    def encrypt(self, hidden: Floats) -> bytes:
        """The hidden part of a client's vector, (h,) float64, as one message.

        Raises LocalProtocolError for another length, and for values outside the bounds.
        """
        terms = self._terms
        if not terms.bounds.holds_hidden(hidden):
            raise LocalProtocolError(
                f"Expected {terms.hidden_length} finite hidden features inside the declared bounds, got "
                f"shape {hidden.shape}, or features outside them: clip them first (profiles: make them with "
                "features)."
            )
        return self._packed("ciphertext", hidden, terms.data_scale)

    def encrypt_baseline(self, query: LinearQuery) -> bytes:
        """Mode E: the query's weights and offset; the evaluator learns neither."""
        return self._packed("baseline", weight_row(query, self._terms), self._terms.parameters.weight_scale)

    def _packed(self, kind: str, values: Floats, scale: int) -> bytes:
        terms, p = self._terms, self._terms.parameters
        parts = spread(values, terms.ciphertexts, p.slots, terms.classes)
        residues = (self._ring.encrypt(self._encryptor, self._ring.encode(part, scale)) for part in parts)
        tag = gate.tag(kind, self._session, terms.digest())
        return tag + b"".join(gate.pack(each, p.primes) for each in residues)


def weight_row(query: LinearQuery, terms: LinearTerms) -> Floats:
    """The weights of a row. ConfigError for a query of other bounds, or above them: flooding hangs on it."""
    if query.bounds != terms.bounds:
        own, found = (f"{b.hidden_length} + {b.clear_length} entries" for b in (terms.bounds, query.bounds))
        raise ConfigError(
            f"Expected a query inside the bounds of its key ({own}), got one of other bounds ({found}). "
            "Declare the key's bounds, or make another key."
        )
    return query.row(encrypted=terms.parameters.encrypted_baseline)


# How values stand in slots; why, says `batches` ---------------------------------------------------


def spread(values: Floats, ciphertexts: int, slots: int, classes: int) -> list[Floats]:
    """Values as the slots of each ciphertext, each value in the slots of all K classes."""
    return [np.repeat(part, classes) for part in _parts(values, ciphertexts, slots // classes)]


def of_class(values: Floats, ciphertexts: int, slots: int, classes: int, own: int) -> list[Floats]:
    """Values in the slots of class `own` of each ciphertext, zero in the others."""
    parts = []
    for part in _parts(values, ciphertexts, slots // classes):
        rows = np.zeros((len(part), classes))
        rows[:, own] = part
        parts.append(rows.ravel())
    return parts


def _parts(values: Floats, ciphertexts: int, most: int) -> list[Floats]:
    return [values[i * most : (i + 1) * most] for i in range(ciphertexts)]
