"""Figures 5 and 8 of ADDS from a finished run folder, and the numbers behind its claims.

    python benchmarks/adds_figures.py RUN [--out FOLDER]

Writes `rates.png` (each layer's sampling rate, round by round) and `compression.png` (parameters of each
client's subnet against the skew of its labels), and prints a line for each arm. A client counts in a round if
it trained then and the round was evaluated. An arm without subnets counts as whole.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from securefl.report.style import blank, legend, light_frame, looks
from securefl.report.tables import write_png

RATE = "rate of "
SHARES = ("parameters", "macs")


def figures_of(run: Path) -> pd.DataFrame:
    """The observer's figures of a run: columns arm, seed, round, client, figure, value."""
    return pd.read_csv(run / "private" / "figures.csv", comment="#")


def rates(figures: pd.DataFrame) -> Figure:
    """Figure 5: the mean share of each layer's units that subnets keep, and of parameters and MACs."""
    arms = sorted(figures.loc[figures["figure"] == "skew", "arm"].unique())
    figure = blank(height=0.8 + 2.4 * len(arms))
    for axes, arm in zip(figure.subplots(len(arms), 1, squeeze=False)[:, 0], arms, strict=True):
        light_frame(axes)
        own = figures[figures["arm"] == arm]
        names = [name for name in own["figure"].unique() if name.startswith(RATE) or name in SHARES]
        for name, worn in looks(names).items():
            mean = own[own["figure"] == name].groupby("round")["value"].mean()
            label = name.removeprefix(RATE)
            axes.plot(
                mean.index, mean, color=worn.colour, linestyle="--" if name in SHARES else "-", label=label
            )
        axes.set_title(arm, fontsize=11, loc="left")
        axes.set_ylabel("share that is kept")
        axes.set_xlabel("round")
        axes.legend(fontsize=8, ncols=4)
    return figure


def compression(figures: pd.DataFrame) -> Figure:
    """Figure 8: the share of parameters in each client's subnets against the skew of its labels."""
    both = by_client(figures)
    figure = blank(height=3.6)
    axes = figure.subplots()
    light_frame(axes)
    arms = sorted(both["arm"].unique())
    for arm, worn in looks(arms).items():
        own = both[both["arm"] == arm]
        axes.scatter(own["skew"], own["parameters"], s=12, color=worn.colour, alpha=0.6, label=arm)
    axes.set_xlabel("normalised Jensen-Shannon divergence of the labels from uniform")
    axes.set_ylabel("share of the parameters")
    legend(figure, arms)
    return figure


def by_client(figures: pd.DataFrame) -> pd.DataFrame:
    """Skew and mean share of parameters of each client that has both: a row a client, seed and arm."""
    wanted = figures[figures["figure"].isin(["skew", "parameters"])]
    table = wanted.pivot_table(
        index=["arm", "seed", "client"], columns="figure", values="value", aggfunc="mean"
    )
    return table.reindex(columns=["skew", "parameters"]).dropna().reset_index()


def correlation(figures: pd.DataFrame) -> float:
    """Spearman's, of skew and share of parameters over clients; nan where nothing varies."""
    clients = by_client(figures)
    if min(clients["skew"].nunique(), clients["parameters"].nunique()) < 2:
        return np.nan
    return float(spearmanr(clients["skew"], clients["parameters"]).statistic)


def summary(run: Path) -> list[dict[str, Any]]:
    """Of each arm: final accuracy and its deviation over seeds, shares sent and computed, and correlation."""
    figures = figures_of(run)
    metrics = pd.read_csv(run / "metrics.csv").dropna(subset="accuracy")
    last = metrics.sort_values("round").groupby(["arm", "seed"], sort=False)["accuracy"].last()
    found = []
    for arm in metrics["arm"].unique():
        own = figures[figures["arm"] == arm]
        row: dict[str, Any] = {"arm": arm, "accuracy": last[arm].mean(), "deviation": last[arm].std()}
        for name in SHARES:
            values = own.loc[own["figure"] == name, "value"]
            row[name] = 1.0 if values.empty else values.mean()
        row["spearman"] = correlation(own)
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="ADDS's figures 5 and 8 from a finished run folder.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, help="where to write them, by default the run folder")
    options = parser.parse_args()
    folder = options.out or options.run
    folder.mkdir(parents=True, exist_ok=True)
    figures = figures_of(options.run)
    write_png(folder / "rates.png", rates(figures))
    write_png(folder / "compression.png", compression(figures))
    for row in summary(options.run):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
