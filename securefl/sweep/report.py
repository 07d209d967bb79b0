"""Writes the tables, plots and page of a sweep, and makes its summary for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from securefl.accounting.figures import plain
from securefl.report.run_page import TESTED
from securefl.report.tables import write_csv, write_png
from securefl.storage.files import subfolder
from securefl.storage.private_folder import FIELD, NOTICE, private_folder
from securefl.study.publication import PERSONAL, public
from securefl.sweep import tradeoff, tradeoff_plots
from securefl.sweep.best import caveats, headline, sentences
from securefl.sweep.cells import CONFIG, Sweep
from securefl.sweep.page import alarms_of, measure_of
from securefl.sweep.page import write as write_page


def write(sweep: Sweep, out: Path, failed: Mapping[str, str]) -> pd.DataFrame:
    """Write tables, plots and the page of the finished cells.

    Returns the summary table, which may be empty.
    """
    results = tradeoff.results_table(sweep, out)
    summary = tradeoff.summary_table(sweep, out, results)
    if summary.empty:
        return summary
    private = private_folder(out)
    for name, table in (("results", results), ("summary", summary)):
        write_csv(out / f"{name}.csv", public(table))
        write_csv(private / f"{name}.csv", table, [NOTICE])
    # Tables come first: they are complete even if drawing fails.
    series = tradeoff.series_of(sweep, summary)
    personal = PERSONAL in set(summary["models"])
    plots = subfolder((private if personal else out) / "plots")
    notice = NOTICE if personal else TESTED
    measure, others = measure_of(sweep, out), tradeoff.other_axes(sweep, summary)
    for drawing in tradeoff_plots.drawings(series, legend=True, measure=measure, others=others):
        write_png(plots / f"{drawing.name}.png", drawing.figure, notice)
    reproduce = f"securefl sweep {out / CONFIG} --out {out}-again"
    write_page(out / "sweep.html", sweep, out, series, failed, reproduce, others)
    return summary


def as_json(sweep: Sweep, out: Path, summary: pd.DataFrame, failed: Mapping[str, str]) -> dict[str, Any]:
    """The summary for scripts. An infinite epsilon is the text "inf", and an unknown value is null.

    `private` has the parts that no epsilon covers: warnings, errors, and accuracies of personal models.
    """
    page = None if summary.empty else str(out / "sweep.html")
    return {
        "cells": len(sweep.cells),
        "accuracy": measure_of(sweep, out).words,
        "tested": TESTED,
        "sentences": [] if summary.empty else _sentences(tradeoff.series_of(sweep, summary)),
        "accounting": caveats(sweep),
        "summary": _rows(public(summary)),
        "page": page,
        "private": {
            FIELD: NOTICE,
            "failed": dict(failed),
            "warnings": alarms_of(sweep, out),
            "summary": _rows(summary),
        },
    }


def _sentences(series: Sequence[tradeoff.Series]) -> list[str]:
    return [*filter(None, [headline(series)]), *sentences(series)]


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): _plain(value) for key, value in row.items()} for row in table.to_dict("records")]


def _plain(value: Any) -> Any:
    # JSON has neither nan nor pandas' missing number.
    if pd.isna(value):
        return None
    return plain(value) if isinstance(value, float) else value
