"""What opened sums tell, by linear algebra: combinations of them, and the best linear guess of one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations as choices
from typing import Any

import numpy as np
from numpy.typing import NDArray

Unknown = tuple[Any, ...]
"""A name of a value or of a mask. That of a value begins with "x"."""
Matrix = NDArray[np.float64]


def opened(inputs: Sequence[Mapping[Unknown, int]]) -> Matrix:
    """The combinations of inputs in which all masks cancel, as coefficients of the values, each of norm 1.

    Each input is given by the coefficients of the unknowns in it.
    """
    unknowns = sorted({name for row in inputs for name in row}, key=repr)
    values = [name for name in unknowns if name[0] == "x"]
    masks = [name for name in unknowns if name[0] != "x"]
    hidden, seen = (
        np.array([[float(row.get(name, 0)) for name in names] for row in inputs]).reshape(
            len(inputs), len(names)
        )
        for names in (masks, values)
    )
    left, sizes, _ = np.linalg.svd(hidden, full_matrices=True)
    found = left[:, int((sizes > 1e-9).sum()) :].T @ seen
    found[np.abs(found) < 1e-9 * np.abs(seen).max(initial=0)] = 0.0
    norms = np.linalg.norm(found, axis=1)
    rows: Matrix = found[norms > 0] / norms[norms > 0, None]
    return rows


def basis(rows: NDArray[Any]) -> Matrix:
    """Of each of several matrices (m, sums, unknowns): orthonormal rows that span its own, and rows of 0."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    _, sizes, directions = np.linalg.svd(rows / np.where(norms > 0, norms, 1), full_matrices=False)
    found: Matrix = directions * (sizes > 1e-6 * sizes[..., :1])[..., None]
    return found


def share(rows: NDArray[Any]) -> float:
    """The best linear guess of one of equal unknowns explains its diagonal entry of the projection."""
    return float((basis(rows) ** 2).sum(-2).max())


def fewest(rows: NDArray[Any]) -> int | None:
    """The fewest unknowns in any combination: that one vanishes on rank - 1 independent unknowns.

    None where no row has any.
    """
    own = basis(rows)
    own = own[own.any(1)]
    if not len(own):
        return None
    columns = own[:, np.linalg.norm(own, axis=0) > 1e-9]
    rank, best = len(own), columns.shape[1]
    pointing = columns / np.linalg.norm(columns, axis=0)
    pointing *= np.sign(pointing[np.abs(pointing).argmax(0), np.arange(best)])
    kinds = np.unique(np.round(pointing, 6), axis=1)
    for chosen in choices(range(kinds.shape[1]), rank - 1):
        _, sizes, directions = np.linalg.svd(kinds[:, chosen].T, full_matrices=True)
        if (sizes > 1e-6).sum() == rank - 1:
            best = min(best, int((np.abs(directions[-1] @ columns) > 1e-6).sum()))
    return best
