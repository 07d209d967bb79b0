"""Normality of the outputs of a layer, element by element (FedProf v2, Fig. 2, Propositions 1 and 2).

A profile keeps only mean and variance of each element, and its divergence assumes a normal distribution. This
module measures how far a model's outputs are from that assumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import kstest, kurtosis, norm, skew

from securefl.core.errors import DataError
from securefl.report.style import ARM_COLOURS, blank, light_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
_BINS = 40
_REACH = 4.0
"""The standard deviations to either side of the mean that a panel shows."""


def normality(outputs: Floats) -> pd.DataFrame:
    """A table with one row for each element of the outputs that varies over the records.

    Args:
        outputs: (n, q), the q outputs of a layer for n >= 2 records.

    Returns:
        The columns `element` (its index), `mean`, `deviation` (the standard deviation), `skewness`,
        `excess_kurtosis`, and `distance`: the Kolmogorov-Smirnov distance (0 to 1) from the normal
        distribution with this mean and standard deviation.

    Raises:
        DataError: if outputs are not finite, have another shape, or have fewer than two records.
    """
    found = np.asarray(outputs, dtype=np.float64)
    if found.ndim != 2 or len(found) < 2 or not np.isfinite(found).all():
        raise DataError(f"Expected finite outputs of two or more records, (n, q), got shape {found.shape}.")
    # A constant element is left out: its skewness is 0 / 0.
    elements = np.flatnonzero(np.ptp(found, axis=0) > 0)
    found = found[:, elements]
    scaled = _standardised(found)
    return pd.DataFrame(
        {
            "element": elements,
            "mean": found.mean(axis=0),
            "deviation": found.std(axis=0),
            "skewness": skew(scaled, axis=0),
            "excess_kurtosis": kurtosis(scaled, axis=0),
            "distance": [float(kstest(column, norm.cdf).statistic) for column in scaled.T],
        }
    )


def representations(outputs: Mapping[str, Floats], elements: Sequence[int]) -> Figure:
    """Histograms of standardised elements, with the normal density: a row of panels for each name.

    outputs: (n, q) arrays by name, such as "after 10 rounds". elements: the indices of the drawn elements.
    Raises DataError as `normality` does, and for an element that does not vary.
    """
    figure = blank(height=0.6 + 1.5 * len(outputs))
    panels = figure.subplots(len(outputs), len(elements), sharex=True, sharey=True, squeeze=False)
    for row, (name, found) in zip(panels, outputs.items(), strict=True):
        shapes = normality(found).set_index("element")["distance"]
        for axes, element in zip(row, elements, strict=True):
            if element not in shapes.index:
                raise DataError(
                    f"Expected element {element} to vary over the records, got one value in all. Draw "
                    "another element."
                )
            _panel(axes, found[:, element])
            axes.set_title(f"element {element}, distance {shapes[element]:.3f}", fontsize=8)
        row[0].set_ylabel(name, fontsize=9)
    figure.supxlabel("standard deviations from the mean", fontsize=9)
    return figure


def _panel(axes: Axes, values: Floats) -> None:
    light_frame(axes)
    axes.hist(
        _standardised(values),
        bins=_BINS,
        range=(-_REACH, _REACH),
        density=True,
        color=ARM_COLOURS[0],
        alpha=0.6,
    )
    places = np.linspace(-_REACH, _REACH, 200)
    axes.plot(places, norm.pdf(places), color=ARM_COLOURS[1], linewidth=1.4)
    axes.tick_params(labelsize=8)


def _standardised(values: Floats) -> Floats:
    scaled: Floats = (values - values.mean(axis=0)) / values.std(axis=0)
    return scaled
