"""The Gaussian process over the loss changes of all clients, and the choice of a cohort from it.

A change of all losses in one round is N(0, Sigma) with Sigma = X^T X + ridge I. X has a column of d numbers
for each client, its embedding (FedCor, Eq. 14). As d << N, nothing of size N is inverted (Woodbury).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.queries import Floats

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
    """Changes (samples, N) and their weights (samples,), by who is known in them; nan is unknown.

    A sample in which nothing changed, or nobody is known, says nothing of correlations and is left out.
    """
    known = ~np.isnan(changes)
    telling = (known & (changes != 0)).any(axis=1)
    groups: list[Changes] = []
    for pattern in np.unique(known[telling], axis=0):
        same = telling & (known == pattern).all(axis=1)
        groups.append(Changes(np.flatnonzero(pattern), changes[same][:, pattern], weights[same]))
    return groups


def surprise(embedding: Floats, groups: Sequence[Changes]) -> float:
    """The weighted negative log likelihood of the changes (Eq. 17), without its constant."""
    total = 0.0
    for own in groups:
        part = embedding[:, own.seen]
        inner = _inner(part)
        solved = _precise(part, _solved(inner, part), own.values)
        logs = (len(own.seen) - len(part)) * np.log(RIDGE) + np.linalg.slogdet(inner)[1]
        total += 0.5 * float(own.weights @ ((own.values * solved).sum(axis=1) + logs))
    return total


def slope(embedding: Floats, groups: Sequence[Changes]) -> Floats:
    """The gradient of `surprise`, (d, N).

    For one change y it is X (Sigma^-1 - a a^T) with a = Sigma^-1 y, and X Sigma^-1 = A^-1 X with the small
    A = X X^T + ridge I.
    """
    found = np.zeros_like(embedding)
    for own in groups:
        part = embedding[:, own.seen]
        scaled = _solved(_inner(part), part)
        solved = _precise(part, scaled, own.values)
        found[:, own.seen] += own.weights.sum() * scaled - ((part @ solved.T) * own.weights) @ solved
    return found


def fitted(embedding: Floats, groups: Sequence[Changes], steps: int, learning_rate: float) -> Floats:
    """The embedding (d, N) after so many steps of Adam from the last one, on the negative log likelihood.

    The maximum itself is not taken: from one or two changes it would forget all that earlier ones said.
    Without changes, or if they lead to no finite embedding, it stays.
    """
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
    """Sigma, (N, N)."""
    return embedding.T @ embedding + RIDGE * np.eye(embedding.shape[1])


def most_informative(
    sigma: Floats, shares: Floats, scale: Floats, allowed: NDArray[np.bool_], count: int
) -> list[int]:
    """Algorithm 1: up to `count` clients, one after the other, each with the largest expected loss decrease.

    With mean 0, the posterior mean of the loss is least for the client of the largest
    scale_k * sum_i p_i Sigma_ik / sigma_k. Then Sigma is that given the client's change.

    shares: p, (N,). scale: alpha, (N,). allowed: who may be chosen, (N,).
    """
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


def _inner(part: Floats) -> Floats:
    inner: Floats = part @ part.T
    inner.flat[:: len(part) + 1] += RIDGE
    return inner


def _precise(part: Floats, scaled: Floats, values: Floats) -> Floats:
    """Sigma^-1 y for each row y of `values`, given A^-1 X."""
    rest = (values @ part.T) @ scaled
    np.subtract(values, rest, out=rest)
    rest /= RIDGE
    return np.asarray(rest, dtype=np.float64)


def _solved(inner: Floats, part: Floats) -> Floats:
    return np.asarray(np.linalg.solve(inner, part), dtype=np.float64)
