"""The client's part, and in mode E that of the baseline's owner: values to ciphertexts."""

from __future__ import annotations

import numpy as np

from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.he import gate
from securefl.he.keys import EncryptionKey, agreed
from securefl.he.ring import Ring
from securefl.profiles import Floats, Query
from securefl.scores.terms import ScoreTerms


class Encryptor:
    """Made once per session; holds nothing secret."""

    def __init__(self, public: EncryptionKey, terms: ScoreTerms) -> None:
        self._terms, self._ring = terms, Ring(agreed(public, terms.parameters).parameters)
        self._encryptor = self._ring.encryptor(public.residues())
        self._session = public.session

    def encrypt(self, hidden: Floats) -> bytes:
        """`Features.split(variant).hidden` of a profile clipped to the bounds, as one message.

        Raises LocalProtocolError for another length, and for values that no profile inside the bounds has.
        """
        terms = self._terms
        norm, limit = float(np.linalg.norm(hidden)), terms.bounds.feature_norm(terms.length)
        # `not <=` refuses nan too, which `>` would let pass. The billionth is room for rounding.
        if hidden.shape != (terms.hidden_length,) or not norm <= limit * (1 + 1e-9):
            raise LocalProtocolError(
                f"Expected {terms.hidden_length} finite hidden features inside the declared bounds, got "
                f"shape {hidden.shape}, or features outside them; make them with profiles.features."
            )
        return self._packed("ciphertext", hidden, terms.data_scale)

    def encrypt_baseline(self, query: Query) -> bytes:
        """Mode E: the baseline's weights and constant; the evaluator learns neither."""
        return self._packed("baseline", weight_row(query, self._terms), self._terms.parameters.weight_scale)

    def _packed(self, kind: str, values: Floats, scale: int) -> bytes:
        terms, p = self._terms, self._terms.parameters
        parts = spread(values, terms.ciphertexts, p.slots, terms.classes)
        residues = (self._ring.encrypt(self._encryptor, self._ring.encode(part, scale)) for part in parts)
        tag = gate.tag(kind, self._session, terms.digest())
        return tag + b"".join(gate.pack(each, p.primes) for each in residues)


def weight_row(query: Query, terms: ScoreTerms) -> Floats:
    """The weights of a row: hidden; in mode E also clear and constant / q, for a feature q.

    Raises ConfigError for another length, and for weights larger than declared: flooding hangs on them.
    """
    weights = query.split(terms.variant)
    if len(query.mean) != terms.length:
        raise ConfigError(f"Expected a baseline of {terms.length} elements, got {len(query.mean)}.")
    row = weights.hidden
    if terms.parameters.encrypted_baseline:
        row = np.concatenate([row, weights.clear, [query.constant / terms.length]])
    if not (norm := float(np.linalg.norm(row))) <= terms.weight_norm:
        raise ConfigError(
            f"Expected weights of norm up to {terms.weight_norm:.3g}, got {norm:.3g}: use a public "
            "anchor nearer to the baseline, or a larger Bounds.weight (scores get as much noisier)."
        )
    return row


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
