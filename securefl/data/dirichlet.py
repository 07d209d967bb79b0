"""FedCor's unbalanced Dirichlet partition: how many records of each class each client gets.

Appendix C.2 of FedCor (Tang et al., CVPR 2022): client k draws a label distribution q_k ~ Dir(alpha p), where
p is the label distribution of the whole set. The sizes x solve

    min |x|^2  subject to  Q x = d,  x >= 0,        Q = [q_1 ... q_N], d = records per class.

The paper asks for x > 0; we ask that every client ends with a record.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls

from securefl.core.errors import ConfigError

DRAWS = 100
"""Draws of Q after which a set-up counts as infeasible."""

Floats = NDArray[np.float64]


def class_counts(
    totals: NDArray[np.int64], clients: int, concentration: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Records of each class for each client, shape (clients, classes). Every record is handed out.

    totals: records per class, each positive, shape (classes,).
    Counts are Q x rounded down. The rest of a class goes to random clients, at most one record each, with
    probability proportional to the part that was rounded off. Q is drawn again if the programme has no
    solution or leaves a client without a record.

    Raises ConfigError if none of DRAWS draws will do: there are too few clients for so small a concentration.
    """
    prior = totals / totals.sum()
    for _ in range(DRAWS):
        mix = rng.dirichlet(concentration * prior, size=clients).T
        sizes = smallest_sizes(mix, totals.astype(np.float64))
        if sizes is None:
            continue
        counts = _rounded(mix * sizes, totals, rng).T
        if (counts.sum(axis=1) > 0).all():
            return counts
    raise ConfigError(
        f"Expected a Dirichlet partition in which every one of the {len(totals)} classes finds clients, got "
        f"none in {DRAWS} draws with concentration {concentration} over {clients} clients. Use more clients "
        "(never fewer than classes) or a larger concentration."
    )


def smallest_sizes(mix: Floats, totals: Floats) -> Floats | None:
    """The x of least norm with mix @ x = totals and x >= 0, or None if there is none.

    mix: label distributions as columns, shape (classes, clients). It is solved in the dual, which has only
    one
    unknown a class: x = max(0, mix^T y) where y minimises 0.5 |max(0, mix^T y)|^2 - totals . y.
    """
    _, distance = nnls(mix, totals)
    if distance > 1e-6 * totals.sum():
        return None
    scale = totals.sum() / mix.shape[1]

    def objective(dual: Floats) -> tuple[float, Floats]:
        x = np.maximum(0.0, mix.T @ dual)
        return 0.5 * float(x @ x) - float(totals @ dual) / scale, mix @ x - totals / scale

    def curvature(dual: Floats) -> Floats:
        active = mix[:, mix.T @ dual > 0]
        return np.asarray(active @ active.T)

    # at dual = 1 every client is active, with size `scale`: the balanced partition
    start = np.ones(len(totals))
    options = {"gtol": 1e-9, "maxiter": 200}
    found = minimize(objective, start, jac=True, hess=curvature, method="trust-exact", options=options)
    sizes = scale * np.maximum(0.0, mix.T @ found.x)
    # a solution on the edge of feasibility sends the dual to infinity: as good as none
    return sizes if np.abs(mix @ sizes - totals).max() < 1e-3 else None


def _rounded(wanted: Floats, totals: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Integer counts of shape (classes, clients) whose rows sum to `totals`, each within one of `wanted`."""
    # the solver is exact to less than this; without it a whole number may land below itself
    floor = np.floor(wanted + 1e-3)
    counts = floor.astype(np.int64)
    parts = np.maximum(wanted - floor, 1e-9)
    for row, left in enumerate(totals - counts.sum(axis=1)):
        if left > 0:
            chosen = rng.choice(wanted.shape[1], size=left, replace=False, p=parts[row] / parts[row].sum())
            counts[row, chosen] += 1
    return counts
