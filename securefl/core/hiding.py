"""Masking or encryption of a client's value before it is sent: the functions, and the order to do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.linear import Floats, LinearBounds
from securefl.core.wire import Header

Conceal = Callable[[NDArray[Any]], NDArray[np.generic] | bytes]
"""A function of a sum's int64 integers. It masks them, which gives an array, or encrypts them to bytes."""


@dataclass(frozen=True, repr=False)
class ConcealVector:
    """The function that encrypts the hidden part of an answer to a linear query. Raises nothing.

    It is no `Conceal`, so that no vector is concealed without bounds: the noise that hides the query's
    weights, and the room of the ring, are sized by them.

    Attributes:
        bounds: the query's bounds, as the server's call has them. The client compares them with its own
            before it is charged, and the vector with them before it is concealed.
        conceal: the function.

    >>> from securefl.linear import LinearBounds
    >>> from securefl.core.hiding import ConcealVector
    >>> bounds = LinearBounds(hidden_length=2, norm=5.0, weight_norm=1.0, row_norm=1.0, product=5.0)
    >>> ConcealVector(bounds, lambda hidden: (hidden + 5).tobytes()).bounds.norm
    5.0
    """

    bounds: LinearBounds
    conceal: Callable[[Floats], bytes]


@dataclass(frozen=True, kw_only=True, repr=False)
class ComputeAndConceal:
    """Slow work of a client in a hidden sum: compute, charge and conceal one release for each vector.

    The host answers with the releases, or with None if the client abstains. Raises nothing.

    Attributes:
        conceal: for each vector's name, in the vectors' order, the function that conceals its integers. Each
            function works once: two values under one mask would reveal their difference.

    >>> from securefl.sums import Header, ComputeAndConceal
    >>> place = Header(session=bytes(32), round=1, attempt=1, stage=0)
    >>> shift = lambda integers: integers + 5
    >>> list(ComputeAndConceal(client="client-0000", header=place, conceal={"update": shift}).conceal)
    ['update']
    """

    client: str
    header: Header
    conceal: Mapping[str, Conceal]
