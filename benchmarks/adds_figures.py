"""Figures 5 and 8 of ADDS and the density of Figure 4 from a finished run folder, and their numbers.

    python benchmarks/adds_figures.py RUN [--out FOLDER]

Writes `rates.png` (each layer's sampling rate, round by round) and `compression.png` (parameters of each
client's subnet against the skew of its labels), and prints a line for each arm. A client counts in a round if
it trained then and the round was evaluated. An arm without subnets counts as whole.

If clients hold records out, it writes `local.png` too: the accuracy of each client at the end on records of
its own, by the model that it would use.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde, spearmanr

from securefl.report.style import NARROW, blank, legend, light_frame, looks
from securefl.report.tables import write_png

SHARES = ("parameters", "macs")


def figures_of(run: Path) -> pd.DataFrame:
    """The observer's figures of a run: columns arm, seed, round, client, figure, value."""
    return pd.read_csv(run / "private" / "figures.csv", comment="#")


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


def density(figures: pd.DataFrame) -> Figure:
    """Figure 4: the local accuracy of every client at the end, by arm, of all seeds together.

    Lines at the foot are clients, and bars count them. The curve is a Gaussian kernel density, in clients a
    bar. The dashed line is the mean.
    """
    last = local(figures)
    arms = list(last["arm"].unique())
    edges = np.linspace(0, 1, 21)
    figure = blank(height=0.8 + 1.15 * len(arms), width=NARROW)
    panels = figure.subplots(len(arms), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, (arm, worn) in zip(panels, looks(arms).items(), strict=True):
        light_frame(axes)
        own = last.loc[last["arm"] == arm, "value"].to_numpy()
        axes.hist(own, bins=edges, color=worn.colour, alpha=0.35)
        axes.vlines(own, 0, 0.1, color=worn.colour, linewidth=0.6, transform=axes.get_xaxis_transform())
        if np.ptp(own) > 0:
            across = np.linspace(0, 1, 200)
            axes.plot(across, gaussian_kde(own)(across) * len(own) * edges[1], color=worn.colour)
        axes.axvline(own.mean(), color=worn.colour, linestyle="--", linewidth=1)
        axes.set_title(f"{arm}: {own.mean():.3f} ± {own.std():.3f}", fontsize=9, loc="left")
        axes.set_ylabel("clients", fontsize=9)
    low = min(last["value"].min(), 0.95)
    panels[-1].set_xlim(max(0, np.floor(20 * low) / 20 - 0.05), 1)
    panels[-1].set_xlabel("accuracy on the client's own held-out records")
    return figure


def local(figures: pd.DataFrame) -> pd.DataFrame:
    """The last local accuracy of each client, seed and arm: columns arm, seed, client, value."""
    own = figures[figures["figure"] == "local accuracy"].sort_values("round", kind="stable")
    return own.groupby(["arm", "seed", "client"], sort=False)["value"].last().reset_index()


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
    metrics = pd.read_csv(run / "private" / "metrics.csv", comment="#").dropna(subset="accuracy")
    last = metrics.sort_values("round").groupby(["arm", "seed"], sort=False)["accuracy"].last()
    found = []
    for arm in metrics["arm"].unique():
        own = figures[figures["arm"] == arm]
        row: dict[str, Any] = {"arm": arm, "accuracy": last[arm].mean(), "deviation": last[arm].std()}
        for name in SHARES:
            values = own.loc[own["figure"] == name, "value"]
            row[name] = 1.0 if values.empty else values.mean()
        row["spearman"] = correlation(own)
        clients = local(own)["value"]
        if len(clients):
            row |= {"local": clients.mean(), "local_deviation": clients.std(ddof=0)}
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="ADDS's figures 4 and 8 from a finished run folder.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, help="where to write them, by default the run folder")
    options = parser.parse_args()
    folder = options.out or options.run
    folder.mkdir(parents=True, exist_ok=True)
    figures = figures_of(options.run)
    write_png(folder / "compression.png", compression(figures))
    if len(local(figures)):
        write_png(folder / "local.png", density(figures))
    for row in summary(options.run):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
