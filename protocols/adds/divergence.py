"""How far a client's labels are from uniform, and what that weighs in the search for its subnet."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.queries import Floats
from securefl.core.errors import DataError


def skew(labels: NDArray[Any], classes: int) -> float:
    """The Jensen-Shannon divergence (base 2) of these labels from uniform, from 0 to 1.

    It is divided by its largest value, that of one class alone. Raises DataError without a label, and for a
    label that is no class.
    """
    if not len(labels):
        raise DataError("Expected at least one record, got none: it abstains.")
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(f"Expected labels from 0 to {classes - 1}, got others: it abstains. Clean them.")
    share = np.bincount(labels, minlength=classes) / len(labels)
    return _divergence(share) / _divergence(np.eye(1, classes)[0])


def _divergence(share: Floats) -> float:
    uniform = np.full(len(share), 1 / len(share))
    middle = (share + uniform) / 2
    return (_relative(share, middle) + _relative(uniform, middle)) / 2


def _relative(one: Floats, other: Floats) -> float:
    there = one > 0
    return float(np.sum(one[there] * np.log2(one[there] / other[there])))
