"""Checks of a caller's vectors before any charge: one for each client, of one shape, and finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefl.accounting.named_ledger import Id
from securefl.core.errors import ConfigError, DataError
from securefl.data.in_memory import array_of

Named = Mapping[Any, Any] | Sequence[Any] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Vectors:
    """Checked vectors. names: the clients' ids, in their order. rows: float64 (K, d). shape: of one."""

    names: tuple[Id, ...]
    rows: NDArray[np.float64]
    shape: tuple[int, ...]


def named(of: Named, what: str) -> dict[Id, Any]:
    """Values by client id, in their order. The clients of a list are called 0, 1 and so on.

    Raises ConfigError if the value is neither a mapping nor a list.
    """
    if isinstance(of, Mapping):
        return dict(of)
    if _is_list(of):
        return dict(enumerate(of))
    raise ConfigError(f"Expected {what} as a mapping of ids, or a list, got {type(of).__name__}.")


def _is_list(of: object) -> bool:
    if isinstance(of, np.ndarray):
        return of.ndim > 0 and not isinstance(of, np.ma.MaskedArray)
    return isinstance(of, Sequence) and not isinstance(of, str | bytes)


def vectors(of: Named) -> Vectors:
    """Check vectors. Raises DataError for several shapes, empty vectors, and entries that are not finite."""
    given = named(of, "vectors")
    if len(given) < 2:
        raise ConfigError(
            f"Expected vectors of two clients or more, got {len(given)}: a sum of one hides nothing."
        )
    rows = {name: _numbers(name, value) for name, value in given.items()}
    first, *others = rows
    shape = rows[first].shape
    for name in others:
        if rows[name].shape != shape:
            raise DataError(
                f"Expected vectors of one shape, got {shape} of {first} and {rows[name].shape} of {name}."
            )
    if not rows[first].size:
        raise DataError("Expected vectors of at least one value, got empty ones.")
    return Vectors(tuple(rows), np.stack([row.ravel() for row in rows.values()]), shape)


def _numbers(name: Id, value: ArrayLike) -> NDArray[np.float64]:
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(f"Expected numbers of {name}, got a masked array. Fill it, or leave the client out.")
    try:
        found = array_of(value, f"{name}")
    except DataError as error:
        raise DataError(f"Expected numbers of {name}, got others ({error}).") from None
    if found.dtype.kind not in "fiub":
        raise DataError(f"Expected numbers of {name}, got values of type {found.dtype}. Cast them.")
    found = found.astype(np.float64)
    if not np.isfinite(found).all():
        raise DataError(f"Expected finite numbers of {name}, got NaN or infinity. Leave it out, or fix it.")
    return found
