"""Arrays of any number type as the arrays of a data set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.data.columns import Place, coded
from securefl.data.dataset import Dataset
from securefl.data.layout import Arrays, Layout


def cast(arrays: Arrays, layout: Layout, where: str, name: str, unusable: set[int] | None = None) -> Dataset:
    """Arrays as a data set: records as float32, targets by the declared classes.

    Without declared classes, targets of a float type are a regression's. Raises DataError for anything that
    is no number, not finite, or of another length. unusable: takes rows that would be an error, which then
    are marked in the data set (`Dataset.lenient`).
    """
    x, y = arrays.x, arrays.y
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(f"{where}: expected records x of shape (n, *shape), not empty, got {x.shape}.")
    if y.ndim < 1 or len(y) != len(x):
        raise DataError(f"{where}: expected a target for each of {len(x)} records, got y of shape {y.shape}.")
    if arrays.clients is not None and arrays.clients.shape != (len(x),):
        raise DataError(
            f"{where}: expected the client of each of {len(x)} records, got shape {arrays.clients.shape}."
        )
    count = layout.count
    if count is None and y.dtype.kind != "f":
        raise DataError(
            f"{where}: expected `classes` under [data] for targets of type {y.dtype}, got none: their "
            "number if they are 0, 1, ..., or a list of the labels; 0 says that it is a regression."
        )
    values = _numbers(x, where, "x", unusable)
    if count:
        found: NDArray[Any] = _labels(y, layout, where, unusable)
    else:
        targets = _numbers(y, where, "y", unusable)
        found = targets[:, None] if targets.ndim == 1 else targets
    return marked(
        Dataset(name=name, x=values, y=found, classes=count or 0, lenient=unusable is not None), unusable
    )


def marked(dataset: Dataset, unusable: set[int] | None) -> Dataset:
    """The data set, of which these rows say that they cannot be used: by nan, and the label -1."""
    if not unusable:
        return dataset
    x, y, rows = dataset.x.copy(), dataset.y.copy(), sorted(unusable)
    x[rows], y[rows] = np.nan, -1 if dataset.classes else np.nan
    return replace(dataset, x=x, y=y)


def _numbers(array: NDArray[Any], where: str, what: str, unusable: set[int] | None) -> NDArray[np.float32]:
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: expected {what} of numbers, got type {array.dtype}. Texts come in a DataFrame, with "
            "their categories under [data.columns]."
        )
    with np.errstate(over="ignore"):
        found = array.astype(np.float32)
    bad = np.argwhere(~np.isfinite(found))
    if unusable is not None:
        unusable |= set(bad[:, 0].tolist())
    elif len(bad):
        row, *place = (int(at) for at in bad[0])
        at = f" at {tuple(place)}" if place else ""
        raise DataError(
            f"{where}, row {row + 1}: expected finite numbers of 32 bits in {what}, got "
            f"{array[(row, *place)]}{at}. Mend the record, or leave it out."
        )
    return found


def _labels(y: NDArray[Any], layout: Layout, where: str, unusable: set[int] | None) -> NDArray[np.int64]:
    import pandas as pd

    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataError(f"{where}: expected one label a record, got y of shape {y.shape}.")
    return coded(pd.Series(y), layout.labels, Place(where, "y", advice=False, unusable=unusable))
