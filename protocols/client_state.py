"""The mark of state that a client makes for the next query of its round, and its check."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import ClientContext, Float32s, Floats
from securefl.errors import DataError

FIRST: Final = "first"
"""The public array of a query with the digest of the model that clients trained for the query before."""
_NOTHING = np.zeros(0)


def digest_of(broadcast: Float32s) -> Floats:
    """SHA-256 of a broadcast's bytes, as eight whole numbers below 2^32, which a broadcast can carry."""
    found = hashlib.sha256(np.ascontiguousarray(broadcast).tobytes()).digest()
    return np.frombuffer(found, ">u4").astype(np.float64)


def made_in(context: ClientContext) -> dict[str, NDArray[Any]]:
    """The mark of state that a client makes for the next query of its round: session, round and model."""
    return {**_place(context), FIRST: digest_of(context.broadcast)}


def _place(context: ClientContext) -> dict[str, NDArray[Any]]:
    return {"session": np.frombuffer(context.session, np.uint8), "round": np.array([context.round])}


def require_made_in(context: ClientContext, first: Any) -> None:
    """Raises DataError unless the state was made in this round, from the model with the digest `first`.

    All signers of the query's sum were shown `first`. So they agree on every byte that the state follows from
    beside their own records and draws.
    """
    expected = {**_place(context), FIRST: np.asarray(first)}
    # As bytes: `np.array_equal` takes as long as the digest.
    if any(own.tobytes() != context.kept.get(name, _NOTHING).tobytes() for name, own in expected.items()):
        raise DataError(
            f"Expected state of round {context.round} from the model that this query names, got none: the "
            "client abstains. Ask first for the value that trains it, with one model for the whole cohort."
        )
