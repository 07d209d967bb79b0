"""Draws the pictures of docs/ anew, in the style of every page, from committed results.

    python benchmarks/pictures.py [NAME ...]

Each picture reads a file of benchmarks/results/ (see `PICTURES`). The figures there come from runs of
minutes to hours, whose commands the files name in their first line; no picture runs one. Pictures whose marks
are single records or whole models (representations.png, residual.png, fedcor_normality.png,
adds_compression.png, adds_local.png, crafted_model.png) are drawn by those runs themselves. Each file of
traces of a published table gives a picture of its name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd
from kept import DOCS, RESULTS, read
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from results_page import BODIES, figures_of, of_body

from securefl.published import comparison, traces
from securefl.report import client_plots, plots
from securefl.report.accuracy import MEASURES
from securefl.report.style import blank, legend, light_frame, look, plain_logarithmic
from securefl.report.tables import write_png
from securefl.sweep.tradeoff import Series
from securefl.sweep.tradeoff_plots import accuracy

NOISE = {
    "public, unit norm, central, exact": "a trusted server adds the noise to the total",
    "the same, masked sum with shares of noise": "clients add shares of the noise, inside a masked sum",
    "the same, local noise": "each client adds all of the noise",
}
"""Settings of BODIES in the words of the README."""
BOUNDS: Mapping[object, str] = {0.3: "update bound 0.3", 1.0: "update bound 1"}
MATRICES: Mapping[object, str] = {
    "1": "independent noise",
    "1, adaptive": "independent noise, a bound that adapts",
    "20": "correlated over 20 rounds (BandMF)",
    "blt": "correlated over all rounds (BLT)",
}


def series(number: int, line: str, rows: pd.DataFrame, panel: tuple[str, ...] = ()) -> Series:
    """A line over epsilon. rows: columns privacy.epsilon (asked for), epsilon_true and final_accuracy."""
    table = rows.assign(asked=rows["privacy.epsilon"], models="global", floor=float("nan"))
    return Series(
        number=number, label=line, values={"arm": line}, rows=table, panel=panel, line=line, look=number
    )


def against_epsilon(found: Sequence[Series]) -> Figure:
    """The product's picture of a sweep."""
    drawing = accuracy(found, MEASURES["classification"])
    legend(drawing.figure)
    return drawing.figure


def bodies(name: str, words: Mapping[str, str]) -> Figure:
    """FedLog's accuracy by body, clip, place of the noise and calibration, per record.

    words: what a legend says of each setting.
    """
    table = read(name).assign(unit="record", delta=1e-5)
    found = {line: of_body(table, own) for own, line in words.items() if BODIES[own][-1] == "record"}
    return against_epsilon(
        [series(number, line, rows) for number, (line, rows) in enumerate(found.items()) if len(rows)]
    )


def per_client(table: pd.DataFrame, lines: pd.Series, words: Mapping[object, str]) -> Figure:
    """FedAvg's accuracy against epsilon per client.

    lines: the line of each row. words: what a legend says of each line.
    """
    table = table.assign(unit="client", delta=1e-3)
    return against_epsilon(
        [series(number, line, table[lines == value]) for number, (value, line) in enumerate(words.items())]
    )


def client_level() -> Figure:
    table = read("client_level.csv")
    return per_client(table, table["local.update_bound"], BOUNDS)


def client_level_matrix() -> Figure:
    table = read("client_level_matrix.csv")
    fixed = table["local.bound_quantile"] == "not set"
    return per_client(table, table["privacy.bands"].where(fixed, "1, adaptive"), MATRICES)


def heads() -> Figure:
    """Heads by epsilon, with a panel for each number of records.

    Clients (20 or 100) and partition move a mean by 0.009 at most, except with 3,000 records at epsilon
    0.25: by 0.087. So a point is the mean over them and the seeds, and they have no panels of their own.
    """
    table = read("heads_twin.csv").assign(unit="record", delta=1e-5)
    table = table[table["privacy.noise"] == "distributed"]
    return against_epsilon(
        [
            series(number, arm, rows, (f"{records:,} records",))
            for number, (arm, own) in enumerate(table.groupby("arm", sort=False))
            for records, rows in own.groupby("data.records")
        ]
    )


def dpsgd_epsilon() -> Figure:
    rows = read("dpsgd_epsilon.csv").rename(columns={"dpsgd.epsilon": "privacy.epsilon"})
    return against_epsilon([series(0, "FedAvg by DP-SGD", rows.assign(unit="record", delta=1e-5))])


def growth() -> Figure:
    """CPU of a round by its cohort, and memory by the number of clients."""
    figure = blank(height=6.4)
    time, memory = figure.subplots(2, 1)
    words = {"none": "no noise", "local": "noise by each client", "masked": "masked, no noise"}
    for number, (kind, name) in enumerate(words.items()):
        cells = pd.DataFrame(json.loads((RESULTS / f"growth_{kind}.json").read_text())["cells"])
        cells, worn = cells.sort_values("cohort", kind="stable"), look(number)
        for when, dash, label in (("early", "-", name), ("late", "--", f"{name}, late round")):
            seconds = cells["cohort"] * cells[f"ms_{when}"] / 1e3
            time.plot(cells["cohort"], seconds, worn.marker + dash, color=worn.colour, label=label)
        memory.plot(cells.groupby("clients")["mib_late"].max(), worn.marker + "-", color=worn.colour)
    time.plot((1, 10_000), (0.003, 30.0), ":", color="#999999", label="3 ms a client")
    legend(figure)
    across, up = ("clients in the cohort", "clients"), ("CPU seconds of a round", "MiB beyond the imports")
    for axes, xlabel, ylabel in zip((time, memory), across, up, strict=True):
        light_frame(axes)
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
        for axis in (axes.xaxis, axes.yaxis):
            plain_logarithmic(axis)
        axes.xaxis.set_major_locator(LogLocator())  # five decades have no room for 2 and 5
    return figure


def fedcor_selected() -> Figure:
    """The rounds of each client, from the most selected to the least: a panel a setting, a line a beta."""
    table = read("fedcor_selected.csv")
    table = table[table["interval"] == table.groupby("setting")["interval"].transform("first")]
    settings, betas = (list(table[name].unique()) for name in ("setting", "annealing"))
    figure = blank(height=0.8 + 1.5 * len(settings))
    panels = figure.subplots(len(settings), 1, squeeze=False, sharex=True)[:, 0]
    for axes, name in zip(panels, settings, strict=True):
        light_frame(axes)
        for line, own in table[table["setting"] == name].groupby("annealing", sort=False):
            worn = look(betas.index(line))
            axes.plot(own["rank"], own["rounds"], color=worn.colour, label=f"β {line:g}")
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_ylabel("rounds")
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("clients, from the most selected to the least")
    legend(figure)
    return figure


def traces_of(file: str) -> Figure:
    """The accuracies of a published table by round, with what each system needed, from its two files."""
    table, _ = figures_of(file)
    kept = comparison.read(RESULTS / f"{file}_traces.csv", table)
    return traces.from_file(table, kept, comparison.read(RESULTS / f"{file}.csv", table))


def _curves(name: str) -> Callable[[], Figure]:
    return lambda: plots.accuracy(read(name))


PICTURES: Mapping[str, Callable[[], Figure]] = {
    "client_level": client_level,
    "client_level_matrix": client_level_matrix,
    "conditions": _curves("conditions.csv"),
    "dpsgd_epsilon": dpsgd_epsilon,
    "fedcor_selected": fedcor_selected,
    "fedlog_tradeoff": lambda: bodies("fedlog_tradeoff.csv", {name: name for name in BODIES}),
    "fedlog_tradeoff_mnist": lambda: bodies("fedlog_tradeoff_mnist.csv", {name: name for name in BODIES}),
    "fedprof_private": _curves("fedprof_private.csv"),
    "growth": growth,
    "heads": heads,
    "participation": lambda: client_plots.participation(read("participation.csv")),
    "who_adds_noise": lambda: bodies("fedlog_tradeoff.csv", NOISE),
    **{
        path.stem: partial(traces_of, path.stem.removesuffix("_traces"))
        for path in sorted(RESULTS.glob("*_traces.csv"))
    },
}
"""By name of a file of docs/, the function that draws it."""


def main() -> None:
    wanted = sys.argv[1:] or [*PICTURES]
    if unknown := set(wanted) - set(PICTURES):
        sys.exit(f"Expected pictures among {', '.join(PICTURES)}, got {', '.join(sorted(unknown))}.")
    for name in wanted:
        write_png(DOCS / f"{name}.png", PICTURES[name]())
        print(DOCS / f"{name}.png")


if __name__ == "__main__":
    main()
