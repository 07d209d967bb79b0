"""Linear heads from noised sums, each in closed form: (C, 1 + k), bias first."""

from __future__ import annotations

from math import sqrt
from typing import Literal

import numpy as np

from securefl.algorithm import Floats
from securefl.errors import DataError
from securefl.protocols.heads.blocks import Parts

Kind = Literal["prototypes", "ridge", "lda"]
_EDGE = 0.35
"""The ridge as a share of the noise's spectral edge. Measured with 1,280 features."""
_ENTRIES = 16.0
"""The least ridge in deviations of one entry: with few features the noise in class sums needs more."""
_RARE = 2.0
"""A class is too rare if its count is below this many standard deviations of the count's noise."""
_NEVER = -1e6
"""The bias of a class that is never predicted."""


def prototypes(parts: Parts) -> Floats:
    """The class sums as unit vectors: the score is the cosine with a class's mean. A sum of 0 scores 0.

    Source: class means (Snell, Swersky and Zemel 2017, Eq. 1), compared by cosine.

    Args:
        parts: sums (C, k). Counts and moments are not read.

    Returns:
        The head, float64 (C, 1 + k), bias first. The biases are 0.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.heads import Parts, prototypes
    >>> prototypes(Parts(counts=np.zeros(0), sums=np.array([[3.0, 4.0]]), moments=np.zeros((0, 0))))
    array([[0. , 0.6, 0.8]])
    """
    lengths = np.linalg.norm(parts.sums, axis=1, keepdims=True)
    return _head(np.divide(parts.sums, lengths, out=np.zeros_like(parts.sums), where=lengths > 0))


def ridge(parts: Parts, strength: float | None = None) -> Floats:
    """Ridge regression of one-hot classes on features: sums (moments + strength)^-1.

    Source: Hoerl and Kennard 1970, Eq. 2.1. Eigenvalues that noise made negative count as 0.

    Args:
        parts: sums (C, k) and moments (k, k). Counts are not read.
        strength: what is added to the spectrum, in records, above 0. By default it follows from the noise.

    Returns:
        The head, float64 (C, 1 + k), bias first. The biases are 0.

    Raises:
        DataError: the moments have no eigenvalues.

    >>> import numpy as np
    >>> from securefl.protocols.heads import Parts, ridge
    >>> parts = Parts(counts=np.zeros(0), sums=np.array([[3.0, 0.0]]), moments=np.diag([5.0, 0.0]))
    >>> ridge(parts, strength=1.0)
    array([[0. , 0.5, 0. ]])
    """
    added = strength_of(parts) if strength is None else strength
    return _head(_against(parts.moments, added, parts.sums))


def lda(parts: Parts, strength: float | None = None) -> Floats:
    """Linear discriminants: Gaussian classes of one covariance, from counts, class sums and moments.

    A class that is too rare to be told from noise is never predicted. Source: Hastie, Tibshirani and Friedman
    2009, Eq. 4.10, with a ridge on the covariance.

    Args:
        parts: counts (C,), sums (C, k) and moments (k, k).
        strength: what is added to the spectrum, in records, above 0. By default it follows from the noise.

    Returns:
        The head, float64 (C, 1 + k), bias first.

    Raises:
        DataError: no class has more records than its count has noise, or the moments have no eigenvalues.

    >>> import numpy as np
    >>> from securefl.protocols.heads import Parts, lda
    >>> phi, member = np.array([[1.0], [-1.0]]), np.eye(2)
    >>> lda(Parts(counts=member.sum(0), sums=member.T @ phi, moments=phi.T @ phi)).round(2)
    array([[-1.69,  2.  ],
           [-1.69, -2.  ]])
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
    """The ridge that is added to the spectrum of noised moments, in records: at least 1.

    Symmetric noise of deviation s on the diagonal, and s / sqrt 2 off it, has its eigenvalues within
    s sqrt(2 k) of 0 (Wigner's semicircle). The ridge depends on the plan alone, and on no record.
    """
    edge = sqrt(2 * len(parts.moments))
    return max(1.0, parts.moments_noise * max(_EDGE * edge, _ENTRIES))


def _against(moments: Floats, added: float, rows: Floats) -> Floats:
    """rows (moments + added)^-1. Eigenvalues that noise made negative count as 0."""
    try:
        values, vectors = np.linalg.eigh(moments)
    except np.linalg.LinAlgError as error:
        raise DataError(f"Expected moments with eigenvalues, got: {error}.") from None
    spectrum = np.maximum(values, 0.0) + added
    return np.asarray((rows @ vectors) / spectrum @ vectors.T)


def _head(weights: Floats, bias: Floats | None = None) -> Floats:
    return np.column_stack([np.zeros(len(weights)) if bias is None else bias, weights])


def solve(kind: Kind, parts: Parts, strength: float | None = None) -> Floats:
    """The linear head of this kind, from noised sums.

    Args:
        kind: "prototypes", "ridge" or "lda".
        parts: the sums that this kind reads.
        strength: as in `ridge` and `lda`. Prototypes do not read it.

    Returns:
        The head, float64 (C, 1 + k), bias first.

    Raises:
        DataError: a sum is not finite, or the noise outweighs the records.

    >>> import numpy as np
    >>> from securefl.protocols.heads import Parts, solve
    >>> solve("prototypes", Parts(counts=np.zeros(0), sums=np.array([[3.0, 4.0]]), moments=np.zeros((0, 0))))
    array([[0. , 0.6, 0.8]])
    """
    if not all(np.isfinite(part).all() for part in (parts.counts, parts.sums, parts.moments)):
        raise DataError("Expected finite sums for a head, got some that are not.")
    match kind:
        case "prototypes":
            return prototypes(parts)
        case "ridge":
            return ridge(parts, strength)
        case "lda":
            return lda(parts, strength)
