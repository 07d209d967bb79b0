"""The command `statement`: the privacy statement of a finished run, for a paper."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.choices import PATH, with_json
from securefl.commands.printing import echo, echo_json
from securefl.core.text_safety import escaped


@click.command(epilog="Example:  securefl statement runs/sweep/cells/epsilon-1 --latex > privacy.tex")
@click.argument("folder", metavar="RUN", type=PATH)
@click.option("--latex", is_flag=True, help="Print LaTeX: a list of topics for each arm.")
@with_json("Print the sentences as JSON, by arm and topic.")
def statement(folder: Path, latex: bool, as_json: bool) -> None:
    """Print the privacy statement of the finished run in the folder RUN, for each of its arms.

    Its topics are what a paper must state: unit, adjacency, delta, epsilon and against whom, its curve,
    mechanism, sampling, composition, trust, and what no epsilon covers. The figures come from the run's
    ledgers, so the command runs on the machine of the run. The folder is only read.
    """
    from securefl.study.privacy_statement import as_latex, as_text, statements

    found = statements(folder)
    if as_json:
        echo_json(found, 2)
    elif latex:
        click.echo(escaped(as_latex(found)), nl=False)
    else:
        echo(as_text(found).rstrip("\n"))
