"""Where a protocol places its clients: a map of them, coloured by the label that each has most of."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from securefl.report.style import arms_of, blank, checked, legend, light_frame, look


def embedding(places: pd.DataFrame) -> Figure:
    """The clients at their places in the plane (FedCor, Fig. 7, without t-SNE); a panel per arm.

    places: columns arm, client, label (the most frequent one of its records), first, second. Directions are
    those of the largest spread, so neighbours in the figure are neighbours in the embedding; the axes have no
    unit.
    Raises DataError for missing columns or an empty frame.
    """
    data = checked(places, ("arm", "client", "label", "first", "second"))
    arms, labels = arms_of(data), sorted(data["label"].astype(str).unique(), key=lambda one: (len(one), one))
    figure = blank(height=0.9 + 3.8 * len(arms))
    panels = figure.subplots(len(arms), 1, squeeze=False)[:, 0]
    for axes, arm in zip(panels, arms, strict=True):
        light_frame(axes)
        for number, label in enumerate(labels):
            own = data[(data["arm"] == arm) & (data["label"].astype(str) == label)]
            axes.scatter(
                own["first"].to_numpy(dtype=float),
                own["second"].to_numpy(dtype=float),
                s=34,
                color=look(number).colour,
                marker=look(number).marker,
                alpha=0.85,
                linewidths=0,
                label=f"mostly label {label}" if label else "clients",
            )
        axes.set_title(arm, fontsize=11, loc="left")
        axes.set_xlabel("first direction")
        axes.set_ylabel("second direction")
        spread = np.abs(data[["first", "second"]].to_numpy(dtype=float))
        reach = 1.05 * max(float(np.nanmax(spread)), 1e-9)
        axes.set_xlim(-reach, reach)
        axes.set_ylim(-reach, reach)
    legend(figure, [f"mostly label {label}" for label in labels])
    return figure
