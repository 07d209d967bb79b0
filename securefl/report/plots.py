"""Figures of accuracy, bytes and time, from tidy data frames with one row per observation.

`lines` draws all lines of means over seeds, also those of sweeps and of published tables. All figures are
built on matplotlib's object interface and touch no global state (see `style`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from securefl.report import style
from securefl.report.significance import student
from securefl.report.style import (
    FEW_SEEDS,
    Look,
    arms_of,
    checked,
    curve,
    far_apart,
    legend,
    limit,
    panels_of,
    plain_logarithmic,
    whole_numbers,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARE = "accuracy (share, 0 to 1)"
_WHOSE = {"global": "one global model", "personal": "personal models"}
FLOOR = "one constant answer"
"""The legend of the accuracy that a model has if it has learnt nothing from its inputs."""
_COSTS = ("bytes_up", "bytes_down", "megabytes", "seconds", "watt_hours", "wall_seconds")


def lines(
    axes: Axes,
    data: pd.DataFrame,
    looks: Mapping[str, Look],
    *,
    x: str = "round",
    y: str = "accuracy",
    least: float = -inf,
    most: float = inf,
    joined: bool = True,
    band: bool = True,
) -> dict[str, tuple[list[Any], pd.Series[float]]]:
    """Draw a line for each arm: the means over its seeds at each round, and how far the seeds lie apart.

    Fewer than five seeds are drawn as points, more as the 95 % interval of the mean (Student's t).

    Args:
        axes: where it is drawn.
        data: columns arm, round, x, y and, if there are several, seed. A round is one point of a line.
        looks: by arm.
        x, y: the columns. The place of a point is the mean of x over the seeds.
        least, most: the ends of y. Intervals are cut there.
        joined, band: as for `curve`.

    Returns:
        For each arm what was drawn, the line first, and the means of y by round.
    """
    drawn, known = {}, data.dropna(subset=[y])
    seeded = known if "seed" in known.columns else known.assign(seed=0)
    for place, (arm, own) in enumerate(seeded.groupby("arm", sort=False)):
        # A seed whose clients' budgets ended early has no values in later rounds.
        seeds = own.pivot_table(index="seed", columns="round", values=y)
        mean, half = seeds.mean(), seeds.apply(lambda values: student(values.dropna())[1])
        many = seeds.count() >= FEW_SEEDS
        few = ~many & (seeds.count() > 1)
        artists = curve(
            axes,
            own.groupby("round")[x].mean(),
            mean,
            looks[str(arm)],
            label=str(arm),
            low=(mean - half).clip(lower=least).where(many),
            high=(mean + half).clip(upper=most),
            seeds=np.where(few, seeds, np.nan) if few.any() else (),
            place=place,
            joined=joined,
            band=band,
        )
        drawn[str(arm)] = artists, mean
    return drawn


def accuracy(
    metrics: pd.DataFrame,
    *,
    target: float | None = None,
    looks: Mapping[str, Look] | None = None,
    label: str = SHARE,
    least: float = 0.0,
) -> Figure:
    """Accuracy over rounds, one line per arm (see `lines`).

    metrics: columns arm, round, accuracy and, where there are several, seed. A round of an arm is left out
    unless every seed that played it has an accuracy. least: the least value of an accuracy; the largest is 1.
    If there is a column models, arms of "global" and of "personal" models have a panel each: they do not
    compare. target: drawn as a line; the round at which each arm's (mean) curve first reaches it is marked,
    and named in the legend. label: of the axis.
    If there is a column floor, the accuracy of a constant answer is drawn as a line in each panel.
    Raises DataError for missing columns or an empty frame.
    """
    # Dropped before arms are listed: a line through nan would have gaps, and an arm without values no line.
    data = evaluated(checked(metrics, ("arm", "round", "accuracy")))
    looks = looks or style.looks(arms_of(data))
    parts = _by_models(data)
    figure, panels = panels_of(max(1, len(parts)), height=3.2)
    for axes, (models, part) in zip(panels, parts.items(), strict=False):
        for arm, ((line, *_), mean) in lines(axes, part, looks, least=least, most=1.0).items():
            if target is not None:
                _mark_target(axes, arm, line, mean.index[mean >= target], mean, looks[arm])
        words = "\n".join(filter(None, (_WHOSE.get(models), seeds_words(part))))
        axes.set_title(words, fontsize=9.0, loc="left")
        draw_floor(axes, part)
    for axes in panels:
        axes.set_xlabel("round")
        whole_numbers(axes.xaxis)
        limit(axes, target, "target")
        axes.set_ylabel(label)
    legend(figure)
    return figure


def _mark_target(axes: Axes, arm: str, line: Any, hits: Any, mean: pd.Series[float], look: Look) -> None:
    """Mark where the mean first reaches the target, and name the round in the legend."""
    line.set_label(f"{arm} (target {f'at round {hits[0]:g}' if len(hits) else 'not reached'})")
    ink: Mapping[str, Any] = {"color": look.colour, "markeredgecolor": "white", "markersize": 9, "zorder": 5}
    if len(hits):
        axes.plot(hits[:1], mean[hits[:1]], look.marker, **ink)


def draw_floor(axes: Axes, data: pd.DataFrame) -> None:
    """Draw the accuracy of a constant answer, the mean of the column floor, if there is one."""
    height = float(data["floor"].mean()) if "floor" in data.columns else np.nan
    if np.isfinite(height):
        axes.axhline(height, color="#8a8a8a", linestyle=":", linewidth=1.4, zorder=0, label=FLOOR)


def bounds(metrics: pd.DataFrame, *, looks: Mapping[str, Look], column: str) -> Figure:
    """The bound of updates after each round, one line per arm of which it adapts (see `lines`).

    column: of the metrics, beside arm, round and seed; nan for arms without one. Raises nothing.
    """
    figure, [axes] = panels_of(1, height=3.2)
    lines(axes, metrics, looks, y=column, least=0.0)
    axes.set_xlabel("round")
    whole_numbers(axes.xaxis)
    axes.set_ylabel("bound of updates (L2 norm)")
    if metrics[column].max() > 10 * metrics[column].min():  # it moves by factors
        axes.set_yscale("log")
        plain_logarithmic(axes.yaxis)
    legend(figure)
    return figure


def bytes_and_time(
    metrics: pd.DataFrame,
    *,
    looks: Mapping[str, Look] | None = None,
    label: str = SHARE,
) -> Figure:
    """Accuracy against the cost up to each round: megabytes on the wire, and minutes of the cost model.

    metrics: columns arm, round, accuracy, megabytes (of this round, both directions, all clients), seconds
    (of this round, by the cost model) and, if there are several seeds, seed. Each round is averaged over the
    seeds. The costs are summed up here, also over rounds without a measured accuracy. If the arms differ more
    than twentyfold in a cost, its axis is logarithmic. If global and personal models are drawn together,
    curves of personal ones are dashed, and the legend says so. A column floor is drawn as in `accuracy`.
    Raises DataError for missing columns or an empty frame.
    """
    data = carried_on(checked(metrics, ("arm", "round", "accuracy", "megabytes", "seconds")))
    arms, parts = arms_of(data), _by_models(data)
    looks = looks or style.looks(arms)
    personal = {*arms_of(parts["personal"])} if len(parts) > 1 else set()
    names = {arm: f"{arm} ({_WHOSE['personal']})" if arm in personal else arm for arm in arms}
    worn = {name: replace(looks[arm], dash=(4, 2) if arm in personal else ()) for arm, name in names.items()}
    costs = {
        "megabytes": "sent and received so far, all clients (MB)",
        "minutes": "time so far in the cost model (minutes)",
    }
    named = data["arm"].map(names).astype("category").cat.set_categories([*worn])  # in this order below
    rounds = data.assign(arm=named, minutes=data["seconds"] / 60).groupby(["arm", "round"], observed=True)
    means = rounds[["accuracy", *costs]].mean()
    means[[*costs]] = means[[*costs]].groupby("arm", observed=True).cumsum()
    tested = means[rounds["accuracy"].count() == rounds.size()].reset_index()
    figure, panels = panels_of(2, height=3.2)
    for axes, (cost, words) in zip(panels, costs.items(), strict=True):
        lines(axes, tested, worn, x=cost)
        for part in parts.values():
            draw_floor(axes, part)
        far_apart(axes, [*means.groupby("arm", observed=True)[cost].max()])
        axes.set_xlabel(words)
        axes.set_ylabel(label)
    legend(figure)
    return figure


def _by_models(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of global models and those of personal ones; all under "" where that is not said."""
    if "models" not in data.columns:
        return {"": data}
    return {str(models): part for models, part in data.groupby("models", sort=True)}


def carried_on(metrics: pd.DataFrame) -> pd.DataFrame:
    """The rounds with those behind the end of a seed that ended early: its model stays, at no cost.

    Without them a mean over seeds would go on with the others alone, which may be the better ones.
    """
    import pandas as pd  # late, as pages without a table need none

    if not {"arm", "seed"} <= {*metrics.columns}:
        return metrics
    last = metrics.sort_values("round", kind="stable").drop_duplicates(["arm", "seed"], keep="last")
    rounds = metrics[["arm", "round"]].drop_duplicates().rename(columns={"round": "later"})
    behind = last.merge(rounds, on="arm").query("later > round")
    if not len(behind):
        return metrics
    costs = {name: 0 for name in _COSTS if name in metrics.columns}
    behind = behind.assign(round=behind["later"], **costs).drop(columns="later")
    return pd.concat([metrics, behind], ignore_index=True)


def evaluated(metrics: pd.DataFrame) -> pd.DataFrame:
    """The rows of the rounds in which every seed was evaluated, arm by arm, `carried_on` behind its end."""
    metrics = carried_on(metrics)
    # A seed that ended early was tested in a round that the others were not: it would stand for all of them.
    keys = [name for name in ("arm", "round") if name in metrics.columns]
    told = metrics["accuracy"].notna()
    if told.all():
        return metrics
    return metrics[told.groupby([metrics[name] for name in keys]).transform("all")]


def seeds_words(data: pd.DataFrame) -> str:
    """What a line of `lines` shows of its seeds. Empty for one seed."""
    match data["seed"].nunique() if "seed" in data.columns else 1:
        case 1:
            return ""
        case seeds if seeds < FEW_SEEDS:
            return f"mean of {seeds} seeds; points: each seed"
        case seeds:
            return f"mean of {seeds} seeds; band: 95 % interval"
