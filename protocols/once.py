"""Values that cannot change: each client gives its own once, and later rounds ask those that were absent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import Population

Counted = NDArray[np.float64]
"""Which clients are in the sum already, (N,): 1 for those."""


def absent(counted: Counted, population: Population) -> tuple[int, ...]:
    """The clients that are not in the sum yet."""
    # Two sums of an unchanging value over different sets would give one client's value by subtraction.
    return tuple(k for k in population.everyone() if not counted[k])


def including(counted: Counted, survivors: Sequence[int]) -> Counted:
    """The same with these clients, whose values were added now."""
    found: Counted = counted + np.isin(np.arange(len(counted)), survivors)
    return found
