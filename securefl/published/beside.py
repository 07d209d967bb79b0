"""Compares published figures with measured ones, seed by seed: as text, as CSV, and as JSON for scripts.

The result of an arm's runs is given in the measures of its table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pandas as pd

from securefl.core.errors import ConfigError
from securefl.published.table import Figure, Measure, Row, Table, differences
from securefl.report import terminal
from securefl.report.significance import holm, least_p, said, signed_rank
from securefl.report.tables import write_csv
from securefl.storage.texts import read_text

if TYPE_CHECKING:
    from securefl.study.results import Results

CSV = "table.csv"


class Sample(NamedTuple):
    """A measure of one arm over its seeds.

    values: one for each seed, in the order of the seeds. If a run never reached the target, its value is that
    of the whole run (its rounds, time or energy), a lower bound. reached: the number of runs that reached it.
    """

    values: tuple[float, ...]
    reached: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        """The standard deviation (over n - 1), nan for one seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else nan

    @property
    def bounded(self) -> bool:
        """Whether the mean is a lower bound: it is if a run never reached the target."""
        return self.reached < len(self.values)


OBSERVED: Final = {
    Measure.GLOBAL: "global accuracy",
    Measure.LOCAL: "local accuracy",
    Measure.PARAMETERS: "parameters",
    Measure.MACS: "macs",
}
"""The observer's figure behind each measure."""


def with_figures(results: Results) -> pd.DataFrame:
    """The metrics of a study, and a column for each measure of `OBSERVED`, named by it.

    A figure is one number for each client. A column has the mean over the clients that have a figure, after
    each round whose models were tested. A client keeps its figure until it has another one. An arm that has
    no such figure has the accuracy of its global model, no local accuracy (nan), and the whole model's
    shares, 1.
    """
    metrics = results.metrics.reset_index(drop=True)
    for measure, figure in OBSERVED.items():
        own = results.figures[results.figures["figure"] == figure]
        column = pd.Series(nan if measure is Measure.LOCAL else 1.0, index=metrics.index)
        if measure is Measure.GLOBAL:
            column = metrics["accuracy"].where(metrics["models"] == "global").astype(float)
        for (arm, seed), rounds in metrics.groupby(["arm", "seed"]):
            news = own[(own["arm"] == arm) & (own["seed"] == seed)]
            if len(news):
                newest = news.pivot_table(index="round", columns="client", values="value", aggfunc="last")
                mean = newest.reindex(sorted(set(rounds["round"]))).ffill().mean(axis=1)
                column[rounds.index] = rounds["round"].map(mean).where(rounds["accuracy"].notna())
        metrics[measure.value] = column
    return metrics


def sample(measure: Measure, metrics: pd.DataFrame, arm: str, target: float | None) -> Sample:
    """A measure of an arm, from the metrics of a study (`results.Results.metrics`).

    Accuracies are between 0 and 1. Times are those of the modelled devices.
    """
    own = metrics[metrics["arm"] == arm]
    taken = [_of_run(measure, run.sort_values("round"), target) for _, run in own.groupby("seed")]
    return Sample(tuple(value for value, _ in taken), sum(reached for _, reached in taken))


def _of_run(measure: Measure, run: pd.DataFrame, target: float | None) -> tuple[float, bool]:
    """The value of one run, and whether the run reached the target (always true for accuracies)."""
    if measure is Measure.BEST:
        return float(run["accuracy"].max()), True
    if not measure.counts:
        known = run["accuracy" if measure is Measure.LAST else measure.value].dropna()
        return float(known.iloc[-1]) if len(known) else nan, True
    reached = run["accuracy"] if measure.target is None else run[Measure.GLOBAL.value]
    target = target if measure.target is None else measure.target
    hits = run.loc[reached >= (nan if target is None else target), "round"]
    until = run if hits.empty else run[run["round"] <= hits.iloc[0]]
    return float(costs(measure, until).sum()), not hits.empty


_COSTS: Final = {
    Measure.SECONDS: ("seconds", 1),
    Measure.MINUTES: ("seconds", 60),
    Measure.WATT_HOURS: ("watt_hours", 1),
    Measure.MEGABYTES: ("megabytes", 1),
    Measure.MEGABITS_UP: ("bytes_up", 125_000),
}
"""The column of metrics behind each measure that counts, and how many of its units make one."""


def costs(measure: Measure, run: pd.DataFrame) -> pd.Series:
    """What each round of a run adds to a measure that counts, as its figures count it."""
    if measure not in _COSTS:
        return pd.Series(1.0, index=run.index)
    column, units = _COSTS[measure]
    return run[column] / units


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One figure of a table: the published one, None if the paper prints none, and the measured one.

    row: its system. p: of Wilcoxon's signed-rank test, seed by
    seed, against the part's own system; nan for that system, and where one of the two lacks the figure under
    a seed. adjusted: the same by Holm's method, over the rivals of this part and measure that have a p. lead:
    of the part's own system over this one, above 0 if that is better.
    """

    part: str
    row: Row
    measure: Measure
    published: Figure | None
    measured: Sample
    p: float
    adjusted: float
    lead: float


def beside(table: Table, metrics: Mapping[str, pd.DataFrame]) -> tuple[Pair, ...]:
    """All figures of the table. metrics: of each part's results (`run.run_table`), by the part's name."""
    found: list[Pair] = []
    for part, measure in product(table.parts, table.measures):
        target = part.study.study.target
        samples = [sample(measure, metrics[part.name], row.arm, target) for row in part.rows]
        ours = sample(measure, metrics[part.name], part.ours, target)
        p = [
            nan
            if row.arm == part.ours or isnan(own.mean + ours.mean)
            else signed_rank(own.values, ours.values)
            for row, own in zip(part.rows, samples, strict=True)
        ]
        adjusted = iter(holm([one for one in p if not isnan(one)]))
        found += [
            Pair(
                part=part.name,
                row=row,
                measure=measure,
                published=row.figures.get(measure),
                measured=own,
                p=one,
                adjusted=nan if isnan(one) else next(adjusted),
                lead=(1 if measure.higher_is_better else -1) * (ours.mean - own.mean),
            )
            for row, own, one in zip(part.rows, samples, p, strict=True)
        ]
    return tuple(found)


def claims(table: Table, pairs: Sequence[Pair]) -> list[str]:
    """For each part and measure a sentence: whom the own system leads, by how much, at which adjusted p."""
    found = []
    for part, measure in product(table.parts, table.measures):
        label = next((row.label for row in part.rows if row.arm == part.ours), part.ours)
        own = [one for one in pairs if (one.part, one.measure) == (part.name, measure)]
        own = [one for one in own if one.row.arm != part.ours]
        rivals = [(one.row.label, one.lead, one.adjusted) for one in own if not isnan(one.adjusted)]
        without = [one.row.label for one in own if isnan(one.measured.mean)]
        unit = f" {measure if measure.target is None else 'rounds'}" if measure.counts else ""
        if own:
            found.append(f"{part.name}, {measure}: {said(label, rivals, unit, without)}")
    return found


def sentences(table: Table, pairs: Sequence[Pair]) -> list[str]:
    """The table as lines of text: for each system the published figures, the measured ones, and p."""
    lines = [f"{table.title} ({table.source})"]
    for part in table.parts:
        head, rows = ["", "", *(_head(one, part.study.study.target) for one in table.measures)], []
        for row in part.rows:
            own = [pair for pair in pairs if pair.part == part.name and pair.row is row]
            rows.append([row.label, "published", *map(_published, own)])
            rows.append(["", "measured", *map(_measured, own)])
            if not all(isnan(pair.p) for pair in own):
                rows.append(["", "p", *("–" if isnan(pair.p) else f"{pair.p:.3g}" for pair in own)])
        lines += ["", part.name, *terminal.table(head, rows, None).split("\n")]
    seeds = len(pairs[0].measured.values)
    return [
        *lines,
        "",
        f"Measured: mean ± standard deviation over seeds ({seeds}). p: Wilcoxon's signed-rank test against "
        f"the part's own system, both sides, seed by seed; it cannot be below {least_p(seeds):.3g}.",
        "Significant is p below 0.05, adjusted for the number of rivals of each part and measure (Holm):",
        *(f"- {claim}" for claim in claims(table, pairs)),
        "≥: some runs never reached the target, so the value is a lower bound from their whole length.",
        "Differences from the paper:",
        *(f"- {difference}" for difference in differences(table)),
    ]


def _head(measure: Measure, target: float | None) -> str:
    own_target = not measure.counts or measure.target is not None
    return measure.value if own_target or target is None else f"{measure} to {target:g}"


def _published(pair: Pair) -> str:
    if (figure := pair.published) is None or figure.mean is None:
        return "–" if figure is None else "N/A"
    # All printed decimals, and at least as many as measured ones have; a whole number has none.
    own = "" if figure.mean == int(figure.mean) else repr(figure.mean).partition(".")[2]
    mean = f"{figure.mean:.{max(pair.measure.digits, len(own)) if own else 0}f}"
    return mean if figure.deviation is None else f"{mean} ± {figure.deviation:g}"


def _measured(pair: Pair) -> str:
    digits, own = pair.measure.digits, pair.measured
    if isnan(own.mean):
        return "–"
    deviation = "" if isnan(own.deviation) else f" ± {own.deviation:.{digits}f}"
    return f"{'≥ ' if own.bounded else ''}{own.mean:.{digits}f}{deviation}"


def as_rows(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """The figures as rows for JSON or CSV. Unknown numbers are None."""
    return [
        {
            "part": pair.part,
            "system": pair.row.label,
            "measure": pair.measure.value,
            "published": pair.published and pair.published.mean,
            "published_deviation": pair.published and pair.published.deviation,
            "measured": _known(pair.measured.mean),
            "deviation": _known(pair.measured.deviation),
            "seeds": len(pair.measured.values),
            "reached": pair.measured.reached,
            "p": _known(pair.p),
            "adjusted_p": _known(pair.adjusted),
        }
        for pair in pairs
    ]


def _known(value: float) -> float | None:
    return None if isnan(value) else round(value, 5)


def write(path: Path, command: str, table: Table, pairs: Sequence[Pair]) -> None:
    """Write the figures as CSV, below comments with the command, the table's version and all differences."""
    comments = [
        command,
        f"version {table.version}",
        f"{table.title} ({table.source})",
        *(f"difference: {difference}" for difference in differences(table)),
        *(f"claim: {claim}" for claim in claims(table, pairs)),
    ]
    write_csv(path, pd.DataFrame(as_rows(pairs)), comments)


def read(path: Path, table: Table) -> pd.DataFrame:
    """The figures of a file that `write` made. Raises ConfigError for another version of the table."""
    lines = read_text(path).splitlines()
    came = next((line.removeprefix("# ") for line in lines if line.startswith("# version ")), "no version")
    if came != f"version {table.version}":
        raise ConfigError(
            f"Expected {path} to be of this version of the table ({table.version}), got {came}: it is from "
            "other studies. Make it again with: securefl reproduce"
        )
    return pd.read_csv(path, comment="#")
