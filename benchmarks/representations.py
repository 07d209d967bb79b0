"""FedProf's preliminary figures from real runs (v2, Figs. 1 and 2), on MNIST.

    SECUREFL_DATA=... python benchmarks/representations.py [--write]

The accuracy of FedAvg in four conditions of data (the packaged sweep `fedprof_conditions`), and how normal
the outputs of LeNet-5's first dense layer are before training and after some rounds of the first of these
runs. `--write` keeps tables in benchmarks/results/ and figures in docs/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from kept import ASKED, DOCS, RESULTS, keep
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import kstest, kurtosis, norm, skew
from studies import played

from securefl.core.streams import stream
from securefl.report import plots
from securefl.report.style import ARM_COLOURS, blank, light_frame
from securefl.report.tables import write_csv, write_png
from securefl.study.config import Study
from securefl.study.packaged import packaged
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.sweep.cells import parse_sweep
from securefl.training import outputs, single_thread

ROUNDS = (0, 1, 6, 12)
ELEMENTS = 5
REACH = 4.0
"""The standard deviations to either side of the mean that a panel shows."""
Floats = NDArray[np.floating[Any]]


def standardised(values: Floats) -> Floats:
    scaled: Floats = (values - values.mean(axis=0)) / values.std(axis=0)
    return scaled


def normality(outputs: Floats) -> pd.DataFrame:
    """How far each element of a layer's outputs (n, q) is from a normal distribution, if it varies.

    Columns element, skewness, excess_kurtosis, and distance: Kolmogorov's and Smirnov's, from the normal
    distribution with this mean and standard deviation.
    """
    elements = np.flatnonzero(np.ptp(outputs, axis=0) > 0)
    scaled = standardised(outputs[:, elements].astype(np.float64))
    return pd.DataFrame(
        {
            "element": elements,
            "skewness": skew(scaled, axis=0),
            "excess_kurtosis": kurtosis(scaled, axis=0),
            "distance": [float(kstest(column, norm.cdf).statistic) for column in scaled.T],
        }
    )


def histograms(outputs: Mapping[str, Floats], elements: Sequence[int]) -> Figure:
    """Histograms of standardised elements, with the normal density: a row of panels for each name."""
    figure = blank(height=0.6 + 1.5 * len(outputs))
    panels = figure.subplots(len(outputs), len(elements), sharex=True, sharey=True, squeeze=False)
    places = np.linspace(-REACH, REACH, 200)
    for row, (name, found) in zip(panels, outputs.items(), strict=True):
        distances = normality(found).set_index("element")["distance"]
        for axes, element in zip(row, elements, strict=True):
            light_frame(axes)
            values = standardised(found[:, element])
            axes.hist(values, bins=40, range=(-REACH, REACH), density=True, color=ARM_COLOURS[0], alpha=0.6)
            axes.plot(places, norm.pdf(places), color=ARM_COLOURS[1], linewidth=1.4)
            axes.set_title(f"element {element}, distance {distances[element]:.3f}", fontsize=8)
            axes.tick_params(labelsize=8)
        row[0].set_ylabel(name, fontsize=9)
    figure.supxlabel("standard deviations from the mean", fontsize=9)
    return figure


def traced(study: Study, here: World) -> dict[str, np.ndarray]:
    """The layer's outputs on the server's records after each of ROUNDS."""
    found = {}
    for number in ROUNDS:
        broadcast = here.problem.initial
        if number:
            broadcast = played(study, study.arms[0], here, rounds=number)[1].broadcast
        name = f"after round {number}" if number else "before training"
        found[name] = outputs(here.problem.module(broadcast), here.problem.layer, here.problem.server_x)
    return found


def main() -> None:
    single_thread()
    records: list[dict[str, Any]] = []
    shapes, first = [], {}
    for cell in parse_sweep(packaged()["fedprof_conditions"]).cells:
        name, here = cell.study.study.name, build(cell.study, cell.study.study.seeds[0])
        first = first or traced(cell.study, here)
        run, _ = played(cell.study, cell.study.arms[0], here)
        records += [
            {"arm": name, "seed": here.seed, "round": own["round"], "accuracy": round(own["accuracy"], 5)}
            for own in run.records
        ]
    conditions = pd.DataFrame(records)
    for name, found in first.items():
        own = normality(found)
        shapes.append({"model": name, "elements": len(own), **_summary(own)})
    table = pd.DataFrame(shapes)
    last = conditions.groupby("arm", sort=False)["accuracy"]
    print(last.agg(["last", "max"]).to_string())
    print(table.to_string(index=False))
    keep("representations", table)
    if ASKED:
        write_csv(RESULTS / "conditions.csv", conditions, ["python benchmarks/representations.py --write"])
        write_png(DOCS / "conditions.png", plots.accuracy(conditions))
        drawn = stream(1, "elements").choice(normality(first["before training"])["element"], ELEMENTS, False)
        write_png(DOCS / "representations.png", histograms(first, sorted(drawn.tolist())))


def _summary(own: pd.DataFrame) -> dict[str, float]:
    """Medians over the elements, and the largest distance."""
    return {
        "median_skewness": round(float(own["skewness"].abs().median()), 3),
        "median_excess_kurtosis": round(float(own["excess_kurtosis"].median()), 3),
        "median_distance": round(float(own["distance"].median()), 4),
        "largest_distance": round(float(own["distance"].max()), 4),
    }


if __name__ == "__main__":
    main()
