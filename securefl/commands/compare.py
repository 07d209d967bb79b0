"""The command `compare`: puts finished runs side by side."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from securefl.commands.choices import NEW_FILE, PATH, with_json
from securefl.commands.printing import echo, echo_json


@click.command(epilog="Example:  securefl compare runs/a runs/b -o compare.html")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--out",
    type=NEW_FILE,
    help="The HTML page to write; by default none.",
)
@with_json("Print the comparison as JSON, and nothing else.")
def compare(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Put the finished runs in the folders RUN side by side: what differs, and how they ended.

    Each arm is compared with the arm of the same name in the first RUN, seed by seed. With six paired seeds
    or more there is a p of Wilcoxon's signed-rank test, corrected by Holm's rule; with fewer it has no power,
    and the line says so. The page of -o has all curves in one picture. The folders are only read.
    Runs that are tested on different records, or that measure another thing, are refused. Where records are
    dealt to clients differently, seeds are not paired, and a line says so.
    On the machine of the runs, accuracies of personal models are shown too; they are not for publication.
    """
    from securefl.report.pages import require_page
    from securefl.storage.files import write
    from securefl.study import comparison_report as report
    from securefl.study.comparison import compared

    if out is not None:
        require_page(out)
    found = compared(runs)
    if out is not None:
        words = ["securefl", "compare", *map(str, runs), "-o", str(out)]
        write(out, report.page(found, shlex.join(words)))
    if as_json:
        echo_json(report.as_json(found) | ({"page": str(out)} if out else {}), 2)
        return
    click.echo(report.answer(found))
    click.echo(report.differing(found))
    for key, values in found.differences.items():
        told = ", ".join(
            f"{report.shown(v)} in {run.name}" for run, v in zip(found.runs, values, strict=True)
        )
        echo(f"  {key}: {told}")
    for own in found.series:
        echo(f"{own.label}: {report.accuracy(own)} after {own.rounds} rounds, {own.models} models")
    for line in (*map(report.gap_words, found.gaps), *report.untested(found), *found.notes):
        echo(line)
    if out is not None:
        echo(f"Page: {out}")
