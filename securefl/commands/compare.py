"""The command `compare`: puts finished runs side by side."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import click

from securefl.commands.choices import NEW_FILE, PATH, with_json
from securefl.commands.printing import echo, echo_json, echo_table


@click.command(epilog="Example:  securefl compare runs/a runs/b runs/sweep -o compare.html")
@click.argument("runs", metavar="RUN|SWEEP...", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--out",
    type=NEW_FILE,
    help="The HTML page to write; by default none.",
)
@with_json("Print the comparison as JSON, and nothing else.")
def compare(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Put the finished runs in the folders RUN side by side: what differs, and how they ended.

    A SWEEP stands for its finished cells. For accuracy against epsilon, see `securefl figure`.

    A table has a row for each arm, and how it ended beside the arm of the same name in the first RUN, seed by
    seed. With six paired seeds or more there is a p of Wilcoxon's signed-rank test, corrected by Holm's rule;
    with fewer it has no power, and if a seed's model diverged nothing is tested; a line says so. The page of
    -o has all curves in one picture. The folders are only read. Runs that are tested on different records, or
    that measure another thing, are refused. Where records are dealt to clients differently, seeds are not
    paired, and a line says so.
    On the machine of the runs, accuracies of personal models are shown too; they are not for publication.
    """
    from securefl.report.pages import require_page
    from securefl.storage.files import write
    from securefl.study import comparison as report
    from securefl.sweep.gathered import run_folders

    if out is not None:
        require_page(out)
    places = [run_folders(folder) for folder in runs]
    found = report.compared([home for homes, _ in places for home in homes])
    found = replace(found, notes=[*(note for _, own in places for note in own), *found.notes])
    if out is not None:
        words = ["securefl", "compare", *map(str, runs), "-o", str(out)]
        write(out, report.page(found, shlex.join(words)))
    if as_json:
        echo_json(report.as_json(found) | ({"page": str(out)} if out else {}), 2)
        return
    for head, *rows in report.tables(found):
        if rows:
            echo_table(head, rows)
            echo("")
    if not found.differences:
        echo("The configurations are the same.")
    for line in found.notes:
        echo(line)
    if out is not None:
        echo(f"Page: {out}")
