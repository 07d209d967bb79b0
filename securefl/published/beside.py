"""Compares published figures with measured ones, seed by seed: as text, as CSV, and as JSON for scripts.

The result of an arm's runs is given in the measures of its table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from securefl.core.errors import ConfigError
from securefl.published.differences import differences
from securefl.published.observed_figures import OBSERVED
from securefl.published.table import Figure, Measure, Part, Row, Table
from securefl.report.significance import holm, least_p, said, signed_rank
from securefl.report.tables import write_csv
from securefl.storage.texts import read_text

CSV = "table.csv"


@dataclass(frozen=True, kw_only=True)
class Sample:
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


def sample(measure: Measure, metrics: pd.DataFrame, arm: str, target: float | None) -> Sample:
    """A measure of an arm, from the metrics of a study (`results.Results.metrics`).

    Accuracies are between 0 and 1. Times are those of the modelled devices.
    """
    own = metrics[metrics["arm"] == arm]
    taken = [_of_run(measure, run.sort_values("round"), target) for _, run in own.groupby("seed")]
    return Sample(values=tuple(value for value, _ in taken), reached=sum(reached for _, reached in taken))


def _of_run(measure: Measure, run: pd.DataFrame, target: float | None) -> tuple[float, bool]:
    """The value of one run, and whether the run reached the target (always true for accuracies)."""
    if measure is Measure.BEST:
        return float(run["accuracy"].max()), True
    if measure is Measure.LAST:
        return _last(run["accuracy"]), True
    if measure in OBSERVED:
        return _last(run[measure.value]), True
    reached = run["accuracy"] if measure.target is None else run[Measure.GLOBAL.value]
    target = target if measure.target is None else measure.target
    hits = run.loc[reached >= (nan if target is None else target), "round"]
    until = run if hits.empty else run[run["round"] <= hits.iloc[0]]
    return float(costs(measure, until).sum()), not hits.empty


def _last(values: pd.Series) -> float:
    known = values.dropna()
    return float(known.iloc[-1]) if len(known) else nan


def costs(measure: Measure, run: pd.DataFrame) -> pd.Series:
    """What each round of a run adds to a measure that counts, as its figures count it."""
    match measure:
        case Measure.SECONDS:
            return run["seconds"]
        case Measure.MINUTES:
            return run["seconds"] / 60
        case Measure.WATT_HOURS:
            return run["watt_hours"]
        case Measure.MEGABYTES:
            return run["megabytes"]
        case Measure.MEGABITS_UP:
            return run["bytes_up"] * 8 / 1e6
    return pd.Series(1.0, index=run.index)


_NAMES, _COLUMN = 24, 20
"""Widths in print: of the first two columns together, and of each measure's column."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One figure of a table: the published one, None if the paper prints none, and the measured one.

    p: of Wilcoxon's signed-rank test, seed by seed, against the part's own system; None for that system, and
    where one of the two lacks the figure under a seed (nan). adjusted: the same by Holm's method, over the
    rivals of this part and measure that have a p. lead: of the part's own system over this one, above 0 if
    that is better.
    """

    part: str
    row: Row
    measure: Measure
    published: Figure | None
    measured: Sample
    p: float | None = None
    adjusted: float | None = None
    lead: float = 0.0


def beside(table: Table, metrics: Mapping[str, pd.DataFrame]) -> tuple[Pair, ...]:
    """All figures of the table. metrics: of each part's results (`run.run_table`), by the part's name."""
    return tuple(
        pair
        for part in table.parts
        for measure in table.measures
        for pair in _compared(part, measure, metrics[part.name])
    )


def _compared(part: Part, measure: Measure, metrics: pd.DataFrame) -> list[Pair]:
    """The figures of one part and measure, with the p of each rival of the part's own system."""
    target = part.study.study.target
    samples = [sample(measure, metrics, row.arm, target) for row in part.rows]
    ours = sample(measure, metrics, part.ours, target)
    rivals = [place for place, row in enumerate(part.rows) if row.arm != part.ours]
    p = {
        place: signed_rank(samples[place].values, ours.values)
        for place in rivals
        if not isnan(samples[place].mean + ours.mean)
    }
    adjusted = dict(zip(p, holm(tuple(p.values())), strict=True))
    return [
        Pair(
            part=part.name,
            row=row,
            measure=measure,
            published=row.figures.get(measure),
            measured=own,
            p=p.get(place),
            adjusted=adjusted.get(place),
            lead=(1 if measure.higher_is_better else -1) * (ours.mean - own.mean),
        )
        for place, (row, own) in enumerate(zip(part.rows, samples, strict=True))
    ]


def claims(table: Table, pairs: Sequence[Pair]) -> list[str]:
    """For each part and measure a sentence: whom the own system leads, by how much, at which adjusted p."""
    found = []
    for part in table.parts:
        label = next((row.label for row in part.rows if row.arm == part.ours), part.ours)
        for measure in table.measures:
            own = [
                pair
                for pair in pairs
                if pair.part == part.name and pair.measure is measure and pair.row.arm != part.ours
            ]
            rivals = [(pair.row.label, pair.lead, pair.adjusted) for pair in own if pair.adjusted is not None]
            without = [pair.row.label for pair in own if isnan(pair.measured.mean)]
            if own:
                told = said(label, rivals, _unit(measure), without)
                found.append(f"{part.name}, {measure}: {told}")
    return found


def _unit(measure: Measure) -> str:
    if measure.higher_is_better or measure.is_share:
        return ""
    return " rounds" if measure.target is not None else f" {measure}"


def sentences(table: Table, pairs: Sequence[Pair]) -> list[str]:
    """The table as lines of text: for each system the published figures, the measured ones, and p."""
    lines = [f"{table.title} ({table.source})"]
    for part in table.parts:
        target = part.study.study.target
        heads = [_head(measure, target) for measure in table.measures]
        lines += ["", part.name, _line("", "", heads)]
        for row in part.rows:
            lines += _of_row([pair for pair in pairs if pair.part == part.name and pair.row is row])
    seeds = len(pairs[0].measured.values)
    lines += [
        "",
        f"Measured: mean ± standard deviation over seeds ({seeds}). p: Wilcoxon's signed-rank test against "
        f"the part's own system, both sides, seed by seed; it cannot be below {least_p(seeds):.3g}.",
        "Significant is p below 0.05, adjusted for the number of rivals of each part and measure (Holm):",
        *(f"- {claim}" for claim in claims(table, pairs)),
        "≥: some runs never reached the target, so the value is a lower bound from their whole length.",
        "Differences from the paper:",
        *(f"- {difference}" for difference in differences(table)),
    ]
    return [line.rstrip() for line in lines]


def _of_row(pairs: Sequence[Pair]) -> list[str]:
    """The lines of one system: published figures, measured figures, and p if it is compared with another."""
    lines = [
        _line(pairs[0].row.label, "published", [_published(pair) for pair in pairs]),
        _line("", "measured", [_measured(pair) for pair in pairs]),
    ]
    compared = ["–" if pair.p is None else f"{pair.p:.3g}" for pair in pairs]
    return [*lines, _line("", "p", compared)] if any(pair.p is not None for pair in pairs) else lines


def _head(measure: Measure, target: float | None) -> str:
    has_none = measure.higher_is_better or measure.is_share or measure.target is not None
    return measure.value if has_none or target is None else f"{measure} to {target:g}"


def _line(name: str, what: str, cells: Sequence[str]) -> str:
    return f"{name:<12.12} {what:<{_NAMES - 13}}" + "".join(f"{cell:<{_COLUMN}}" for cell in cells)


def _published(pair: Pair) -> str:
    figure = pair.published
    if figure is None:
        return "–"
    if figure.mean is None:
        return "N/A"
    deviation = "" if figure.deviation is None else f" ± {figure.deviation:g}"
    return f"{_padded(figure.mean, pair.measure.digits)}{deviation}"


def _padded(number: float, digits: int) -> str:
    """A number with all its decimals, and at least `digits` of them; a whole number without decimals."""
    own = "" if number == int(number) else repr(number).partition(".")[2]
    return f"{number:.{max(digits, len(own)) if own else 0}f}"


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
            "p": None if pair.p is None else round(pair.p, 5),
            "adjusted_p": None if pair.adjusted is None else round(pair.adjusted, 5),
        }
        for pair in pairs
    ]


def _known(value: float) -> float | None:
    return None if isnan(value) else round(value, 5)


def write(path: Path, command: str, table: Table, pairs: Sequence[Pair]) -> None:
    """Write the figures as CSV, below comments with the command, the table's version and all differences."""
    comments = [
        command,
        _versioned(table),
        f"{table.title} ({table.source})",
        *(f"difference: {difference}" for difference in differences(table)),
        *(f"claim: {claim}" for claim in claims(table, pairs)),
    ]
    write_csv(path, pd.DataFrame(as_rows(pairs)), comments)


def _versioned(table: Table) -> str:
    return f"version {table.version}"


def read(path: Path, table: Table) -> pd.DataFrame:
    """The figures of a file that `write` made. Raises ConfigError for another version of the table."""
    lines = read_text(path).splitlines()
    came = next((line.removeprefix("# ") for line in lines if line.startswith("# version ")), "no version")
    if came != _versioned(table):
        raise ConfigError(
            f"Expected {path} to be of this version of the table ({table.version}), got {came}: it is from "
            "other studies. Make it again with: securefl reproduce"
        )
    return pd.read_csv(path, comment="#")
