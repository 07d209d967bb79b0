"""Writes the tables, plots and pages of a sweep, and makes its summary for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from securefl.accounting.figures import plain
from securefl.report.pages import Picture
from securefl.report.run_page import TESTED
from securefl.report.tables import write_csv, write_png
from securefl.storage.files import subfolder
from securefl.storage.files import write as write_file
from securefl.storage.private_folder import FIELD, NOTICE, private_folder, private_page
from securefl.study.publication import PERSONAL, public
from securefl.sweep import tradeoff, tradeoff_plots
from securefl.sweep.best import caveats, headline
from securefl.sweep.cells import CONFIG, Sweep
from securefl.sweep.page import alarms_of, measure_of, render
from securefl.sweep.run import Facts


def write(sweep: Sweep, out: Path, told: Facts, failed: Mapping[str, str]) -> pd.DataFrame:
    """Write tables, plots and both pages of the finished cells.

    Returns the summary table, which may be empty.
    """
    results = tradeoff.results_table(sweep, told)
    summary = tradeoff.summary_table(sweep, told, results)
    if summary.empty:
        return summary
    private = private_folder(out)
    for name, table in (("results", results), ("summary", summary)):
        write_csv(out / f"{name}.csv", public(table))
        write_csv(private / f"{name}.csv", table, [NOTICE])
    # Tables come first: they are complete even if drawing fails.
    page = out / "sweep.html"
    drawn = _written(page, sweep, told, public(summary), {}, private=False)
    personal = PERSONAL in set(summary["models"])
    _written(page, sweep, told, summary, failed, private=True, figures=None if personal else drawn)
    return summary


def _written(
    page: Path,
    sweep: Sweep,
    told: Facts,
    summary: pd.DataFrame,
    failed: Mapping[str, str],
    *,
    private: bool,
    figures: Sequence[Picture] | None = None,
) -> Sequence[Picture]:
    """Write the page of this summary, and the plots that it does not share. Returns its figures.

    private: whether it is for the person at this machine. figures: those that it shares with another page.
    """
    out = page.parent
    series, others = tradeoff.series_of(sweep, summary), tradeoff.other_axes(sweep, summary)
    measure = measure_of(told)
    if figures is None:
        figures = tradeoff_plots.pictures(series, measure=measure, others=others)
        for picture in figures:
            plots = subfolder((private_folder(out) if private else out) / "plots")
            write_png(plots / f"{picture.name}.png", picture.figure, NOTICE if private else TESTED)
    reproduce = f"securefl sweep {out / CONFIG} --out {out}-again"
    path = private_page(page) if private else page
    text = render(sweep, told, series, failed, reproduce, figures, private=private)
    write_file(path, text)
    return figures


def as_json(
    sweep: Sweep, out: Path, told: Facts, summary: pd.DataFrame, failed: Mapping[str, str]
) -> dict[str, Any]:
    """The summary for scripts. An infinite epsilon is the text "inf", and an unknown value is null.

    `private` has the parts that no epsilon covers: warnings, errors, and accuracies of personal models.
    """
    page = None if summary.empty else str(out / "sweep.html")
    return {
        "cells": len(sweep.cells),
        "accuracy": measure_of(told).words,
        "tested": TESTED,
        "answer": _answer(sweep, public(summary)),
        "accounting": caveats(sweep),
        "summary": _rows(public(summary)),
        "page": page,
        "private": {
            FIELD: NOTICE,
            "page": page and str(private_page(Path(page))),
            "answer": _answer(sweep, summary),
            "failed": dict(failed),
            "warnings": alarms_of(told),
            "summary": _rows(summary),
        },
    }


def _answer(sweep: Sweep, summary: pd.DataFrame) -> str:
    return headline([] if summary.empty else tradeoff.series_of(sweep, summary))


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    # JSON has neither nan nor pandas' missing number.
    rows: list[dict[str, Any]] = plain(table.astype(object).where(table.notna(), None).to_dict("records"))
    return rows
