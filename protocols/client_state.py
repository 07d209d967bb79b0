"""The values that a client keeps between rounds: read from its state, and checked."""

from __future__ import annotations

import numpy as np

from securefl.algorithm import ClientState, Float32s
from securefl.errors import DataError


def kept_values(kept: ClientState, name: str, initial: Float32s) -> Float32s:
    """A copy of the values that a client keeps under this name, float32, or of `initial` if it has none.

    Raises DataError if they are damaged: of another type or shape than `initial`, or not finite.
    """
    own = kept.get(name)
    if own is None:
        return initial.copy()
    if own.dtype != np.float32 or own.shape != initial.shape or not np.isfinite(own).all():
        raise DataError(
            f"Expected the client state {name!r} to be {len(initial)} finite values of float32, got "
            f"{own.dtype} of shape {own.shape}: it is damaged, or of another model. Restore the client's "
            "file from a copy, or begin a new run."
        )
    return own.copy()
