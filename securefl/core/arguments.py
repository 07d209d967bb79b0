"""Checks of callers' arguments, when they are given: arrays of numbers, and objects of the expected kinds."""

from __future__ import annotations

from types import UnionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError

Kinds = type[Any] | UnionType


def numbers(name: str, values: Any) -> NDArray[np.float64]:
    """A float64 copy of an array of numpy, torch or pandas, or of nested lists.

    Raises DataError, with the name, for texts, truth values, complex numbers, objects, and masked entries.
    """
    try:
        if hasattr(values, "detach"):  # numpy reads no tensor with a gradient, on a device, or of bfloat16
            values = values.detach().cpu().double()
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"Expected {name} as numbers, got what numpy does not read: {error}.") from None
    masked = np.ma.is_masked(values)
    if masked or array.dtype.kind not in "iuf":
        what = "masked entries" if masked else f"{type(values).__name__} of {array.dtype}"
        raise DataError(f"Expected {name} as an array of numbers, got {what}. Fill or cast it first.")
    return array.astype(np.float64)


def require(**given: tuple[object, Kinds]) -> None:
    """Raises ConfigError, with the name, unless each value is of one of its kinds.

    given: by the argument's name its value, and the kind or the union of kinds that it may have.
    """
    for name, (value, kinds) in given.items():
        if not isinstance(value, kinds):
            each = kinds.__args__ if isinstance(kinds, UnionType) else (kinds,)
            wanted = " or ".join(one.__name__.removesuffix("Type") for one in each)
            # the mistake that is made most: the holder of a secret in place of its public keys
            public = isinstance(getattr(value, "public", None), kinds)
            hint = " Pass its `public`." if public else ""
            raise ConfigError(f"Expected `{name}` as {wanted}, got {type(value).__name__}.{hint}")
