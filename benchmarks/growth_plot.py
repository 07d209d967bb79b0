"""Draws docs/growth.png from what `benchmarks/growth.py --write` kept.

python benchmarks/growth_plot.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
WORDS = {"none": "no noise", "local": "noise by each client", "masked": "masked, no noise"}
COLOURS = ("tab:blue", "tab:orange", "tab:green")


def main() -> None:
    figure, (time, memory) = plt.subplots(1, 2, figsize=(9, 4.6))
    for (kind, words), colour in zip(WORDS.items(), COLOURS, strict=True):
        file = ROOT / "benchmarks" / "results" / f"growth_{kind}.json"
        if not file.exists():
            continue
        cells = sorted(json.loads(file.read_text())["cells"], key=lambda cell: cell["cohort"])
        cohorts = [cell["cohort"] for cell in cells]
        for when, style in (("early", "o-"), ("late", "s--")):
            rounds = [cell["cohort"] * cell[f"ms_{when}"] / 1e3 for cell in cells]
            time.loglog(cohorts, rounds, style, color=colour, label=f"{words}, {when} round")
        clients = sorted({cell["clients"] for cell in cells})
        largest = [max(cell["mib_late"] for cell in cells if cell["clients"] == n) for n in clients]
        memory.loglog(clients, largest, "s-", color=colour, label=words)
    ends = (1, 10_000)
    time.loglog(ends, [0.003 * end for end in ends], ":", color="grey", label="3 ms a client")
    time.set(xlabel="cohort", ylabel="CPU seconds of a round")
    memory.set(xlabel="clients", ylabel="MiB beyond the imports")
    for axes in (time, memory):
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "growth.png", dpi=120)


if __name__ == "__main__":
    main()
