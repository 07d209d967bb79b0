"""FedProf's preliminary figures from real runs (v2, Figs. 1 and 2), on MNIST.

    SECUREFL_DATA=... python benchmarks/representations.py [--write]

The accuracy of FedAvg in four conditions of data (the packaged sweep `fedprof_conditions`), and how normal
the outputs of LeNet-5's first dense layer are before training and after some rounds of the first of these
runs. `--write` keeps tables in benchmarks/results/ and the figure of the outputs in docs/
(pictures.py draws the other).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from kept import ASKED, DOCS, keep
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import kstest, kurtosis, norm, skew
from studies import played

from securefl.core.streams import stream
from securefl.report.style import ARM_COLOURS, blank, light_frame
from securefl.report.tables import write_png
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


def histograms(outputs: Mapping[str, Floats], elements: Sequence[int], word: str = "element") -> Figure:
    """Histograms of standardised elements, with the normal density: two columns of panels for each name."""
    down = -(-len(elements) // 2)
    figure = blank(height=0.7 + len(outputs) * (0.3 + 1.35 * down))
    places = np.linspace(-REACH, REACH, 200)
    groups = np.atleast_1d(figure.subfigures(len(outputs), 1))
    for group, (name, found) in zip(groups, outputs.items(), strict=True):
        group.suptitle(name, fontsize=11, fontweight="bold")
        distances = normality(found).set_index("element")["distance"]
        panels = group.subplots(down, 2, sharex=True, sharey=True, squeeze=False).flat
        for element, axes in zip(elements, panels, strict=False):
            light_frame(axes)
            values = standardised(found[:, element])
            axes.hist(values, bins=40, range=(-REACH, REACH), density=True, color=ARM_COLOURS[0], alpha=0.6)
            axes.plot(places, norm.pdf(places), color=ARM_COLOURS[1], linewidth=1.4)
            axes.set_title(f"{word} {element}: {distances[element]:.3f}", fontsize=10)
            axes.set_xticks((-4, -2, 0, 2, 4))
            axes.tick_params(labelsize=10)
        for axes in panels:  # one is left of an odd number
            axes.remove()
    words = "standard deviations from the mean\n(in the titles: the distance from the normal law)"
    figure.supxlabel(words, fontsize=11)
    return figure


def traced(study: Study, here: World) -> dict[str, np.ndarray]:
    """The layer's outputs on the server's records after each of ROUNDS."""
    found = {}
    for number in ROUNDS:
        model = (
            played(study, study.arms[0], here, rounds=number)[1].broadcast if number else here.problem.initial
        )
        name = f"after round {number}" if number else "before training"
        found[name] = outputs(here.problem.module(model), here.problem.layer, here.problem.server_x)
    return found


def summary(own: pd.DataFrame) -> dict[str, float]:
    """Medians over the elements, and the largest distance."""
    own = own.assign(skewness=own["skewness"].abs())
    middle = own.median()
    return {
        "elements": len(own),
        "median_skewness": round(middle["skewness"], 3),
        "median_excess_kurtosis": round(middle["excess_kurtosis"], 3),
        "median_distance": round(middle["distance"], 4),
        "largest_distance": round(own["distance"].max(), 4),
    }


def main() -> None:
    single_thread()
    runs, first = [], dict[str, np.ndarray]()
    for cell in parse_sweep(packaged()["fedprof_conditions"]).cells:
        here = build(cell.study, cell.study.study.seeds[0])
        first = first or traced(cell.study, here)
        run, _ = played(cell.study, cell.study.arms[0], here)
        rounds = pd.DataFrame(run.records)[["round", "accuracy"]].round(5)
        runs.append(rounds.assign(arm=cell.study.study.name, seed=here.seed))
    conditions = pd.concat(runs, ignore_index=True)[["arm", "seed", "round", "accuracy"]]
    table = pd.DataFrame([{"model": name, **summary(normality(found))} for name, found in first.items()])
    print(conditions.groupby("arm", sort=False)["accuracy"].agg(["last", "max"]).to_string())
    print(table.to_string(index=False))
    keep("representations", table)
    keep("conditions", conditions, command="representations.py")
    if ASKED:
        drawn = stream(1, "elements").choice(normality(first["before training"])["element"], ELEMENTS, False)
        write_png(DOCS / "representations.png", histograms(first, sorted(drawn.tolist())))


if __name__ == "__main__":
    main()
