"""Selection rules of the published systems: functions of public numbers that draw a cohort."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from securefl.algorithm import Floats, sample_without_replacement


def with_replacement(
    log_weights: Floats,
    count: int,
    rng: np.random.Generator,
    admits: Callable[[Mapping[int, int]], bool] = lambda draws: True,
) -> dict[int, int]:
    """`count` independent draws with probability proportional to the weight, and how often each came.

    The first of up to 1,000 draws that clients of a hidden sum would accept (`Population.admits`): one client
    can be drawn so often that the sum would reveal its value. The accepted draw has the same distribution
    under the condition that no client is drawn too often. If all are rejected, the last one is returned: the
    server then asks for no sum, and says why.
    """
    usable = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    if not np.isfinite(usable).any():
        return {}
    # less the largest, so that at least one weight does not underflow
    chance = np.exp(usable - usable.max())
    for _ in range(1000):
        drawn = rng.choice(len(chance), size=count, p=chance / chance.sum())
        if admits(found := dict(Counter(drawn.tolist()))):
            break
    return found


def first_come(seconds: Floats, last: Floats, count: int) -> Mapping[int, int]:
    """The `count` fastest clients. Those of the last round come after all others.

    Clients of infinite time are left out.
    """
    order = np.lexsort((seconds, last > 0))
    return {int(k): 1 for k in order[np.isfinite(seconds[order])][:count]}


def by_valuation(
    valuations: Floats,
    count: int,
    *,
    excluded: float,
    temperature: float,
    explored: float,
    rng: np.random.Generator,
) -> dict[int, int]:
    """Active FL's draw (Goetz et al. 2019, Algorithm 1): alpha_1, alpha_2, alpha_3 in that order.

    The `excluded` share with the lowest valuation gets probability 0. (1 - explored) * count, rounded down,
    are drawn without replacement with probability proportional to exp(temperature * valuation). The rest are
    drawn uniformly from those not drawn yet. So one client at least explores unless `explored` is 0, as in
    the code of FedCor's authors. An unknown valuation is NaN. A client that must not be drawn has -inf.
    """
    usable = np.isfinite(valuations)
    log_weights = np.where(usable, temperature * valuations, -np.inf)
    lowest = np.argsort(np.where(usable, valuations, -np.inf), kind="stable")
    log_weights[lowest[: int(excluded * len(valuations))]] = -np.inf
    # Rounded before it is rounded down: in floats, 0.9 * 10 may be 8.99.
    exploited = min(int(round((1 - explored) * count, 9)), int(np.isfinite(log_weights).sum()))
    chosen = sample_without_replacement(log_weights, exploited, rng)
    # exploration may find clients of unknown value too, and only those of -inf stay out
    rest = np.where(np.isneginf(valuations), -np.inf, 0.0)
    rest[list(chosen)] = -np.inf
    return {**chosen, **sample_without_replacement(rest, count - len(chosen), rng)}
