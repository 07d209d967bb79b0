"""The picture of the README: what epsilon costs FedLog in accuracy, by who adds the noise.

    python benchmarks/who_adds_noise.py

Reads benchmarks/results/fedlog_tradeoff.csv (written from `securefl sweep fedlog_tradeoff`) and draws
docs/who_adds_noise.png: means over the seeds, and one standard deviation to either side.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from securefl.report.style import ARM_COLOURS
from securefl.report.tables import write_png

HERE = Path(__file__).parent
LINES = {
    "central": "a trusted server adds the noise to the total",
    "distributed": "clients add shares of the noise,\ninside a masked sum",
    "local": "each client adds all of the noise",
}
LABELS = {"central": (1.15, 0.93), "distributed": (0.9, 0.6), "local": (3.0, 0.52)}
"""Epsilon and accuracy at which the text of a line begins."""
SETTING = {
    "arm.body": "public",
    "arm.clip": "kind unit-l2",
    "privacy.calibration": "exact",
    "privacy.unit": "record",
}


def read(path: Path) -> pd.DataFrame:
    """The rows of one setting, that differ in who adds the noise and in epsilon alone."""
    table = pd.read_csv(path, comment="#")
    for name, value in SETTING.items():
        table = table[table[name] == value]
    return table.sort_values("privacy.epsilon")


def draw(table: pd.DataFrame) -> Figure:
    """Accuracy by epsilon, a line for each place of the noise."""
    figure = Figure(figsize=(8, 4), layout="constrained", dpi=150)
    axes = figure.subplots()
    noiseless = table[table["privacy.epsilon"] == float("inf")]["accuracy"].mean()
    axes.axhline(noiseless, color="#222222", linestyle="--", linewidth=1)
    axes.text(0.5, noiseless + 0.012, "no noise", va="bottom", fontsize=9, color="#222222")
    for (noise, text), colour in zip(LINES.items(), ARM_COLOURS, strict=False):
        own = table[(table["privacy.noise"] == noise) & (table["privacy.epsilon"] < float("inf"))]
        x, y, spread = own["privacy.epsilon"], own["accuracy"], own["deviation"]
        axes.plot(x, y, marker="o", color=colour)
        axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.12, linewidth=0)
        axes.text(*LABELS[noise], text, color=colour, fontsize=10, va="center")
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axes.set_ylim(0, 1)
    axes.set_xlabel("epsilon per record of the whole run (log scale)")
    axes.set_ylabel("final accuracy (share, 0 to 1)")
    axes.grid(axis="y", color="#E3E3E3")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    picture = HERE.parent / "docs" / "who_adds_noise.png"
    write_png(picture, draw(read(HERE / "results" / "fedlog_tradeoff.csv")))
    print(picture)
