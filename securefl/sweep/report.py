"""The tables, plots and page of a sweep, and its summary for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from securefl.accounting.figures import plain
from securefl.report.tables import write_csv, write_png
from securefl.storage.files import subfolder
from securefl.sweep import tradeoff, tradeoff_plots
from securefl.sweep.best import caveats, sentences
from securefl.sweep.cells import CONFIG, Sweep
from securefl.sweep.page import alarms_of, measure_of
from securefl.sweep.page import write as write_page
from securefl.sweep.section import EPSILON


def write(sweep: Sweep, out: Path, failed: Mapping[str, str]) -> pd.DataFrame:
    """Write tables, plots and the page of the finished cells.

    Returns the summary table, which may be empty.
    """
    results = tradeoff.results_table(sweep, out)
    summary = tradeoff.summary_table(sweep, out, results)
    if summary.empty:
        return summary
    write_csv(out / "results.csv", results)
    write_csv(out / "summary.csv", summary)
    # Tables come first: they are whole even where drawing fails.
    series = tradeoff.series_of(sweep, summary)
    plots = subfolder(out / "plots")
    swept, measure = EPSILON in sweep.keys, measure_of(sweep, out)
    for drawing in tradeoff_plots.drawings(series, epsilon_swept=swept, legend=True, measure=measure):
        write_png(plots / f"{drawing.name}.png", drawing.figure)
    reproduce = f"securefl sweep {out / CONFIG} --out {out}-again"
    write_page(out / "sweep.html", sweep, out, series, failed, reproduce)
    return summary


def as_json(sweep: Sweep, out: Path, summary: pd.DataFrame, failed: Mapping[str, str]) -> dict[str, Any]:
    """The summary for scripts. An infinite epsilon is the text "inf", and an unknown value is null."""
    rows = [{str(key): _plain(value) for key, value in row.items()} for row in summary.to_dict("records")]
    page = None if summary.empty else str(out / "sweep.html")
    return {
        "cells": len(sweep.cells),
        "failed": dict(failed),
        "warnings": alarms_of(sweep, out),
        "accuracy": measure_of(sweep, out).words,
        "sentences": [] if summary.empty else sentences(tradeoff.series_of(sweep, summary)),
        "accounting": caveats(sweep),
        "summary": rows,
        "page": page,
    }


def _plain(value: Any) -> Any:
    # JSON has no nan, and no missing number of pandas.
    if pd.isna(value):
        return None
    return plain(value) if isinstance(value, float) else value
