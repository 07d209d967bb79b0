"""Compares published figures with measured ones, seed by seed: one table, also as text, CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from securefl.accounting.figures import plain
from securefl.core.errors import ConfigError
from securefl.published.table import Figure, Measure, Table, differences
from securefl.report import terminal
from securefl.report.significance import holm, least_p, said, signed_rank
from securefl.report.tables import write_csv
from securefl.storage.texts import read_text

if TYPE_CHECKING:
    from securefl.study.results import Results

CSV = "table.csv"
_RUN: Final = ["arm", "seed"]


# Measures of a run ----------------------------------------------------------------------------------------

_OF_CLIENTS: Final = {
    Measure.GLOBAL: "global accuracy",
    Measure.LOCAL: "local accuracy",
    Measure.PARAMETERS: "parameters",
    Measure.MACS: "macs",
}
"""The observer's figure of each client behind these measures."""
_COSTS: Final = {
    Measure.SECONDS: ("seconds", 1),
    Measure.MINUTES: ("seconds", 60),
    Measure.WATT_HOURS: ("watt_hours", 1),
    Measure.MEGABYTES: ("megabytes", 1),
    Measure.MEGABITS_UP: ("bytes_up", 125_000),
}
"""The column of metrics behind these measures, and how many of its units make one."""


def with_figures(results: Results) -> pd.DataFrame:
    """The metrics of a study with a column for each measure of clients, after each round with tested models.

    The column has the mean over the clients that have the figure. A client keeps its figure until it has
    another one. An arm without the figure has the accuracy of its global model, no local accuracy (nan), and
    the whole model's shares, 1.

    Args:
        results: of a part's runs.

    Returns:
        A row for each arm, seed and round.

    Raises:
        Nothing.
    """
    metrics = results.metrics.reset_index(drop=True)
    rounds = pd.MultiIndex.from_frame(metrics[[*_RUN, "round"]])
    accuracy = metrics["accuracy"].where(metrics["models"] == "global").astype(float)
    without: dict[Measure, Any] = {Measure.GLOBAL: accuracy, Measure.LOCAL: nan}
    for measure, figure in _OF_CLIENTS.items():
        own = results.figures[results.figures["figure"] == figure]
        changes = own.groupby([*_RUN, "round", "client"])["value"].last().unstack("client")
        newest = changes.reindex(rounds).groupby(level=_RUN).ffill()
        mean = pd.Series(newest.mean(axis=1).to_numpy(), index=metrics.index)
        metrics[measure.value] = mean.where(metrics["accuracy"].notna()).where(
            metrics["arm"].isin(own["arm"]), without.get(measure, 1.0)
        )
    return metrics


def costs(measure: Measure, metrics: pd.DataFrame) -> pd.Series:
    """What each round adds to a measure that counts."""
    if measure not in _COSTS:
        return pd.Series(1.0, index=metrics.index)
    column, units = _COSTS[measure]
    return metrics[column] / units


def by_seed(measure: Measure, metrics: pd.DataFrame, arm: str, target: float | None) -> pd.DataFrame:
    """A measure of each run of an arm.

    Args:
        measure: the measure. Accuracies are between 0 and 1. Times are those of the modelled devices.
        metrics: of the part's study, from `with_figures`.
        arm: the name of the arm.
        target: the accuracy of the study's target, if it has one.

    Returns:
        A row for each seed. `value`: the measure, nan if the run has none. `reached`: whether the run reached
        the target. If it did not, the value is that of its whole length, a lower bound.

    Raises:
        Nothing.
    """
    runs = metrics[metrics["arm"] == arm].sort_values("round").groupby("seed")
    return pd.DataFrame(
        [_of_run(measure, run, target) for _, run in runs], columns=["value", "reached"], index=[*runs.groups]
    )


def _of_run(measure: Measure, run: pd.DataFrame, target: float | None) -> tuple[float, bool]:
    if measure is Measure.BEST:
        return float(run["accuracy"].max()), True
    if not measure.counts:
        known = run["accuracy" if measure is Measure.LAST else measure.value].dropna()
        return float(known.iloc[-1]) if len(known) else nan, True
    accuracy = "accuracy"
    if measure.target is not None:
        accuracy, target = Measure.GLOBAL.value, measure.target
    hits = run.loc[run[accuracy] >= (nan if target is None else target), "round"]
    until = run if hits.empty else run[run["round"] <= hits.iloc[0]]
    return float(costs(measure, until).sum()), not hits.empty


# The table ------------------------------------------------------------------------------------------------


def compare(table: Table, metrics: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """All figures of a table, published and measured.

    Args:
        table: the published table.
        metrics: by the part's name, from `with_figures`.

    Returns:
        A row for each part, measure and system, in their orders. `published` and `published_deviation` are
        nan if the paper prints none. `measured` and `deviation` (over n - 1) are over the seeds, `seeds` is
        their number, and `reached` that of the runs which reached the target. `p` is of Wilcoxon's
        signed-rank test, seed by seed, against the part's own system: nan for that system, and where one of
        the two lacks the figure under a seed. `adjusted_p` is p by Holm's method over the rivals of the part
        and measure. `lead` is that of the part's own system over this one, above 0 if it is better.

    Raises:
        Nothing.
    """
    found = []
    for part, measure in product(table.parts, table.measures):
        target = part.study.study.target
        ours = by_seed(measure, metrics[part.name], part.ours, target)["value"]
        group = []
        for row in part.rows:
            runs = by_seed(measure, metrics[part.name], row.arm, target)
            own, figure = runs["value"], row.figures.get(measure, Figure(mean=None))
            tested = row.arm != part.ours and not (own.hasnans or ours.hasnans)
            group.append(
                {
                    "part": part.name,
                    "system": row.label,
                    "measure": measure.value,
                    "published": figure.mean,
                    "published_deviation": figure.deviation,
                    "measured": own.mean(skipna=False),
                    "deviation": own.std(skipna=False),
                    "seeds": len(runs),
                    "reached": runs["reached"].sum(),
                    "p": signed_rank(own - ours) if tested else nan,
                }
            )
        systems = pd.DataFrame(group)
        p = systems["p"].dropna()
        systems["adjusted_p"] = pd.Series([*holm([*p])], index=p.index, dtype=float)
        ahead = ours.mean(skipna=False) - systems["measured"]
        found.append(systems.assign(lead=ahead if measure.higher_is_better else -ahead))
    figures = pd.concat(found, ignore_index=True)
    return figures.astype(dict.fromkeys(("published", "published_deviation"), float))


def _printed(figures: pd.DataFrame) -> pd.DataFrame:
    """The figures as files have them. A lead follows from two rows of them."""
    own = dict.fromkeys(("measured", "deviation", "p", "adjusted_p"), 5)
    return figures.drop(columns="lead").round(own)


def rows(figures: pd.DataFrame) -> list[dict[str, Any]]:
    """The figures of `compare` for JSON. Unknown numbers are None."""
    found: list[dict[str, Any]] = plain(_printed(figures).to_dict("records"))
    return found


def claims(table: Table, figures: pd.DataFrame) -> list[str]:
    """For each part and measure a sentence: whom the own system leads, by how much, at which adjusted p."""
    found = []
    groups = figures.groupby(["part", "measure"], sort=False)
    for part, measure in product(table.parts, table.measures):
        names = {row.arm: row.label for row in part.rows}
        rivals = groups.get_group((part.name, measure.value))[[row.arm != part.ours for row in part.rows]]
        compared = rivals[rivals["adjusted_p"].notna()]
        without = rivals.loc[rivals["measured"].isna(), "system"]
        unit = f" {measure if measure.target is None else 'rounds'}" if measure.counts else ""
        if len(rivals):
            leads = [*zip(compared["system"], compared["lead"], compared["adjusted_p"], strict=True)]
            sentence = said(names.get(part.ours, part.ours), leads, unit, [*without])
            found.append(f"{part.name}, {measure}: {sentence}")
    return found


# As text --------------------------------------------------------------------------------------------------


def lines(table: Table, figures: pd.DataFrame) -> list[str]:
    """The table as lines of text: for each system the published figures, the measured ones, and p."""
    found = [f"{table.title} ({table.source})"]
    for part in table.parts:
        head, cells = ["", "", *(_head(one, part.study.study.target) for one in table.measures)], []
        for row in part.rows:
            own = figures[(figures["part"] == part.name) & (figures["system"] == row.label)]
            cells.append([row.label, "published", *(_published(one, row.figures) for one in table.measures)])
            cells.append(["", "measured", *map(_measured, table.measures, own.itertuples())])
            if own["p"].notna().any():
                cells.append(["", "p", *own["p"].map("{:.3g}".format, na_action="ignore").fillna("–")])
        found += ["", part.name, *terminal.table(head, cells, None).split("\n")]
    seeds = figures["seeds"].iloc[0]
    return [
        *found,
        "",
        f"Measured: mean ± standard deviation over seeds ({seeds}). p: Wilcoxon's signed-rank test against "
        f"the part's own system, both sides, seed by seed; it cannot be below {least_p(seeds):.3g}.",
        "Significant is p below 0.05, adjusted for the number of rivals of each part and measure (Holm):",
        *(f"- {claim}" for claim in claims(table, figures)),
        "≥: some runs never reached the target, so the value is a lower bound from their whole length.",
        "Differences from the paper:",
        *(f"- {difference}" for difference in differences(table)),
    ]


def _head(measure: Measure, target: float | None) -> str:
    own_target = not measure.counts or measure.target is not None
    return measure.value if own_target or target is None else f"{measure} to {target:g}"


def _published(measure: Measure, figures: Mapping[Measure, Figure]) -> str:
    if (figure := figures.get(measure)) is None or figure.mean is None:
        return "–" if figure is None else "N/A"
    # All printed decimals, and at least as many as measured ones have; a whole number has none.
    own = "" if figure.mean == int(figure.mean) else repr(figure.mean).partition(".")[2]
    mean = f"{figure.mean:.{max(measure.digits, len(own)) if own else 0}f}"
    return mean if figure.deviation is None else f"{mean} ± {figure.deviation:g}"


def _measured(measure: Measure, own: Any) -> str:
    if pd.isna(own.measured):
        return "–"
    deviation = "" if pd.isna(own.deviation) else f" ± {own.deviation:.{measure.digits}f}"
    return f"{'≥ ' if own.reached < own.seeds else ''}{own.measured:.{measure.digits}f}{deviation}"


# In a file ------------------------------------------------------------------------------------------------


def write(path: Path, command: str, table: Table, figures: pd.DataFrame) -> None:
    """Write the figures as CSV, below comments with the command, the table's version and all differences."""
    comments = [
        command,
        f"version {table.version}",
        f"{table.title} ({table.source})",
        *(f"difference: {difference}" for difference in differences(table)),
        *(f"claim: {claim}" for claim in claims(table, figures)),
    ]
    write_csv(path, _printed(figures), comments)


def read(path: Path, table: Table) -> pd.DataFrame:
    """The figures of a file that `write` made. Raises ConfigError for another version of the table."""
    above = read_text(path).splitlines()
    came = next((line.removeprefix("# ") for line in above if line.startswith("# version ")), "no version")
    if came != f"version {table.version}":
        raise ConfigError(
            f"Expected {path} to be of this version of the table ({table.version}), got {came}: it is from "
            "other studies. Make it again with: securefl reproduce"
        )
    return pd.read_csv(path, comment="#")
