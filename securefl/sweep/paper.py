"""The figure and the table of a paper, from finished runs and sweeps (see `gathered`)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from securefl.core.errors import ConfigError
from securefl.report.latex import tabular
from securefl.report.paper import styled
from securefl.report.significance import student
from securefl.report.style import legend
from securefl.report.tables import csv_of
from securefl.sweep.best import table
from securefl.sweep.gathered import Gathered
from securefl.sweep.tradeoff import Series
from securefl.sweep.tradeoff_plots import accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawn(found: Gathered, *, width: float, style: Path | None = None) -> Figure:
    """The figure of accuracy against epsilon, of this width in inches, in a person's own style.

    Raises ConfigError without a finite epsilon, and for a style that is not only data.
    """
    if not any(0 < point.at < inf for own in found.series for point in own.points()):
        raise ConfigError(
            f"Expected a finite epsilon to draw accuracy against, got none. {' '.join(found.notes)} Name a "
            "run with noise ([privacy] epsilon, or [dpsgd]). Its folder's plots have curves over rounds."
        )
    with styled(style):
        drawing = accuracy(found.series, found.measure, width, found.unprotected)
        legend(drawing.figure)
        # Here, since text that is made later has no sizes of this style.
        drawing.figure.draw_without_rendering()
    return drawing.figure


def numbers(series: Sequence[Series]) -> pd.DataFrame:
    """A row for each series and epsilon: the numbers of figure and table, and of a paper's own plots.

    Columns: panel, method, unit, adjacency, delta, adversaries, epsilon_asked, epsilon (the largest one that
    a ledger states, over the seeds), accuracy (the mean over the seeds), half_width (of its 95 % interval by
    Student's t, nan for one seed), seeds, lost (seeds without an accuracy), megabytes (of a run, mean).
    """
    rows = []
    for own in series:
        for point in own.points():
            there = own.rows[own.rows["asked"] == point.asked]
            mean, half = student(point.values)
            rows.append(
                {
                    "panel": ", ".join(own.panel),
                    "method": own.line,
                    **{name: there[name].iloc[0] for name in ("unit", "adjacency", "delta", "adversaries")},
                    "epsilon_asked": point.asked,
                    "epsilon": point.at,
                    "accuracy": mean,
                    "half_width": half,
                    "seeds": len(there),
                    "lost": point.missing,
                    "megabytes": float((there["bytes_up"] + there["bytes_down"]).mean()) / 1e6,
                }
            )
    return pd.DataFrame(rows)


def as_csv(series: Sequence[Series]) -> str:
    """The numbers as CSV."""
    return csv_of(numbers(series))


def as_markdown(series: Sequence[Series]) -> str:
    """The table of methods by epsilon in Markdown."""
    head, *rows = ([word.replace("|", "\\|") for word in row] for row in table(series))
    ruled = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in ruled)


def as_latex(series: Sequence[Series]) -> str:
    """The table of methods by epsilon in LaTeX, for the packages booktabs and graphicx."""
    return tabular(table(series))
