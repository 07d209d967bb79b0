"""Weighted sampling of clients without replacement (Gumbel top-k)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError


def sample_without_replacement(
    log_weights: NDArray[np.float64], count: int, rng: np.random.Generator
) -> dict[int, int]:
    """Draw `count` distinct clients one after the other, with probability proportional to the weight.

    Adding Gumbel noise to log-weights and taking the largest gives exactly that law (Kool et al. 2019). It
    works even if the weights themselves underflow. A client with a log-weight of -inf or NaN is never drawn.
    Equal log-weights draw uniformly. Fewer are drawn if fewer have a finite log-weight.

        >>> import numpy as np
        >>> from securefl.algorithm import sample_without_replacement
        >>> weights = np.log(np.array([0.0, 1.0, 3.0]) + 1e-300)
        >>> sorted(sample_without_replacement(weights, 2, np.random.default_rng(0)))
        [1, 2]

    Args:
        log_weights: (N,) float64, natural logarithms of the weights, up to a constant.
        count: K, the number of clients to draw.
        rng: the source of the N Gumbel variates.

    Returns:
        The indices of the drawn clients, each with its number of draws, which is 1.

    Raises:
        ConfigError: if count > N.
    """
    if count > len(log_weights):
        raise ConfigError(f"Expected K <= N, got K = {count} of N = {len(log_weights)}; lower the fraction.")
    # one variate for every client, so that the stream does not depend on which clients can be drawn
    keys = log_weights + rng.gumbel(size=len(log_weights))
    keys[~np.isfinite(log_weights)] = -np.inf
    best = np.argsort(-keys, kind="stable")[:count]
    return {int(k): 1 for k in best if np.isfinite(keys[k])}
