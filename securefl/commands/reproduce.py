"""The command `reproduce`: measures a published table again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.commands.printing import echo
from securefl.commands.telling import end_stopped, end_told, printing, with_backend, with_workers
from securefl.core.errors import SecureFLError
from securefl.report.terminal import say

if TYPE_CHECKING:
    from securefl.published.table import Table
    from securefl.study.config import RuntimeBackend

_EXAMPLES = """\b
Example:  securefl reproduce
          securefl reproduce fedprof_v2_table_3
          securefl reproduce fedprof_v2_table_3 --json --workers 2
          RAY_ADDRESS=10.0.0.1:6379 securefl reproduce fedprof_v2_table_3 --backend ray
"""


@click.command(epilog=_EXAMPLES)
@click.argument("table", required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs") / "tables",
    show_default=True,
    help="Folder of all tables. Each table has a subfolder of its name.",
)
@with_workers
@with_backend
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, and nothing else.")
def reproduce(
    table: str | None, out: Path, workers: int | None, backend: RuntimeBackend | None, as_json: bool
) -> None:
    """Measure a published TABLE again, and print its figures beside the published ones.

    Without TABLE, the command lists the tables with their data, the minutes that each takes on two cores, and
    its state: not begun, n of m cells, or done. A cell is one system under one seed.

    The table's folder gets a run folder for each part, with a report, and table.csv with every figure and
    every difference of data and scale. After an interruption, run the same command again: each cell resumes
    after its last finished round. The exit code is 4 if an arm learnt nothing (see `securefl run --help`).
    """
    from securefl.published import catalogue

    if table is None:
        _list(out, as_json)
    else:
        _reproduce(table, catalogue.table_named(table), out, workers, backend, as_json)


def _list(out: Path, as_json: bool) -> None:
    from securefl.published import catalogue

    rows = [_row(name, table, out / name) for name, table in catalogue.tables().items()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        minutes = f"{row['minutes']:>4} min"
        echo(f"{row['name']:<{width}}  {minutes}  {row['state']:<14}  {row['title']} ({row['source']})")
        for why in row["missing"].values():
            echo(f"{'':<{width}}  {why}")


def _row(name: str, table: Table, folder: Path) -> dict[str, Any]:
    from securefl.published import catalogue
    from securefl.published.reproduction_status import standing

    data = catalogue.data_of(table)
    try:
        state = str(standing(table, folder))
    except SecureFLError as error:  # a damaged or older folder must not hide the other tables
        state = f"unusable: {error}"
    return {
        "name": name,
        "title": table.title,
        "source": table.source,
        "minutes": table.minutes,
        "twin_of": table.twin_of,
        "data": data,
        "missing": catalogue.missing(data),
        "state": state,
    }


def _reproduce(
    name: str,
    table: Table,
    out: Path,
    workers: int | None,
    backend: RuntimeBackend | None,
    as_json: bool,
) -> None:
    from rich.console import Console

    from securefl.published import beside
    from securefl.published.differences import differences
    from securefl.published.progress import Bar
    from securefl.published.reproduction_status import home, standing
    from securefl.published.run import run_table
    from securefl.study.interruption import Interrupted, Interruption

    folder = out / name
    console = Console(stderr=True, quiet=as_json)
    line = printing(console)
    began = time.perf_counter()
    if (now := standing(table, folder)).begun:
        say(console, f"Going on with {name} in {folder}: {now}.")
    stop = Interruption(line)
    try:
        with stop, Bar(table, console) as bar:
            results = run_table(
                table, folder, bar.tell, workers=workers, backend=backend, stop=stop, say=line
            )
    except Interrupted as interrupted:
        end_stopped(interrupted, f"securefl reproduce {name} --out {out}")
    pairs = beside.beside(table, {name: own.metrics for name, own in results.items()})
    path = folder / beside.CSV
    beside.write(path, name, table, pairs)
    if as_json:
        told = {
            "table": name,
            "version": table.version,
            "figures": beside.as_rows(pairs),
            "warnings": {part: [vars(alarm) for alarm in own.alarms] for part, own in results.items()},
            "differences": differences(table),
            "csv": str(path),
            "reports": [str(home(folder, part) / "report.html") for part in table.parts],
        }
        click.echo(json.dumps(told, indent=2))
    else:
        echo("\n".join(beside.sentences(table, pairs)))
        echo(f"Table: {path}")
        console.print(f"({time.perf_counter() - began:.0f} s)", highlight=False)
    warnings = [f"{part}: {alarm.text}" for part, own in results.items() for alarm in own.alarms]
    end_told(warnings, all(own.learnt for own in results.values()))
