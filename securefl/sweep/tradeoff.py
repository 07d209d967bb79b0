"""The result tables of a sweep, and its series: an arm at fixed values of all swept keys but the axis.

The axis is the true epsilon, or another swept key with numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log10
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from securefl.core.release import PARTIES
from securefl.report.significance import student
from securefl.storage.texts import show
from securefl.study.finished import table_of_rounds
from securefl.sweep.cells import EPSILON, Cell, Sweep, in_force, setting_in_words, short_names
from securefl.sweep.run import Facts

_APART = 100_000
"""Between the numbers of series over two axes: more than a sweep has series."""
_DIGITS = 4
"""Of a true epsilon by which seeds of one cell are one point, and equal cells of two arms one setting."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """One line of a figure.

    label: the words that distinguish it from all other series. values: its values as text, by swept key
    (without epsilon), "arm" and "protocol". rows: its rows of the summary table, one for each cell and seed.
    panel: the words of its panel, one for each key of `panels`. line: the words that distinguish it within
    its panel. look: the number of its colour and mark. Series with the same line have the same look.
    axis: the swept key that is its axis, whose values are in the column "asked"; empty for the true epsilon.
    """

    number: int
    label: str
    values: Mapping[str, str]
    rows: pd.DataFrame
    panel: tuple[str, ...]
    line: str
    look: int
    axis: str = ""

    def points(self) -> list[Point]:
        """The final accuracies and their mean over the seeds, for each setting of the axis, lowest first."""
        made = []
        for asked, own in self.rows.groupby("asked", sort=True):
            known = own["final_accuracy"].dropna().astype(float).tolist()
            # Without an adversary there is no epsilon, and no finite one is claimed.
            at = own["asked" if self.axis else "epsilon_true"].fillna(inf).max()
            made.append(Point(float(str(asked)), at, student(known)[0], len(own) - len(known), known))
        return sorted(made, key=lambda point: point.at)

    @property
    def endless(self) -> bool:
        """Whether the true epsilon is infinite at every epsilon asked for with noise."""
        noised = self.rows[np.isfinite(self.rows["asked"])]
        return len(noised) > 0 and bool(np.isinf(noised["epsilon_true"]).all())

    @property
    def known(self) -> bool:
        """Whether it has an accuracy."""
        return bool(self.rows["final_accuracy"].notna().any())

    @property
    def personal(self) -> bool:
        """Whether its accuracies are measured on the clients' own models."""
        return bool((self.rows["models"] == "personal").any())


class Point(NamedTuple):
    """The seeds' values at one setting of the axis.

    asked: the setting, such as the epsilon asked for. at: its place on the axis, the largest true epsilon of
    the seeds. mean: of the known values, nan if there is none. missing: the number of seeds without a value.
    """

    asked: float
    at: float
    mean: float
    missing: int
    values: Sequence[float]


def holds(series: Sequence[Series]) -> str:
    """The unit and the delta of the epsilons of all series, in words; empty if they differ."""
    held = {(row.get("unit"), row.get("delta")) for own in series for row in own.rows.to_dict("records")}
    unit, delta = held.pop()
    return "" if held or unit is None else f" per {unit} at delta {delta:g}"


def results_table(sweep: Sweep, told: Facts) -> pd.DataFrame:
    """Every row of the metrics of every finished cell.

    Columns: cell, one per swept key (its dotted path), arm, protocol, seed, round, and those of
    `results.Results.metrics`.
    """
    tables = [with_settings(sweep, cell, table_of_rounds(own["metrics"])) for cell, own in told]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def with_settings(sweep: Sweep, cell: Cell, own: pd.DataFrame) -> pd.DataFrame:
    """The metrics of a cell, with the values of the swept keys in front."""
    arms = {arm.name: arm for arm in cell.study.arms}
    keys = {key: [_plain(in_force(cell, key, arms[name])) for name in own["arm"]] for key in sweep.keys}
    head = pd.DataFrame(
        {"cell": cell.folder, **keys, "protocol": [arms[name].protocol for name in own["arm"]]},
        index=own.index,
    )
    whole = pd.concat([head, own], axis=1)
    first = ["cell", *sweep.keys, "arm", "protocol", "seed", "round", "accuracy", "bytes_up", "bytes_down"]
    return whole[[*first, *(name for name in whole.columns if name not in first)]]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else show(value)


def summary_table(sweep: Sweep, told: Facts, results: pd.DataFrame) -> pd.DataFrame:
    """A row per cell, arm and seed. told: of each cell's facts, `infinite_reason` alone is read.

    Columns: cell, arm, seed, one per swept key, protocol, models (of the accuracies, "global" or "personal"),
    target, asked (the epsilon that the noise is calibrated for; if noise was given instead, the true one, inf
    if that is infinite), unit, adjacency, delta, adversaries, infinite_reason (why the true epsilon is
    infinite), rounds (fewer than planned if budgets ran out before), final_accuracy, best_accuracy, floor
    (the accuracy of a constant answer), first_round_at_target (of this seed alone, empty if it was not
    reached), bytes_up and bytes_down (of the whole run), epsilon against each party, and epsilon_true, the
    largest of those against the parties of `adversaries`.
    """
    if results.empty:
        return results
    by, epsilons = ["cell", "arm", "seed"], {party: f"epsilon_{party}" for party in PARTIES}
    arms = [(cell, arm.name, own["infinite_reason"]) for cell, own in told for arm in cell.study.arms]
    about = pd.DataFrame(
        [{**_of_study(cell), "arm": arm, "infinite_reason": why.get(arm, "")} for cell, arm, why in arms]
    ).set_index(["cell", "arm"])
    # A round's own `asked` is the number of clients that were asked.
    rounds = results.drop(columns=[*about], errors="ignore").join(about, on=["cell", "arm"])
    rounds = rounds.sort_values("round", kind="stable")
    runs, last = rounds.groupby(by, sort=False), rounds.drop_duplicates(by, keep="last").set_index(by)
    reached = rounds[rounds["accuracy"] >= rounds["target"].astype(float)].groupby(by)["round"].min()
    found = last.loc[runs.size().index, [*sweep.keys, "protocol", "models", *about]].assign(
        rounds=runs["round"].max(),
        final_accuracy=last["accuracy"],
        best_accuracy=runs["accuracy"].max(),
        floor=runs["floor"].mean(),
        # A nullable integer: with another type, a missing round would turn the whole column into floats.
        first_round_at_target=reached.astype("Int64"),
        **runs[["bytes_up", "bytes_down"]].sum(),
        **runs[[*epsilons.values()]].max(),
    )
    true = [found[name].where(found["adversaries"].str.contains(party)) for party, name in epsilons.items()]
    return with_levels(found.assign(epsilon_true=pd.concat(true, axis=1).max(axis=1)).reset_index())


def with_levels(summary: pd.DataFrame) -> pd.DataFrame:
    """The summary with the true epsilon as the one asked for, in rows whose noise was given instead."""
    true = summary.groupby(["cell", "arm"])["epsilon_true"].transform("max")
    level = true.map(_rounded_up)
    given = np.isinf(summary["asked"]) & np.isfinite(level)
    return summary.assign(asked=summary["asked"].where(~given, level))


def _rounded_up(epsilon: float) -> float:
    if not 0 < epsilon < inf:
        return epsilon
    scale = 10.0 ** (_DIGITS - 1 - floor(log10(epsilon)))
    return ceil(epsilon * scale) / scale


def _of_study(cell: Cell) -> dict[str, Any]:
    """What all rows of a cell have in common. asked: inf if no epsilon was asked for."""
    privacy, training = cell.study.privacy, cell.study.dpsgd
    asked = training.epsilon if privacy.epsilon is None and training is not None else privacy.epsilon
    return {
        **{"cell": cell.folder, "target": cell.study.study.target, "asked": inf if asked is None else asked},
        **{"unit": privacy.unit, "adjacency": privacy.adjacency, "delta": privacy.delta},
        "adversaries": " and ".join(privacy.adversaries),
    }


def series_of(sweep: Sweep, summary: pd.DataFrame, axis: str = "", first: int = 0) -> list[Series]:
    """The series of a sweep, in the order of its cells.

    axis: a swept key with numbers (see `axes_of`) in place of the true epsilon. first: its number.
    """
    if axis:
        summary = summary[pd.to_numeric(summary[axis], errors="coerce").notna()]
        summary = summary.assign(asked=pd.to_numeric(summary[axis]))
    kept = (axis or EPSILON, "arm.protocol")
    panels = [key for key in sweep.panels if not axis and summary[key].map(show).nunique() > 1]
    keys = _independent([key for key in sweep.keys if key not in kept], summary, panels)
    # dropna=False below: if some cells lack a key, its absence is a value like any other.
    names = ["arm", *keys, "protocol"]
    groups = [
        (dict(zip(names, map(show, values), strict=True)), rows)
        for values, rows in summary.groupby(names, sort=False, dropna=False)
    ]
    told = _telling([values for values, _ in groups], names)
    told += [key for key in panels if key not in told]
    short, cells = short_names(sweep.keys), {cell.folder: cell for cell in sweep.cells}
    both = summary["models"].nunique() > 1
    made: list[Series] = []
    looks: dict[str, int] = {}
    for number, (values, rows) in enumerate(groups, first):
        cell = cells[rows["cell"].iloc[0]]
        arm = next(arm for arm in cell.study.arms if arm.name == values["arm"])
        words = {
            name: values[name]
            if name in ("arm", "protocol")
            else setting_in_words(cell, name, arm, short[name])
            for name in told
        }
        whose = f" ({rows['models'].iloc[0]} models)" if both else ""
        line = (", ".join(words[name] for name in told if name not in panels) or arm.name) + whose
        made.append(
            Series(
                number=number,
                label=(", ".join(words.values()) or arm.name) + whose,
                values=values,
                rows=rows,
                panel=tuple(words[key] for key in panels),
                line=line,
                look=looks.setdefault(line, len(looks)),
                axis=axis,
            )
        )
    return made


def axes_of(sweep: Sweep, summary: pd.DataFrame) -> list[str]:
    """The swept keys whose values are several numbers, and that do not ask for an epsilon."""
    found = []
    for key in sweep.keys:
        values = [value for value in summary.get(key, []) if not isinstance(value, bool | np.bool_)]
        numbers = pd.to_numeric(pd.Series(values), errors="coerce")
        if np.isfinite(numbers).all() and numbers.nunique() > 1 and not key.endswith(".epsilon"):
            found.append(key)
    return found


def other_axes(sweep: Sweep, summary: pd.DataFrame) -> list[list[Series]]:
    """The series over each axis beside epsilon, if one has several points. No two have the same number."""
    axes = enumerate(axes_of(sweep, summary), 1)
    found = [series_of(sweep, summary, axis, _APART * place) for place, axis in axes]
    return [own for own in found if any(one.rows["asked"].nunique() > 1 for one in own)]


def _independent(keys: Sequence[str], summary: pd.DataFrame, panels: Sequence[str]) -> list[str]:
    """The keys without those whose values follow from the other keys and epsilon, but with all of panels."""
    # Example: a noise multiplier that is set for each epsilon makes no series of its own.
    kept = list(keys)
    # The last key first: of two keys that follow from each other, the one written first stays.
    for key in reversed([key for key in keys if key not in panels]):
        others = ["arm", "asked", *(name for name in kept if name != key)]
        if summary.groupby(others, dropna=False)[key].nunique(dropna=False).max() == 1:
            kept.remove(key)
    return kept


def _telling(values: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[str]:
    """The first names whose values together distinguish all series."""
    told: list[str] = []
    parts = 1
    for name in names:
        apart = len({tuple(own[key] for key in (*told, name)) for own in values})
        if apart > parts:
            told, parts = [*told, name], apart
    return told


def filters(sweep: Sweep, series: Sequence[Series]) -> dict[str, list[str]]:
    """The filters of the page: names with several values, by which a reader shows and hides series."""
    found = {
        name: list(dict.fromkeys(own.values[name] for own in series))
        for name in (series[0].values if series else ())
    }
    # If each arm has a protocol of its own, both filters would hide the same series.
    if len(found.get("protocol", ())) == len(found.get("arm", ())):
        found.pop("protocol", None)
    return {name: values for name, values in found.items() if len(values) > 1}
