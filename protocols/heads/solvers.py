"""Linear heads from noised sums, each in closed form: (C, 1 + k), bias first."""

from __future__ import annotations

from math import sqrt
from typing import Literal

import numpy as np

from securefl.algorithm.queries import Floats
from securefl.core.errors import DataError
from securefl.protocols.heads.blocks import Parts

Kind = Literal["prototypes", "ridge", "lda"]
_EDGE = 0.35
"""Share of the noise's spectral edge that is added to the spectrum. Measured with 1,280 features."""
_ENTRIES = 16.0
"""The same in deviations of one entry: with few features the noise in the class sums needs more."""
_RARE = 2.0
"""A class with fewer records than this many deviations of its count is told from noise no more."""
_NEVER = -1e6
"""The bias of a class that is never predicted."""


def prototypes(parts: Parts) -> Floats:
    """The class sums as unit vectors: the score is the cosine with a class's mean. A sum of 0 scores 0."""
    lengths = np.linalg.norm(parts.sums, axis=1, keepdims=True)
    return _head(np.divide(parts.sums, lengths, out=np.zeros_like(parts.sums), where=lengths > 0))


def ridge(parts: Parts, strength: float | None = None) -> Floats:
    """Ridge regression of one-hot classes on features: sums (moments + strength)^-1.

    strength: what is added to the spectrum, in records. By default it follows from the noise.
    """
    added = strength_of(parts) if strength is None else strength
    return _head(_against(parts.moments, added, parts.sums))


def lda(parts: Parts, strength: float | None = None) -> Floats:
    """Linear discriminants: Gaussian classes of one covariance, from counts, class sums and moments.

    A class that is too rare to be told from noise is never predicted.
    """
    there = parts.counts >= max(1.0, _RARE * parts.counts_noise)
    if not there.any():
        raise DataError("Expected a class with more records than its count has noise, got none.")
    counts = np.where(there, parts.counts, 1.0)
    means = np.where(there[:, None], parts.sums / counts[:, None], 0.0)
    within = parts.moments - (means * counts[:, None]).T @ means
    added = strength_of(parts) if strength is None else strength
    total = counts[there].sum()
    weights = total * _against(within, added, means)
    bias = np.log(counts / total) - 0.5 * np.sum(weights * means, axis=1)
    return _head(weights, np.where(there, bias, _NEVER))


def strength_of(parts: Parts) -> float:
    """How much is added to the spectrum of noised moments, in records: at least one.

    Symmetric noise of deviation s on the diagonal, and s / sqrt 2 off it, has its eigenvalues within
    s sqrt(2 k) of 0 (Wigner's semicircle). It depends on the plan alone, and on no record.
    """
    edge = sqrt(2 * len(parts.moments))
    return max(1.0, parts.moments_noise * max(_EDGE * edge, _ENTRIES))


def _against(moments: Floats, added: float, rows: Floats) -> Floats:
    """rows (moments + added)^-1, where eigenvalues that noise made negative count as 0."""
    try:
        values, vectors = np.linalg.eigh(moments)
    except np.linalg.LinAlgError as error:
        raise DataError(f"Expected moments with eigenvalues, got: {error}.") from None
    spectrum = np.maximum(values, 0.0) + added
    return np.asarray((rows @ vectors) / spectrum @ vectors.T)


def _head(weights: Floats, bias: Floats | None = None) -> Floats:
    return np.column_stack([np.zeros(len(weights)) if bias is None else bias, weights])


def solve(kind: Kind, parts: Parts, strength: float | None = None) -> Floats:
    """The head of this kind. Raises DataError where the noise outweighs the records."""
    if not all(np.isfinite(part).all() for part in (parts.counts, parts.sums, parts.moments)):
        raise DataError("Expected finite sums for a head, got some that are not.")
    match kind:
        case "prototypes":
            return prototypes(parts)
        case "ridge":
            return ridge(parts, strength)
        case "lda":
            return lda(parts, strength)
