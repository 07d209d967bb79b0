"""The command `flower check`: rehearses a Flower app, and says what a run would refuse."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from securefl.commands.choices import with_json
from securefl.commands.exit_codes import ExitCode
from securefl.commands.printing import echo, echo_json
from securefl.core.installed import needing


@click.command(epilog="Example:  securefl flower check examples/flower_secure_grid --nodes 4")
@click.argument("app", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--nodes",
    type=click.IntRange(1, 2**20),
    help="How many nodes connect; default: one for each client of the server's roster, or 10. In a "
    "simulation of two-server or CKKS sums one of them is the key holder.",
)
@click.option("--no-training", is_flag=True, help="Load the app, and have no client train and evaluate.")
@with_json()
def check(app: Path, nodes: int | None, no_training: bool, as_json: bool) -> None:
    """Say what a run of the Flower app in APP would refuse, before it runs: exit code 3 if anything.

    This runs the app's own code in this process, as you: its server up to the start of its strategy, and one
    client's training and evaluation on the records of partition 0. Nothing is sent. Check an app that you
    would run on this machine anyway.
    """
    with needing("flower", "to check its apps"):
        from securefl.flower.rehearsal import rehearse

    if not as_json:
        echo(f"Running the code of {app} on this machine, to the start of its strategy.", err=True)
    with redirect_stdout(sys.stderr):  # the app may print, and this command's own output is for programs
        found = rehearse(app, nodes=nodes, training=not no_training)
    if as_json:
        refused = [{"where": one.where, "what": one.what} for one in found.refused]
        echo_json({"app": str(app), "refused": refused, "notes": found.notes}, 1)
    else:
        # The texts may quote the app's own names and errors, which may have control characters.
        for one in found.refused:
            echo(f"refused ({one.where}): {one.what}")
        for note in found.notes:
            echo(f"note: {note}")
        echo(f"{len(found.refused) or 'Nothing'} would be refused.")
    if found.refused:
        raise SystemExit(ExitCode.REFUSED)
