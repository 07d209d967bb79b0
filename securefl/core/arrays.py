"""Serialisation of named arrays to bytes in the safetensors format, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError

_DIGITS: Final = 6


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of these arrays, in their order.

    Raises ConfigError for an array that does not hold numbers of up to 8 bytes or truth values.
    """
    from safetensors.numpy import save  # late, so that a process that stores nothing does not load it

    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise ConfigError(f"Expected numbers or truth values to store as {name!r}, got {array.dtype}.")
    # The format sorts the names. The number in front of each name keeps the caller's order.
    named = {f"{place:0{_DIGITS}}{name}": array for place, (name, array) in enumerate(arrays.items())}
    return bytes(save({name: np.asarray(array, order="C") for name, array in named.items()}))


def unpacked(stored: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays that `packed` stored. Raises SafetensorError for any other bytes."""
    from safetensors.numpy import load

    found = load(stored)
    return {name[_DIGITS:]: np.array(found[name]) for name in sorted(found)}
