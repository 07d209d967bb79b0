"""What the runs of an arm come to, in the measures of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import pandas as pd
from scipy.stats import PermutationMethod, wilcoxon

from securefl.published.table import Measure

_ALL_SIGNS = 2**20
"""Up to twenty seeds every pattern of signs is counted, so that p is exact, with ties too."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A measure of one arm over its seeds.

    values: one a seed, in the order of the seeds. A run that never reached the target counts its whole length
    (its rounds, time or energy): a lower bound. reached: how many did reach it.
    """

    values: tuple[float, ...]
    reached: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        """The standard deviation with n - 1, nan for one seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else nan

    @property
    def bounded(self) -> bool:
        """Whether the mean is a lower bound, since some run never reached the target."""
        return self.reached < len(self.values)


def sample(measure: Measure, metrics: pd.DataFrame, arm: str, target: float | None) -> Sample:
    """A measure of an arm, from the metrics of a study (`results.Results.metrics`).

    Accuracies are shares, times those of the modelled devices.
    """
    own = metrics[metrics["arm"] == arm]
    taken = [_of_run(measure, run.sort_values("round"), target) for _, run in own.groupby("seed")]
    return Sample(values=tuple(value for value, _ in taken), reached=sum(reached for _, reached in taken))


def _of_run(measure: Measure, run: pd.DataFrame, target: float | None) -> tuple[float, bool]:
    """The value of one run, and whether it reached what the value is taken at."""
    if measure is Measure.BEST:
        return float(run["accuracy"].max()), True
    hits = run.loc[run["accuracy"] >= (nan if target is None else target), "round"]
    until = run if hits.empty else run[run["round"] <= hits.iloc[0]]
    return _spent(measure, until), not hits.empty


def _spent(measure: Measure, rounds: pd.DataFrame) -> float:
    match measure:
        case Measure.SECONDS:
            return float(rounds["seconds"].sum())
        case Measure.MINUTES:
            return float(rounds["seconds"].sum()) / 60
        case Measure.WATT_HOURS:
            return float(rounds["watt_hours"].sum())
    return float(rounds["round"].iloc[-1])


def signed_rank(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test over pairs of one seed each.

    Pairs without a difference are left out. Of fewer than two others p is 1.
    """
    differences = np.subtract(one, other)
    differences = differences[differences != 0]
    if len(differences) < 2:
        return 1.0
    return float(wilcoxon(differences, method=PermutationMethod(n_resamples=_ALL_SIGNS)).pvalue)


def least_p(seeds: int) -> float:
    """The smallest p that so many pairs can give: both patterns of equal signs, of all patterns."""
    return float(min(1.0, 2.0 ** (1 - seeds)))
