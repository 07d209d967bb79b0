"""Masking or encryption of a client's value before it is sent: the result, and the order to do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.linear import LinearBounds
from securefl.core.release import Form
from securefl.core.wire import Header


@dataclass(frozen=True, repr=False)
class Concealed:
    """The masked or encrypted form of a client's value. The client sends it in place of the value.

    Raises nothing.

    Attributes:
        form: "masked", "encrypted", "open" or "sparse".
        numbers: an array that reveals nothing about the value unless the masks are known; empty if unused.
        sealed: encrypted bytes; empty if unused.

    >>> import numpy as np
    >>> from securefl.sums import Concealed
    >>> Concealed("masked", np.array([7, 8])).sealed
    b''
    """

    form: Form
    numbers: NDArray[np.generic] = field(default_factory=lambda: np.zeros(0))
    sealed: bytes = b""


Conceal = Callable[[NDArray[Any]], Concealed]
"""A function that masks or encrypts a flat array: the int64 integers of a sum; in `ConcealVector`, floats."""


@dataclass(frozen=True, repr=False)
class ConcealVector:
    """The function that masks or encrypts the hidden part of an answer to a linear query. Raises nothing.

    It is no `Conceal`, so that no vector is concealed without a look at the bounds: the noise that hides the
    query's weights, and the room of the ring, are sized by them.

    Attributes:
        bounds: the query's bounds, as the server's call has them. The client compares them with its own
            before it is charged, and the vector with them before it is concealed.
        conceal: the function.

    >>> import numpy as np
    >>> from securefl.linear import LinearBounds
    >>> from securefl.sums import Concealed
    >>> from securefl.core.hiding import ConcealVector
    >>> bounds = LinearBounds(hidden_length=2, norm=5.0, weight_norm=1.0, row_norm=1.0, product=5.0)
    >>> ConcealVector(bounds, lambda hidden: Concealed("masked", hidden + 5)).bounds.norm
    5.0
    """

    bounds: LinearBounds
    conceal: Conceal


@dataclass(frozen=True, kw_only=True, repr=False)
class ComputeAndConceal:
    """Slow work of a client in a hidden sum: compute, charge and conceal one release for each vector.

    The host answers with the releases, or with None if the client abstains. Raises nothing.

    Attributes:
        conceal: for each vector's name, in the vectors' order, the function that conceals its integers. Each
            function works once: two values under one mask would reveal their difference.

    >>> from securefl.sums import Concealed, Header, ComputeAndConceal
    >>> place = Header(session=bytes(32), round=1, attempt=1, stage=0)
    >>> shift = lambda integers: Concealed("masked", integers + 5)
    >>> list(ComputeAndConceal(client="client-0000", header=place, conceal={"update": shift}).conceal)
    ['update']
    """

    client: str
    header: Header
    conceal: Mapping[str, Conceal]
