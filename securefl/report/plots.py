"""Figures of accuracy, bytes and time, from tidy data frames with one row per observation.

All figures are built on matplotlib's object interface and touch no global state (see `style`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from securefl.report import style
from securefl.report.significance import student
from securefl.report.style import (
    FEW_SEEDS,
    WIDE,
    Look,
    arms_of,
    checked,
    curve,
    far_apart,
    legend,
    light_frame,
    limit,
    panels_of,
    whole_numbers,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARE = "accuracy (share, 0 to 1)"
_WHOSE = {"global": "one global model", "personal": "personal models"}
_NOTE: Mapping[str, Any] = {"fontsize": 9.0, "loc": "left"}
FLOOR = "one constant answer"
"""The legend of the accuracy that a model has if it has learnt nothing from its inputs."""


def accuracy(
    metrics: pd.DataFrame,
    *,
    target: float | None = None,
    looks: Mapping[str, Look] | None = None,
    label: str = SHARE,
    least: float = 0.0,
    width: float = WIDE,
) -> Figure:
    """Accuracy over rounds, one line per arm; with several seeds the mean, and how far the seeds lie apart.

    metrics: columns arm, round, accuracy and, where there are several, seed. A round of an arm is left out
    unless every seed that played it has an accuracy. Fewer than five seeds are drawn as points, more as the
    95 % interval of the mean (Student's t), cut at `least` and 1. If there is a column models, arms of
    "global" and of "personal" models have a panel each: they do not compare. target: drawn as a line; the
    round at which each arm's (mean) curve first reaches it is marked, and named in the legend. label: of the
    axis.
    If there is a column floor, the accuracy of a constant answer is drawn as a line in each panel. width: in
    inches.
    Raises DataError for missing columns or an empty frame.
    """
    # Dropped before arms are listed: a line through nan would have gaps, and an arm without values no line.
    data = evaluated(checked(metrics, ("arm", "round", "accuracy")))
    arms = arms_of(data)
    looks = looks or style.looks(arms)
    parts = _by_models(data)
    figure, panels = panels_of(max(1, len(parts)), height=3.2, width=width)
    for axes, (models, part) in zip(panels, parts.items(), strict=False):
        light_frame(axes)
        for place, arm in enumerate(arms_of(part)):
            _draw(axes, part[part["arm"] == arm], target, looks[arm], place, least)
        between = "; " if width >= WIDE else "\n"
        axes.set_title(between.join(filter(None, (_WHOSE.get(models), _seeds_words(part)))), **_NOTE)
        draw_floor(axes, part, labelled=True)
    for axes in panels:
        axes.set_xlabel("round")
        whole_numbers(axes.xaxis)
        limit(axes, target, "target")
        axes.set_ylabel(label if axes is panels[0] or width < WIDE else "")
    if arms:
        legend(figure, [arm if target is None else f"{arm} (target not reached)" for arm in arms])
    return figure


def draw_floor(axes: Axes, data: pd.DataFrame, *, labelled: bool) -> None:
    """Draw the accuracy of a constant answer, the mean of the column floor, if there is one.

    labelled: whether the line has an entry in the legend.
    """
    height = float(data["floor"].mean()) if "floor" in data.columns else np.nan
    if np.isfinite(height):
        ink: Mapping[str, Any] = {"color": "#8a8a8a", "linestyle": ":", "linewidth": 1.4, "zorder": 0}
        axes.axhline(height, label=FLOOR if labelled else "_nolegend_", **ink)


def _draw(axes: Axes, own: pd.DataFrame, target: float | None, look: Look, place: int, least: float) -> None:
    """Draw an arm: the mean over its seeds, how far they lie apart, and where the mean reaches the target."""
    known = own if "seed" in own.columns else own.assign(seed=0)
    # A seed whose clients' budgets ended early has no values in later rounds.
    seeds = known.pivot_table(index="seed", columns="round", values="accuracy")
    mean, apart = seeds.mean(), seeds.apply(lambda known: student(known.dropna())[1])
    few, arm = len(seeds) < FEW_SEEDS, str(own["arm"].iloc[0])
    hits = mean.index[mean >= (np.inf if target is None else target)]
    reached = f"at round {hits[0]:g}" if len(hits) else "not reached"
    curve(
        axes,
        mean.index,
        mean,
        look,
        label=arm if target is None else f"{arm} (target {reached})",
        low=None if few else (mean - apart).clip(lower=least),
        high=(mean + apart).clip(upper=1.0),
        seeds=seeds.to_numpy() if few and len(seeds) > 1 else (),
        place=place,
    )
    if len(hits):
        style_of: Mapping[str, Any] = {"markeredgecolor": "white", "markersize": 9, "zorder": 5}
        axes.plot(hits[:1], mean[hits[:1]], look.marker, color=look.colour, **style_of)


def bytes_and_time(
    metrics: pd.DataFrame,
    *,
    looks: Mapping[str, Look] | None = None,
    label: str = SHARE,
    width: float = WIDE,
) -> Figure:
    """Accuracy against the cost up to each round: megabytes on the wire, and minutes of the cost model.

    metrics: columns arm, round, accuracy, megabytes (of this round, both directions, all clients), seconds
    (of this round, by the cost model) and, if there are several seeds, seed. Each round is averaged over the
    seeds. The costs are summed up here. If the arms differ more than twentyfold in a cost, its axis is
    logarithmic. If global and personal models are drawn together, curves of personal ones are dashed, and the
    legend says so. A column floor is drawn as in `accuracy`.
    Raises DataError for missing columns or an empty frame.
    """
    data = checked(metrics, ("arm", "round", "accuracy", "megabytes", "seconds"))
    arms = arms_of(data)
    looks = looks or style.looks(arms)
    parts = _by_models(data)
    personal = set(arms_of(parts["personal"])) if len(parts) > 1 else set()
    names = {arm: f"{arm} ({_WHOSE['personal']})" if arm in personal else arm for arm in arms}
    figure, panels = panels_of(2, height=3.2, width=width)
    for axes in panels:
        light_frame(axes)
    totals: tuple[list[float], ...] = ([], [])
    for place, arm in enumerate(arms):
        own = data[data["arm"] == arm]
        means = own.groupby("round")[["accuracy", "megabytes", "seconds"]].mean()
        # Costs add up over all rounds, also over rounds without a measured accuracy.
        seen = means.index.isin(evaluated(own)["round"])
        worn = replace(looks[arm], dash=(4, 2) if arm in personal else ())
        for axes, ends, cost in zip(panels, totals, (means["megabytes"], means["seconds"] / 60), strict=True):
            total = cost.cumsum()
            curve(axes, total[seen], means["accuracy"][seen], worn, place=place, label=names[arm])
            ends.append(float(total.iloc[-1]))
    for axes in panels:
        for part in parts.values():
            draw_floor(axes, part, labelled=True)
    for axes, ends in zip(panels, totals, strict=True):
        if not far_apart(axes, ends):
            style.few_numbers(axes.xaxis)
    panels[0].set_xlabel("sent and received so far, all clients (MB)")
    panels[1].set_xlabel("time so far in the cost model (minutes)")
    for axes in panels if width < WIDE else panels[:1]:
        axes.set_ylabel(label)
    legend(figure, list(names.values()))
    return figure


def _by_models(data: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of global models and those of personal ones; all under "" where that is not said."""
    if "models" not in data.columns:
        return {"": data}
    return {str(models): part for models, part in data.groupby("models", sort=True)}


def evaluated(metrics: pd.DataFrame) -> pd.DataFrame:
    """The rows of the rounds in which every seed that played them was evaluated, arm by arm."""
    # A seed that ended early was tested in a round that the others were not: it would stand for all of them.
    keys = [name for name in ("arm", "round") if name in metrics.columns]
    told = metrics["accuracy"].notna()
    if told.all():
        return metrics
    return metrics[told.groupby([metrics[name] for name in keys]).transform("all")]


def _seeds_words(data: pd.DataFrame) -> str:
    match data["seed"].nunique() if "seed" in data.columns else 1:
        case 1:
            return ""
        case seeds if seeds < FEW_SEEDS:
            return f"mean of {seeds} seeds; points: each seed"
        case seeds:
            return f"mean of {seeds} seeds; band: 95 % interval"
