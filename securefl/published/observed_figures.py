"""The columns of a table that come from the observer's figures of clients, beside the metrics of rounds.

A figure is one number for each client. A column has the mean over the clients that have a figure, after each
round whose models were tested. A client keeps its figure until it has another one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from securefl.published.table import Measure
from securefl.study.results import Results

OBSERVED: Final = {
    Measure.GLOBAL: "global accuracy",
    Measure.LOCAL: "local accuracy",
    Measure.PARAMETERS: "parameters",
    Measure.MACS: "macs",
}
"""The observer's figure behind each measure."""


def with_figures(results: Results) -> pd.DataFrame:
    """The metrics of a study, and a column for each measure of `OBSERVED`, named by it.

    An arm that has no such figure has the accuracy of its global model, no local accuracy (nan), and the
    whole model's shares, 1.
    """
    metrics = results.metrics.reset_index(drop=True)
    for measure, figure in OBSERVED.items():
        own = results.figures[results.figures["figure"] == figure]
        column = _without(measure, metrics)
        for (arm, seed), rounds in metrics.groupby(["arm", "seed"]):
            news = own[(own["arm"] == arm) & (own["seed"] == seed)]
            if len(news):
                column[rounds.index] = _means(news, rounds)
        metrics[measure.value] = column
    return metrics


def _without(measure: Measure, metrics: pd.DataFrame) -> pd.Series:
    """The column for arms that have no figure."""
    if measure is Measure.GLOBAL:
        return metrics["accuracy"].where(metrics["models"] == "global").astype(float)
    return pd.Series(np.nan if measure is Measure.LOCAL else 1.0, index=metrics.index)


def _means(news: pd.DataFrame, rounds: pd.DataFrame) -> pd.Series:
    """The mean over clients after each of these rounds, nan for a round without a test."""
    numbers = rounds["round"].sort_values().unique()
    newest = news.pivot_table(index="round", columns="client", values="value", aggfunc="last")
    mean = newest.reindex(numbers).ffill().mean(axis=1)
    return rounds["round"].map(mean).where(rounds["accuracy"].notna())
