"""Named arrays as bytes, without pickle: in the format of safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError

_DIGITS: Final = 6


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of these arrays, in their order. ConfigError for one of text, objects or the like."""
    from safetensors.numpy import save  # where nothing is stored, nobody waits for it

    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise ConfigError(f"Expected numbers or truth values to store as {name!r}, got {array.dtype}.")
    # The format sorts its names, and so forgets their order. Each has its place in front for that reason.
    named = {f"{place:0{_DIGITS}}{name}": array for place, (name, array) in enumerate(arrays.items())}
    return bytes(save({name: np.asarray(array, order="C") for name, array in named.items()}))


def unpacked(stored: bytes) -> dict[str, NDArray[Any]]:
    """The inverse of `packed`. SafetensorError for bytes that are none."""
    from safetensors.numpy import load

    found = load(stored)
    return {name[_DIGITS:]: np.array(found[name]) for name in sorted(found)}
