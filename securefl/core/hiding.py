"""How a client's value leaves it hidden, and the slow work in which it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.release import Form
from securefl.core.wire import Header


@dataclass(frozen=True, repr=False)
class Concealed:
    """What leaves a client in place of a value: numbers that tell nothing by themselves, or sealed bytes."""

    form: Form
    numbers: NDArray[np.generic] = field(default_factory=lambda: np.zeros(0))
    sealed: bytes = b""


Conceal = Callable[[NDArray[Any]], Concealed]
"""Hides one value: the integers of a sum, int64, or the hidden part of a number, float64; both flat."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ComputeAndConceal:
    """Slow work of a client in a hidden sum: compute, charge and hide one release per vector; None abstains.

    conceal: by the name of each vector, in their order, what hides its integers. It works once: two values
        under one mask would tell their difference.
    """

    client: str
    header: Header
    conceal: Mapping[str, Conceal]
