"""FedCor's Gaussian process over the loss changes of all clients, and the choice of a cohort from it.

A change of all losses in one round is N(0, Sigma) with Sigma = X^T X + ridge I. X has a column of d numbers
for each client, its embedding (FedCor, Eq. 14). As d << N, nothing of size N is inverted (Woodbury).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import Floats
from securefl.errors import DataError

RIDGE: Final = 1e-4
"""Variance of a change that no embedding explains."""
_LEAST_VARIANCE: Final = 1e-12
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, eq=False)
class Changes:
    """Loss changes of the same clients, weighted: `values` (samples, clients seen), `weights` (samples,).

    seen: the clients whose changes are known, as places in X.
    """

    seen: NDArray[np.int64]
    values: Floats
    weights: Floats


def grouped(changes: Floats, weights: Floats) -> list[Changes]:
    """Changes (samples, N) and their weights (samples,), grouped by the clients that are known (not nan).

    A sample in which no loss changed, or no client is known, tells nothing of correlations and is left out.
    """
    known = ~np.isnan(changes)
    telling = (known & (changes != 0)).any(axis=1)
    groups: list[Changes] = []
    for pattern in np.unique(known[telling], axis=0):
        same = telling & (known == pattern).all(axis=1)
        groups.append(Changes(np.flatnonzero(pattern), changes[same][:, pattern], weights[same]))
    return groups


def slope(embedding: Floats, groups: Sequence[Changes]) -> Floats:
    """The gradient of the weighted negative log likelihood of the changes (Eq. 17), (d, N).

    For one change y it is X (Sigma^-1 - a a^T) with a = Sigma^-1 y, and X Sigma^-1 = A^-1 X with the small
    A = X X^T + ridge I.
    """
    found = np.zeros_like(embedding)
    for own in groups:
        part = embedding[:, own.seen]
        scaled = np.linalg.solve(part @ part.T + RIDGE * np.eye(len(part)), part)
        # Sigma^-1 y for each row y of the values, by Woodbury
        solved = (own.values - (own.values @ part.T) @ scaled) / RIDGE
        found[:, own.seen] += own.weights.sum() * scaled - ((part @ solved.T) * own.weights) @ solved
    return found


def fit(embedding: Floats, changes: Floats, weights: Floats, *, steps: int, learning_rate: float) -> Floats:
    """The embedding after steps of Adam on the weighted negative log likelihood (FedCor, Eqs. 16 and 17).

    The steps start at the last embedding, and the optimum itself is not taken: from one or two changes it
    would forget all that earlier ones said. A sample in which no loss changed, or no client is known, is left
    out.

    Args:
        embedding: X, float64 (d, N), a column for each client.
        changes: the change of each client's loss in a round, float64 (samples, N). nan is unknown.
        weights: the weight of each sample, float64 (samples,). The paper takes theta to the power of its age.
        steps: the number of steps of Adam.
        learning_rate: of Adam.

    Returns:
        float64 (d, N). It is the given embedding without a sample, or if the steps lead to no finite one.

    Raises:
        DataError: the shapes do not fit together.

    >>> import numpy as np
    >>> from securefl.protocols.fedcor import covariance, fit
    >>> changes = np.array([[0.5, 0.5, -0.5], [-0.3, -0.3, 0.3]])  # clients 0 and 1 change together
    >>> first = np.array([[0.1, -0.1, 0.1]])
    >>> sigma = covariance(fit(first, changes, np.ones(2), steps=150, learning_rate=0.01))
    >>> bool(sigma[0, 1] > 0 > sigma[0, 2])
    True
    """
    if changes.shape[1:] != embedding.shape[1:] or weights.shape != changes.shape[:1]:
        raise DataError(
            f"Expected changes (samples, N) and weights (samples,) for an embedding (d, N), got "
            f"{changes.shape}, {weights.shape} and {embedding.shape}."
        )
    groups = grouped(changes, weights)
    found, first, second = embedding.copy(), np.zeros_like(embedding), np.zeros_like(embedding)
    for step in range(1, (steps if groups else 0) + 1):
        gradient = slope(found, groups)
        first *= _BETA1
        first += (1 - _BETA1) * gradient
        second *= _BETA2
        second += (1 - _BETA2) * gradient**2
        scale = np.sqrt(second / (1 - _BETA2**step)) + _EPSILON
        found -= learning_rate * first / (1 - _BETA1**step) / scale
    return found if np.isfinite(found).all() else embedding


def covariance(embedding: Floats) -> Floats:
    """Sigma = X^T X + 1e-4 I, the covariance of all clients' loss changes (FedCor, Eq. 14).

    Args:
        embedding: X, float64 (d, N), a column for each client.

    Returns:
        float64 (N, N), symmetric and positive definite.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.fedcor import covariance
    >>> covariance(np.array([[1.0, 2.0]]))
    array([[1.0001, 2.    ],
           [2.    , 4.0001]])
    """
    return embedding.T @ embedding + RIDGE * np.eye(embedding.shape[1])


def most_informative(
    sigma: Floats,
    shares: Floats,
    count: int,
    *,
    scale: Floats | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> list[int]:
    """Up to `count` clients, each with the largest expected decrease of the loss (FedCor, Algorithm 1).

    They are chosen one after the other. With mean 0, the posterior mean of the loss is least for the client
    of the largest scale_k * sum_i p_i Sigma_ik / sigma_k. Then Sigma is conditioned on that client's change.

    Args:
        sigma: the covariance of the clients' loss changes, float64 (N, N).
        shares: p, each client's share of all records, float64 (N,).
        count: K, the most clients that are chosen.
        scale: alpha, float64 (N,). FedCor lowers it for clients that were chosen lately. By default 1.
        allowed: the clients that may be chosen, bool (N,). By default all.

    Returns:
        Client numbers in the order of the choice, fewer than `count` if fewer are allowed.

    Raises:
        DataError: sigma is not square, or another array is not of its N clients.

    >>> import numpy as np
    >>> from securefl.protocols.fedcor import covariance, most_informative
    >>> sigma = covariance(np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.9, 0.9]]))  # two pairs
    >>> most_informative(sigma, np.full(4, 0.25), count=2)
    [0, 2]
    """
    clients = len(sigma)
    scale = np.ones(clients) if scale is None else scale
    allowed = np.ones(clients, np.bool_) if allowed is None else allowed
    shapes = {own.shape for own in (shares, scale, allowed)}
    if sigma.shape != (clients, clients) or shapes != {(clients,)}:
        raise DataError(
            f"Expected arrays (N,) beside a covariance (N, N), got {sorted(shapes)} beside {sigma.shape}."
        )
    sigma, free, chosen = sigma.copy(), allowed.copy(), list[int]()
    while len(chosen) < count and free.any():
        deviation = np.sqrt(np.maximum(np.diag(sigma), _LEAST_VARIANCE))
        gain = np.where(free, scale * (shares @ sigma) / deviation, -np.inf)
        best = int(np.argmax(gain))
        chosen.append(best)
        free[best] = False
        sigma -= np.outer(sigma[best], sigma[best]) / max(sigma[best, best], _LEAST_VARIANCE)
    return chosen


def plane(embedding: Floats) -> Floats:
    """The embedding in its two main directions, (2, N), each with its largest entry positive."""
    _, sizes, directions = np.linalg.svd(embedding, full_matrices=False)
    # an embedding of one dimension has one direction
    flat = np.zeros((2, embedding.shape[1]))
    flat[: len(sizes)] = (sizes[:, None] * directions)[:2]
    largest = flat[np.arange(2), np.abs(flat).argmax(axis=1)]
    return flat * np.where(largest < 0, -1.0, 1.0)[:, None]
