"""Named arrays as bytes, without pickle."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of these arrays. An array of objects is written so that `unpacked` refuses it."""
    buffer = io.BytesIO()
    np.savez(buffer, **dict[str, Any](arrays))
    return buffer.getvalue()


def unpacked(stored: bytes) -> dict[str, NDArray[Any]]:
    """The inverse of `packed`. ValueError, KeyError, EOFError or BadZipFile for bytes that are none."""
    with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays}
