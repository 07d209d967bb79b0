"""The command `table`: final accuracies with their intervals, as a table of a paper."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.choices import PATH, with_private
from securefl.commands.printing import echo
from securefl.core.text_safety import escaped

_EXAMPLES = """\b
Examples:  securefl table runs/sweep --latex > table.tex
           securefl table runs/a runs/b --csv > numbers.csv
"""


@click.command(epilog=_EXAMPLES)
@click.argument("folders", metavar="RUN|SWEEP...", nargs=-1, required=True, type=PATH)
@click.option("--latex", is_flag=True, help="LaTeX, for the packages booktabs and graphicx, not Markdown.")
@click.option("--csv", is_flag=True, help="Numbers alone: a row for each method and epsilon.")
@with_private
def table(folders: tuple[Path, ...], latex: bool, csv: bool, private: bool) -> None:
    """Print the final accuracy of finished runs and sweeps: a row for each method, a column for each epsilon.

    An accuracy is the mean over the seeds; ± is its 95 % interval by Student's t. The folders are only read.
    Runs of one source that are tested on different records, or by another measure, are refused.
    """
    from securefl.sweep import paper
    from securefl.sweep.gathered import gather

    if latex and csv:
        raise click.UsageError("Expected --latex or --csv, got both. Give one.")
    found = gather(folders, private=private)
    form = paper.as_latex if latex else paper.as_csv if csv else paper.as_markdown
    click.echo(escaped(form([*found.series, *found.unprotected])), nl=False)
    for note in found.notes:
        echo(note, err=True)
