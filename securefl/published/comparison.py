"""Compares published figures with measured ones, seed by seed: one table, also as text, CSV and JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import product
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from securefl.accounting.figures import plain
from securefl.core.errors import ConfigError
from securefl.published.table import Figure, Measure, Table, differences, tasks
from securefl.report import terminal
from securefl.report.plots import evaluated
from securefl.report.significance import LEVEL, adjusted, listed, rank_biserial, student, unequal
from securefl.report.tables import write_csv
from securefl.storage.texts import read_text

if TYPE_CHECKING:
    from securefl.study.results import Results

CSV, TRACES = "table.csv", "traces.csv"
_LARGEST: Final = 1 << 24
"""Bytes. A run of 16 systems over 100 rounds and ten seeds has 68 kB of traces."""
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


def with_figures(results: Results, measures: Collection[Measure] = ()) -> pd.DataFrame:
    """The metrics of a study with a column for each measure of clients, after each round with tested models.

    The column has the mean over the clients that have the figure. A client keeps its figure until it has
    another one. An arm without the figure has the accuracy of its global model, no local accuracy (nan), and
    the whole model's shares, 1.

    Args:
        results: of a part's runs.
        measures: the table's. If the global accuracy is among them, it is the accuracy of its curves too.

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
    return metrics.assign(accuracy=metrics[Measure.GLOBAL]) if Measure.GLOBAL in measures else metrics


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


def values(table: Table, metrics: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """All measured figures of a table, run by run: all that its means, intervals and p-values follow from.

    Args:
        table: the published table.
        metrics: by the part's name, from `with_figures`.

    Returns:
        A row for each part, measure, system and seed, in their orders: `value` and `reached` as in `by_seed`.

    Raises:
        Nothing.
    """
    found = []
    for part, measure in product(table.parts, table.measures):
        for row in part.rows:
            runs = by_seed(measure, metrics[part.name], row.arm, part.study.study.target)
            here = {"part": part.name, "system": row.label, "measure": measure.value, "seed": runs.index}
            found.append(runs.assign(**here)[[*here, "value", "reached"]])
    return pd.concat(found, ignore_index=True)


def traces(table: Table, metrics: Mapping[str, pd.DataFrame], points: int = 40) -> pd.DataFrame:
    """The accuracies of all runs in at most so many rounds, the last one included, rounded to 4 decimals.

    Returns a row for each part, system and round, with a column for each seed.
    """
    found = []
    for part in table.parts:
        tested = evaluated(metrics[part.name])
        for row in part.rows:
            own = tested[tested["arm"] == row.arm].pivot(index="round", columns="seed", values="accuracy")
            kept = own.iloc[sorted({*np.linspace(0, len(own) - 1, min(points, len(own))).astype(int)})]
            kept = kept.round(4).rename_axis(columns=None).reset_index()
            kept.insert(0, "system", row.label)
            kept.insert(0, "part", part.name)
            found.append(kept)
    return pd.concat(found, ignore_index=True)


def compare(table: Table, found: pd.DataFrame) -> pd.DataFrame:
    """All figures of a table, published and measured.

    Args:
        table: the published table.
        found: the figures run by run, from `values` or a file.

    Returns:
        A row for each part, measure and system, in their orders. `published` and `published_deviation` are
        nan if the paper prints none. `measured` and `deviation` (over n - 1) are over the seeds, `seeds` is
        their number, and `reached` that of the runs which reached the target. `lead` is that of the part's
        own system over this one, seed by seed, the mean, above 0 if it is better; `low` and `high` are the
        ends of its 95 % interval (Student's t), infinite where a bound may speak against it (`_leads`);
        `effect` is the rank-biserial correlation of the leads, from -1 to 1. `level` is the number of seeds
        without a known difference (`_leads`). `p` is of Wilcoxon's signed-rank test of the leads, both sides,
        by Holm's method over the rivals of the part and measure: nan if the seeds could not make it
        significant. `needed` is the number of seeds that could, if all further ones differ; nan if none
        does. These are nan for the part's own system, and where one of the two lacks the figure under a
        seed. `own_reached` is `reached` of the part's own system.

    Raises:
        Nothing.
    """
    by_system = {key: own.set_index("seed") for key, own in found.groupby(["part", "measure", "system"])}
    figures = []
    for part, measure in product(table.parts, table.measures):
        runs = {row.arm: by_system[part.name, measure.value, row.label] for row in part.rows}
        ours, leads = runs[part.ours], dict[str, Any]()
        for arm, own in runs.items():
            if arm != part.ours and not (own["value"].hasnans or ours["value"].hasnans):
                leads[arm] = _leads(measure, ours, own)
        p, needed = adjusted({arm: ranked for arm, (_, ranked) in leads.items()})
        for row in part.rows:
            own, printed = runs[row.arm], row.figures.get(measure, Figure(mean=None))
            lead, ranked = leads.get(row.arm, (None, None))
            level = nan if ranked is None else len(ranked) - len(unequal(ranked))
            mean, half = (nan, nan) if lead is None else student(lead)
            if ranked is not None and np.isinf(ranked).any():
                half = inf
            figures.append(
                {
                    "part": part.name,
                    "system": row.label,
                    "measure": measure.value,
                    "published": printed.mean,
                    "published_deviation": printed.deviation,
                    "measured": own["value"].mean(skipna=False),
                    "deviation": own["value"].std(skipna=False),
                    "seeds": len(own),
                    "reached": own["reached"].sum(),
                    "lead": mean,
                    "low": mean - half,
                    "high": mean + half,
                    "effect": nan if ranked is None else rank_biserial(ranked),
                    "level": level,
                    "p": p.get(row.arm, nan),
                    "needed": needed + level if level < len(own) else nan,
                    "own_reached": ours["reached"].sum(),
                }
            )
    return pd.DataFrame(figures).astype(dict.fromkeys(("published", "published_deviation"), float))


def _leads(
    measure: Measure, ours: pd.DataFrame, own: pd.DataFrame
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By how much the own system is better than another one, seed by seed; and the same as it is ranked.

    A run that never reached the target has a lower bound in place of a figure. Where the bound does not
    decide which of the two is better, the lead is 0, as of equal figures. Elsewhere it is the least that it
    can be. A bound that may speak against the side that is ahead in the mean may be of any size: it is ranked
    as infinite. No test counts the other leads of 0.
    """
    own = own.loc[ours.index]
    gaps = (own["value"] - ours["value"]).to_numpy()
    if not measure.counts:
        leads = -gaps if measure.higher_is_better else gaps
        return leads, leads
    known = np.where(gaps > 0, ours["reached"], own["reached"])
    leads = np.where(known, gaps, 0.0)
    bounds = ~(ours["reached"] & own["reached"]).to_numpy(bool)
    mean = leads.mean()
    unsure = bounds & (leads != 0) & (leads * mean <= 0)
    ranked = np.where(unsure, np.copysign(inf, leads), leads)
    arrived = (ours if mean > 0 else own)["reached"].to_numpy(bool)
    either = ~known.astype(bool) & ((gaps != 0) | ~arrived) & (mean != 0)
    return leads, np.where(either, np.copysign(inf, -mean), ranked)


def rows(figures: pd.DataFrame) -> list[dict[str, Any]]:
    """The figures of `compare` for JSON. Unknown numbers are None."""
    found: list[dict[str, Any]] = plain(figures.round(5).to_dict("records"))
    return found


# In words -------------------------------------------------------------------------------------------------


def claims(table: Table, figures: pd.DataFrame) -> list[str]:
    """For each part and measure a sentence: whom the own system leads, by how much, and how sure that is."""
    found = []
    groups = figures.groupby(["part", "measure"], sort=False)
    for part, measure in product(table.parts, table.measures):
        names = {row.arm: row.label for row in part.rows}
        rivals = groups.get_group((part.name, measure.value))[[row.arm != part.ours for row in part.rows]]
        unit = f" {measure if measure.target is None else 'rounds'}" if measure.counts else ""
        if len(rivals):
            words, rows_of = dict[str, list[str]](), cast(Iterable[Any], rivals.itertuples())
            for rival in rows_of:
                # Without a figure, or without a difference, the verdict says it all.
                said = [] if pd.isna(rival.needed) else [f" ({lead_words(measure, rival, unit)})"]
                words.setdefault(verdict(rival), []).append("".join([str(rival.system), *said]))
            sentence = "; ".join(f"{way} {listed(own)}" for way, own in words.items())
            if rivals["measured"].notna().all() and rivals["lead"].isna().all():
                sentence = "no figure of its own"
            found.append(f"{part.name}, {measure}: {names.get(part.ours, part.ours)}: {sentence}.")
    return found


def verdict(rival: Any) -> str:
    """What the seeds say of the own system beside a rival: a row of `compare`."""
    if pd.isna(rival.lead):
        return "no figure of"
    if pd.isna(rival.needed):
        reached = rival.reached or rival.own_reached
        return "level under all seeds beside" if reached else "never at the target, like"
    if pd.isna(rival.p):
        return f"no p, which {rival.needed:.0f} seeds could make significant, beside"
    if rival.p >= LEVEL or rival.low <= 0 <= rival.high:
        return "not significant beside"
    return "ahead of" if rival.lead > 0 else "behind"


def number_words(measure: Measure, value: float) -> str:
    """A figure with the measure's digits. What rounds to 0 has no sign."""
    return _signed(value, measure.digits)


def _signed(value: float, digits: int) -> str:
    # With the sign of print: behind a comma, a spreadsheet would run the other one.
    return f"{value:z.{digits}f}".replace("-", "−")


def interval_words(measure: Measure, rival: Any) -> str:
    """The ends of the interval of a lead: a row of `compare`. Empty under one seed, and if it is a bound."""
    if pd.isna(rival.low) or _bound(rival):
        return ""
    return f"{number_words(measure, rival.low)} to {number_words(measure, rival.high)}"


def _bound(rival: Any) -> bool:
    """Whether a lead is the least that it can be. An infinite interval says more than that."""
    return bool(np.isfinite(rival.low)) and min(rival.reached, rival.own_reached) < rival.seeds


def lead_words(measure: Measure, rival: Any, unit: str = "") -> str:
    """The lead over a rival with its interval, the effect size, and p if there is one.

    "–" if no run of the two reached the target.
    """
    if pd.isna(rival.needed):
        reached = rival.reached or rival.own_reached
        return f"{number_words(measure, 0.0)}{unit}, level under all seeds" if reached else "–"
    lead = f"{number_words(measure, rival.lead)}{unit}"
    if _bound(rival):
        lead = f"{'≥' if rival.lead > 0 else '≤'} {lead}"
    if interval := interval_words(measure, rival):
        lead += f" [{interval}]"
    effect = f", r {_signed(rival.effect, 2)}" if pd.notna(rival.effect) else ""
    level = f", level in {rival.level:.0f} of {rival.seeds} seeds" if rival.level else ""
    p = "" if pd.isna(rival.p) else f", p {rival.p:.3f}" if rival.p >= 0.001 else ", p below 0.001"
    return f"{lead}{effect}{level}{p}"


# As text --------------------------------------------------------------------------------------------------


def lines(table: Table, figures: pd.DataFrame) -> list[str]:
    """The table as lines of text: for each system the published figures, the measured ones, and the lead."""
    found = [f"{table.title} ({table.source})"]
    if (task := tasks(table)) is not None:
        found.append(
            f"Measured is a twin, whose figures are of another task: {task[1]}; published: {task[0]}."
        )
    for part in table.parts:
        target = part.study.study.target
        if part.setting.get("study.target", target) != target:
            target = None  # One head cannot name both targets: the line above all parts does.
        head, cells = ["", "", *(_head(one, target) for one in table.measures)], []
        for row in part.rows:
            own = figures[(figures["part"] == part.name) & (figures["system"] == row.label)]
            printed = (published_words(one, row.figures) for one in table.measures)
            cells.append([row.label, "published", *printed])
            cells.append(["", "measured", *map(measured_words, table.measures, own.itertuples())])
            if own["lead"].notna().any():
                leads: Iterable[tuple[Measure, Any]] = zip(table.measures, own.itertuples(), strict=True)
                told = ("–" if pd.isna(one.lead) else lead_words(measure, one) for measure, one in leads)
                cells.append(["", "lead", *told])
        found += ["", part.name, *terminal.table(head, cells, None).split("\n")]
    return [
        *found,
        "",
        f"Measured: mean ± standard deviation over seeds ({figures['seeds'].iloc[0]}). Lead: of the part's "
        "own system, seed by seed, above 0 if it is better, with its 95 % interval (Student's t), which is "
        "not adjusted for the number of rivals. r: rank-biserial correlation, 1 if it is better under all "
        "seeds. p: Wilcoxon's signed-rank test, both sides, adjusted (Holm) for the number of rivals of each "
        "part and measure that differ under a seed.",
        f"Significant is p below {LEVEL} with an interval that leaves 0 out. Where no outcome could "
        "be significant, there is no p, but the number of seeds that could if further ones differ: "
        "securefl reproduce TABLE --seeds NUMBER.",
        *(f"- {claim}" for claim in claims(table, figures)),
        "≥ and ≤: some runs never reached the target, so the value is a bound from their whole length. A "
        "lead is then the least that it can be, and 0 under a seed whose bounds decide nothing (level). It "
        "has no interval, or an infinite one if a bound may speak against the system that is ahead.",
        "Differences from the paper:",
        *(f"- {difference}" for difference in differences(table)),
    ]


def _head(measure: Measure, target: float | None) -> str:
    own_target = not measure.counts or measure.target is not None
    return measure.value if own_target or target is None else f"{measure} to {target:g}"


def published_words(measure: Measure, figures: Mapping[Measure, Figure]) -> str:
    """The paper's figure: "–" if it prints none, "N/A" if it says so."""
    if (figure := figures.get(measure)) is None or figure.mean is None:
        return "–" if figure is None else "N/A"
    # All printed decimals, and at least as many as measured ones have; a whole number has none.
    own = "" if figure.mean == int(figure.mean) else repr(figure.mean).partition(".")[2]
    mean = f"{figure.mean:.{max(measure.digits, len(own)) if own else 0}f}"
    return mean if figure.deviation is None else f"{mean} ± {figure.deviation:g}"


def measured_words(measure: Measure, own: Any) -> str:
    """A measured mean over the seeds and its deviation, or a lower bound. own: a row of `compare`."""
    if pd.isna(own.measured):
        return "–"
    mean = f"{own.measured:.{measure.digits}f}"
    if own.reached < own.seeds:
        return f"≥ {mean} ({own.reached} of {own.seeds})"
    return mean if pd.isna(own.deviation) else f"{mean} ± {own.deviation:.{measure.digits}f}"


# In files -------------------------------------------------------------------------------------------------


def write(folder: Path, command: str, table: Table, metrics: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Write table.csv, the figures run by run below comments with all differences and claims, and traces.csv.

    Returns the figures of `compare`. The comments begin with the command and the table's version.
    """
    found = values(table, metrics)
    figures = compare(table, found)
    write_csv(folder / CSV, found.round(9), head(command, table, figures))
    write_csv(folder / TRACES, traces(table, metrics), head(command, table, None))
    return figures


def head(command: str, table: Table, figures: pd.DataFrame | None) -> list[str]:
    """The comments above the values of a table, with its differences and claims, and above its traces."""
    about = [command, f"version {table.version}", f"{table.title} ({table.source})"]
    if figures is None:
        return about
    return [
        *about,
        *(f"difference: {difference}" for difference in differences(table)),
        *(f"claim: {claim}" for claim in claims(table, figures)),
    ]


def read(path: Path, table: Table) -> pd.DataFrame:
    """The rows of a file that `write` made. Raises ConfigError for another version of the table."""
    above = read_text(path, _LARGEST).splitlines()
    came = next((line.removeprefix("# ") for line in above if line.startswith("# version ")), "no version")
    if came != f"version {table.version}":
        raise ConfigError(
            f"Expected {path} to be of this version of the table ({table.version}), got {came}: it is from "
            "other studies. Make it again with: securefl reproduce"
        )
    return pd.read_csv(path, comment="#")
