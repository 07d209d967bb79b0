"""Flower's strategies that need no more than a weighted mean: the only ones that a sum can serve.

A sum comes back as one reply, the mean. A median or a trimmed mean of one reply is that reply: such a
strategy would silently become FedAvg. So who is not on the list is refused by name.
"""

from __future__ import annotations

from typing import Final

from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Strategy,
)
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from securefl.core.errors import ConfigError

MEANS: Final = (FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam, FedYogi)
"""Each takes a mean of its clients' models and metrics, weighted by one number of each client."""


def admitted(strategy: Strategy, *, evaluates: bool) -> FedAvg:
    """The strategy, if a sum serves it.

    Args:
        evaluates: whether clients give metrics of an evaluation.

    Raises ConfigError for another strategy, for one that reads the metrics of single clients, and for one
    that evaluates where clients do not.
    """
    # The very classes: one derived from them may aggregate otherwise, and nothing would show it.
    if type(strategy) not in MEANS or not isinstance(strategy, FedAvg):
        raise ConfigError(
            f"Expected a strategy among {', '.join(one.__name__ for one in MEANS)}, got "
            f"{type(strategy).__name__}. A hidden sum gives the mean of a cohort and no single model, so any "
            "other rule would silently become the mean. Noise and clipping are the plan's."
        )
    for how in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
        if getattr(strategy, how) is not aggregate_metricrecords:
            raise ConfigError(
                f"Expected Flower's own {how}, the weighted mean, got another: it would see the mean alone. "
                "Leave it out."
            )
    if strategy.fraction_evaluate > 0 and not evaluates:
        raise ConfigError(
            f"Expected fraction_evaluate=0.0, got {strategy.fraction_evaluate}: clients of this plan give no "
            "metrics of an evaluation. Set it, or name metrics in `Updates(evaluation=...)`."
        )
    return strategy


def needed(strategy: FedAvg) -> int:
    """How many nodes the strategy waits for, without end, before it asks any."""
    return max(strategy.min_available_nodes, strategy.min_train_nodes, strategy.min_evaluate_nodes)
