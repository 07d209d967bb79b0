"""The command `sweep`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import isinf
from pathlib import Path
from typing import Any

import click
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from securefl.errors import ConfigError, SecureFLError
from securefl.files import subfolder
from securefl.study import sweep_page, tradeoff, tradeoff_plots
from securefl.study.commands import end_stopped, printing, text_of
from securefl.study.config import slug
from securefl.study.folder_lock import alone
from securefl.study.interruption import Interrupted, Interruption
from securefl.study.sweep import CONFIG, EPSILON, Cell, Sweep, claim, parse_sweep
from securefl.study.sweep_run import finished, run_cells
from securefl.study.tables import write_csv, write_png


class Bars:
    """A context with a bar for the sweep and one per worker; without a terminal, a line per finished cell."""

    def __init__(self, sweep: Sweep, done: int, workers: int, console: Console) -> None:
        self._console, self._count, self._done = console, len(sweep.cells), done
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("cells", total=self._count, completed=done, figures="")
        self._workers = [
            self._progress.add_task(f"worker {place + 1}", total=1, start=False, figures="")
            for place in range(workers)
        ]

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begun(self, cell: Cell, place: int) -> None:
        study = cell.study
        total = len(study.arms) * len(study.study.seeds) * study.study.rounds
        self._progress.reset(self._workers[place], total=total, figures=cell.name)

    def round(self, place: int, done: int, accuracy: float) -> None:
        self._progress.update(self._workers[place], completed=done)

    def ended(self, cell: Cell, place: int, error: str | None) -> None:
        self._done += 1
        self._progress.update(self._all, completed=self._done)
        self._progress.update(self._workers[place], figures="")
        if error is not None or not self._console.is_terminal:
            what = "finished" if error is None else f"failed: {error}"
            line = f"{self._done}/{self._count}  {cell.name}: {what}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def find(study: str) -> Sweep:
    """A sweep by path, or by the name of a packaged one."""
    try:
        return parse_sweep(text_of(study))
    except ConfigError as error:
        raise ConfigError(f"{study}: {error}") from None


def processors() -> int:
    """How many of the machine's processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write(sweep: Sweep, out: Path, failed: Mapping[str, str]) -> pd.DataFrame:
    """Write tables, plots and the page of what is finished; returns the summary table, empty for nothing."""
    results = tradeoff.results_table(sweep, out)
    summary = tradeoff.summary_table(sweep, out, results)
    if summary.empty:
        return summary
    write_csv(out / "results.csv", results)
    write_csv(out / "summary.csv", summary)
    series = tradeoff.series_of(sweep, summary)
    plots = subfolder(out / "plots")
    for drawing in tradeoff_plots.drawings(series, epsilon_swept=EPSILON in sweep.keys, legend=True):
        write_png(plots / f"{drawing.name}.png", drawing.figure)
    reproduce = f"securefl sweep {out / CONFIG} --out {out}-again"
    sweep_page.write(out / "sweep.html", sweep, out, series, failed, reproduce)
    return summary


def as_json(sweep: Sweep, out: Path, summary: pd.DataFrame, failed: Mapping[str, str]) -> dict[str, Any]:
    """The summary for scripts; an infinite epsilon is the text "inf", a value that is not known null."""
    rows = [{str(key): _plain(value) for key, value in row.items()} for row in summary.to_dict("records")]
    page = None if summary.empty else str(out / "sweep.html")
    return {"cells": len(sweep.cells), "failed": dict(failed), "summary": rows, "page": page}


def _plain(value: Any) -> Any:
    if pd.isna(value):
        return None
    if isinstance(value, float) and isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


@click.command(epilog="Example:  securefl sweep my_sweep.toml --out runs/sweep --workers 4")
@click.argument("study")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the sweep; default runs/<name of the study>-sweep.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes that run cells side by side, one thread each; default: as many as processors.",
)
@click.option("--json", "as_text", is_flag=True, help="Print the results as JSON, and nothing else.")
def sweep(study: str, out: Path | None, workers: int | None, as_text: bool) -> None:
    """Run STUDY, a TOML file with a section [sweep], once for every cell of its grid.

    \b
    [sweep.grid]                            the product of all lists
    "privacy.epsilon" = [0.5, 1.0, inf]
    [[sweep.list]]                          the grid is taken for each of these
    "privacy.noise" = "central"

    Keys are dotted paths into the study; "arm.<option>" is an option of every arm. The folder gets a run
    folder per cell, results.csv, summary.csv, plots and sweep.html, a page of trade-offs. Run the same
    command again after an interruption: it goes on, and finished cells are not run again.
    """
    found = find(study)
    out = out or Path("runs") / f"{slug(found.name)}-sweep"
    console = Console(stderr=True, quiet=as_text)
    with alone(out, printing(console)):
        _swept(found, out, workers or processors(), console, as_text)


def _swept(found: Sweep, out: Path, workers: int, console: Console, as_text: bool) -> None:
    """Run what is left of a sweep in its folder, and tell of it."""
    claim(out, found)
    done = sum(finished(found.home(out, cell)) for cell in found.cells)
    workers = min(workers, max(1, len(found.cells) - done))
    go_on = f"securefl sweep {out / CONFIG} --out {out}"
    if done:
        line = f"Going on with the sweep in {out}: {done} of {len(found.cells)} cells are finished."
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    stop = Interruption(printing(console))
    try:
        with stop:
            with Bars(found, done, workers, console) as bars:
                failed = run_cells(found, out, workers=workers, watch=bars, stop=stop)
            with stop.finishing("the report"):
                summary = write(found, out, failed)
    except Interrupted as interrupted:
        end_stopped(interrupted, go_on)
    if as_text:
        click.echo(json.dumps(as_json(found, out, summary, failed), indent=2))
    elif not summary.empty:
        click.echo(f"{len(found.cells) - len(failed)} of {len(found.cells)} cells are finished.")
        click.echo(f"Tables: {out / 'results.csv'}, {out / 'summary.csv'}")
        click.echo(f"Page: {out / 'sweep.html'}")
    if failed:
        what = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise SecureFLError(
            f"{len(failed)} of {len(found.cells)} cells failed: {what.rstrip('.')}. "
            f"To try them again: {go_on}"
        )
