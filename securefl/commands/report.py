"""The command `report`: writes the report of a finished run again."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.choices import FOLDER, PATH, with_json
from securefl.commands.telling import end_told, tell, with_run_code
from securefl.core.lazy import loading


@click.command(epilog="Example:  securefl report runs/gas")
@click.argument("folder", type=PATH)
@click.option(
    "--out",
    type=FOLDER,
    help="Folder for page, tables and plots; default FOLDER.",
)
@with_run_code
@with_json("Print the results as JSON, and nothing else.")
def report(folder: Path, out: Path | None, run_code: bool, trusted: tuple[Path, ...], as_json: bool) -> None:
    """Write the report of the finished run in FOLDER again.

    With --out, FOLDER is only read and may be on read-only media. Warnings and the exit code are those of the
    run (see `securefl run --help`). A run whose study names code needs --run-code, since the report needs
    the records and models that this code makes.
    """
    with loading("securefl.study.session"):
        from securefl.study import session

    found, page = session.reopen(folder, out, run_code=run_code, trusted=trusted)
    tell(found, page, as_json)
    end_told({"": found.alarms}, found.learnt)
