"""Figure 8 of ADDS and the density of Figure 4 from a finished run folder, and their numbers.

    python benchmarks/adds_figures.py RUN [FOLDER]

Writes `compression.png` (parameters of each client's subnet against the skew of its labels) into the folder,
by default that of the run, and prints a line for each arm. A client counts in a round if it trained then and
the round was evaluated. An arm without subnets counts as whole.

If clients hold records out, it writes `local.png` too: the accuracy of each client at the end on records of
its own, by the model that it would use.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from securefl.report.style import blank, legend, light_frame, looks
from securefl.report.tables import write_png


def figures_of(run: Path) -> pd.DataFrame:
    """The observer's figures of a run: columns arm, seed, round, client, figure, value."""
    return pd.read_csv(run / "private" / "figures.csv", comment="#")


def compression(figures: pd.DataFrame) -> Figure:
    """Figure 8: the share of parameters in each client's subnets against the skew of its labels."""
    both = dict(list(by_client(figures).groupby("arm")))
    figure = blank(height=3.6)
    axes = figure.subplots()
    light_frame(axes)
    for (arm, worn), own in zip(looks(list(both)).items(), both.values(), strict=True):
        axes.scatter(own["skew"], own["parameters"], s=12, color=worn.colour, alpha=0.6, label=arm)
    axes.set_xlabel("skew of the labels: divergence from uniform, 0 to 1")
    axes.set_ylabel("share of the parameters")
    legend(figure)
    return figure


def density(figures: pd.DataFrame) -> Figure:
    """Figure 4: the local accuracy of every client at the end, by arm, of all seeds together.

    Lines at the foot are clients, and bars count them. The curve is a Gaussian kernel density, in clients a
    bar. The dashed line is the mean.
    """
    last = local(figures)
    arms = list(last["arm"].unique())
    edges = np.linspace(0, 1, 21)
    figure = blank(height=0.8 + 1.15 * len(arms))
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
    table = figures.pivot_table(index=["arm", "seed", "client"], columns="figure", values="value")
    return table.reindex(columns=["skew", "parameters"]).dropna().reset_index()


def summary(run: Path) -> pd.DataFrame:
    """By arm: final accuracy and its deviation over seeds, shares sent and computed, and the correlation.

    The correlation is Spearman's, of skew and share of parameters over clients; nan where nothing varies.
    """
    figures = figures_of(run)
    metrics = pd.read_csv(run / "private" / "metrics.csv", comment="#").dropna(subset="accuracy")
    last = metrics.sort_values("round").groupby(["arm", "seed"], sort=False)["accuracy"].last()
    arms = last.groupby("arm", sort=False)
    found = pd.DataFrame({"accuracy": arms.mean(), "deviation": arms.std()})
    means = figures.pivot_table(index="arm", columns="figure", values="value")
    found = found.join(means.reindex(columns=["parameters", "macs"])).fillna({"parameters": 1.0, "macs": 1.0})
    for arm, clients in by_client(figures).groupby("arm"):
        found.loc[arm, "spearman"] = clients[["skew", "parameters"]].rank().corr().iloc[0, 1]
    own = local(figures).groupby("arm")["value"]
    return found.join(pd.DataFrame({"local": own.mean(), "local_deviation": own.std(ddof=0)}))


def main(run: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    figures = figures_of(run)
    write_png(folder / "compression.png", compression(figures))
    if len(local(figures)):
        write_png(folder / "local.png", density(figures))
    print(summary(run).to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[-1]))
