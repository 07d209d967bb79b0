"""The command `reproduce`: measures a published table again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.commands.choices import FOLDER, completing, with_json
from securefl.commands.printing import echo, echo_json
from securefl.commands.telling import end_told, printing, stoppable, with_workers
from securefl.core.errors import SecureFLError
from securefl.core.installed import entry_points
from securefl.report.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from securefl.published.table import Table
    from securefl.study.results import Results

_EXAMPLES = """\b
Example:  securefl reproduce
          securefl reproduce fedprof_v2_table_3
          securefl reproduce fedprof_v2_table_3 --json --workers 2
          securefl reproduce fedprof_v2_table_3 --tuned
          securefl reproduce fedprof_v2_table_3_twin --seeds 8 --rounds 50
"""


CHOOSING, WIDENED = "choosing", "beyond-edges"
"""The folders of the runs that choose settings, in that of a tuned table."""


def _names() -> list[str]:
    return sorted(point.name for point in entry_points(group="securefl.tables"))


@click.command(epilog=_EXAMPLES)
@click.argument("table", required=False, shell_complete=completing(_names))
@click.option(
    "--out",
    type=FOLDER,
    default=Path("runs") / "tables",
    show_default=True,
    help="Folder of all tables. Each table has a subfolder of its name.",
)
@with_workers
@click.option(
    "--tuned",
    is_flag=True,
    help="First choose each system's learning rate, and its own option, by a half of the test records. The "
    "other half then measures.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), help="Measure with so many seeds, from 1.")
@click.option("--rounds", type=click.IntRange(min=1), help="Measure with so many rounds.")
@with_json("Print the results as JSON, and nothing else.")
def reproduce(
    table: str | None,
    out: Path,
    workers: int | None,
    tuned: bool,
    seeds: int | None,
    rounds: int | None,
    as_json: bool,
) -> None:
    """Measure a published TABLE again, and print its figures beside the published ones.

    Without TABLE, the command lists the tables with their data, the minutes that each takes on two cores, and
    its state: not begun, n of m cells, or done. A cell is one system under one seed. A table begun with
    --tuned has a second state.

    The table's folder gets a run folder for each part, with a report. table.csv has every figure of every
    seed, each claim, and every difference of data and scale; traces.csv has accuracies by round. Pictures
    such as traces-rounds.png have the accuracy of all systems over the rounds, time or energy that the table
    counts, with the paper's figures beside if they are of the same task.

    After an interruption, run the same command again: each cell resumes after its last finished round. For a
    finished table it renews table.csv and the pictures. The exit code is 4 if nothing was learnt (see
    `securefl run --help`).

    With --tuned every system has the same number of candidates, and two more beyond each edge of its grid at
    which the best one is. It takes three to five times as long, in the folder TABLE-tuned. A table with
    --seeds or --rounds has a folder of its own too, such as TABLE-seeds-8.

    A difference has a p-value only if so many seeds can make it significant beside so many rivals; else the
    table says how many could.
    """
    from securefl.published import table as published

    sizes = [f"--{word} {number}" for word, number in (("seeds", seeds), ("rounds", rounds)) if number]
    flags = [*(["--tuned"] if tuned else []), *sizes]
    if table is None:
        if flags:
            raise click.UsageError(f"Expected a TABLE with {flags[0]}, got none.")
        _list(out, as_json)
    else:
        from securefl.published.runs import resized

        found = resized(published.table_named(table), seeds, rounds)
        _reproduce(table, found, out, flags, workers=workers, as_json=as_json)


def _list(out: Path, as_json: bool) -> None:
    from securefl.published import table as published

    rows = [_row(name, table, out) for name, table in published.tables().items()]
    if as_json:
        echo_json(rows, 2)
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        minutes = f"{row['minutes']:>4} min"
        echo(f"{row['name']:<{width}}  {minutes}  {row['state']:<14}  {row['title']} ({row['source']})")
        if row["tuned"]:
            echo(f"{'':<{width}}  with --tuned: {row['tuned']}")
        for why in row["missing"].values():
            echo(f"{'':<{width}}  {why}")


def _row(name: str, table: Table, out: Path) -> dict[str, Any]:
    from securefl.published import table as published
    from securefl.published.runs import standing

    return {
        "name": name,
        "title": table.title,
        "source": table.source,
        "minutes": table.minutes,
        "twin_of": table.twin_of,
        "data": table.data,
        "missing": published.missing(table.data),
        "state": _state(lambda: str(standing(table, out / name))),
        "tuned": _state(lambda: _tuned_state(table, out / f"{name}-tuned")),
    }


def _state(state: Callable[[], str]) -> str:
    try:
        return state()
    except SecureFLError as error:  # a damaged or older folder must not hide the other tables
        return f"unusable: {error}"


def _tuned_state(table: Table, folder: Path) -> str:
    """The state of the table with --tuned, empty if it was never begun."""
    if not folder.is_dir():
        return ""
    from securefl.published.comparison import CSV
    from securefl.published.runs import choosing, standing

    first = choosing(table)
    assert first is not None
    chosen = standing(first, folder / CHOOSING)
    if chosen.done < chosen.of:
        return f"choosing, {chosen}"
    return "done" if (folder / CSV).is_file() else "chosen, measuring"


_Run = Callable[["Table", Path], dict[str, "Results"]]
"""Measures a table, or goes on, in a folder."""


def _reproduce(
    name: str, table: Table, out: Path, flags: Sequence[str], *, workers: int | None, as_json: bool
) -> None:
    from rich.console import Console

    from securefl.published.comparison import with_figures
    from securefl.published.runs import Bar, run_table, standing

    console = Console(stderr=True, quiet=as_json)
    began = time.perf_counter()
    folder = out / "-".join([name, *(flag.removeprefix("--").replace(" ", "-") for flag in flags)])
    command = " ".join(["securefl reproduce", name, *flags])

    def run(part: Table, home: Path) -> dict[str, Results]:
        if (now := standing(part, home)).begun:
            say(console, f"Going on with {name} in {home}: {now}.")
        with stoppable(console, f"{command} --out {out}") as stop, Bar(part, console) as bar:
            return run_table(part, home, bar.tell, workers=workers, stop=stop, say=printing(console))

    if "--tuned" in flags:
        table, results = _run_tuned(table, folder, run, console)
    else:
        results = run(table, folder)
    metrics = {part: with_figures(own, table.measures) for part, own in results.items()}
    _told(name, command, folder, table, results, metrics, as_json)
    console.print(f"({time.perf_counter() - began:.0f} s)", highlight=False)
    end_told({part: own.alarms for part, own in results.items()}, all(own.learnt for own in results.values()))


def _run_tuned(table: Table, folder: Path, run: _Run, console: Console) -> tuple[Table, dict[str, Results]]:
    """The table as it is printed, and the results of the runs that measured it."""
    from securefl.published import runs
    from securefl.published.comparison import with_figures

    console.print(runs.GRID, highlight=False)
    tried = None
    for home in (CHOOSING, WIDENED):
        if (asked := runs.choosing(table, tried)) is not None:
            played = run(asked, folder / home)
            found = {name: with_figures(own, table.measures) for name, own in played.items()}
            tried = runs.scores(table, found, tried)
    assert tried is not None
    for line in (chosen := [*runs.in_words(table, tried)]):
        console.print(line, highlight=False)
    return runs.tuned(table, chosen), run(runs.measured(table, tried), folder / "measured")


def _told(
    name: str,
    command: str,
    folder: Path,
    table: Table,
    results: Mapping[str, Results],
    metrics: Any,
    as_json: bool,
) -> None:
    from securefl.published import comparison, traces
    from securefl.published.table import differences
    from securefl.storage.private_folder import PRIVATE

    figures = comparison.write(folder, command, table, metrics)
    path = folder / comparison.CSV
    drawn = traces.write(folder, table, metrics, comparison.values(table, metrics))
    if not as_json:
        echo("\n".join(comparison.lines(table, figures)))
        echo(f"Table: {path}")
        for picture in drawn:
            echo(f"Traces: {picture}")
        return
    told = {
        "table": name,
        "version": table.version,
        "figures": comparison.rows(figures),
        "claims": comparison.claims(table, figures),
        "warnings": {part: [vars(alarm) for alarm in own.alarms] for part, own in results.items()},
        "differences": differences(table),
        "csv": str(path),
        "traces": [str(picture) for picture in drawn],
        "reports": sorted(str(page) for page in folder.glob("**/report.html") if page.parent.name != PRIVATE),
    }
    echo_json(told, 2)
