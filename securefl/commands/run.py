"""The command `run`: runs a study, or resumes it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.commands.choices import FOLDER, completing, with_json
from securefl.commands.telling import find, on_workers, run_and_tell, with_trust, with_workers
from securefl.study.packaged import packaged

if TYPE_CHECKING:
    from securefl.study.round_events import Callback
    from securefl.training.devices import Wanted


_EXAMPLES = """\b
Example:  securefl run gas_turbine --out runs/gas
"""


@click.command(epilog=_EXAMPLES)
@click.argument("study", shell_complete=completing(packaged))
@click.option(
    "--out",
    type=FOLDER,
    help="Run folder; default runs/<name of the study>.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Take a finished run on to this number of rounds, if its noise and budget allow it.",
)
@with_workers
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    help="The device for models, in place of the study's [runtime] device.",
)
@click.option(
    "--tensorboard",
    type=FOLDER,
    help="Folder for TensorBoard, which shows finished rounds.",
)
@with_trust
@click.option("--mlflow", metavar="URI", help="MLflow server or folder, which shows finished rounds.")
@with_json("Print the results as JSON, and nothing else.")
def run(
    study: str,
    out: Path | None,
    rounds: int | None,
    workers: int | None,
    device: Wanted | None,
    tensorboard: Path | None,
    mlflow: str | None,
    trusted: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Run STUDY, a TOML file or the name of a packaged study (see `securefl studies`).

    The run folder gets config, tables (CSV), plots and report.html, which may be published. Its folder
    `private` gets results that are not for publication, since no epsilon covers them: which clients answered,
    reasons, an observer's figures, ledgers, checkpoints, and a report.html with all figures. After an
    interruption, run the same command again: it resumes after the last finished round, and no finished round
    releases a value again.

    The exit code is 4 if the run finished, but no arm is better than one constant answer, an arm's model is
    diverged at the end, or nobody answered it in the second half of its rounds. Over records of your own
    under a finite epsilon, it follows from no accuracy. Warnings on stderr, in the report and in --json give
    the reason.
    """
    from securefl.study.config import slug

    found = on_workers(find(study, trusted), workers)
    if device is not None:
        # The study's text does not change, since the run folder is bound to it.
        found = replace(found, runtime=replace(found.runtime, device=device))
    with ExitStack() as stack:
        callbacks: list[Callback] = []
        if tensorboard is not None:
            from securefl.api.callbacks import TensorBoard

            callbacks.append(stack.enter_context(TensorBoard(tensorboard)))
        if mlflow is not None:
            from securefl.api.callbacks import MLflow

            callbacks.append(stack.enter_context(MLflow(mlflow, experiment=found.study.name)))
        run_and_tell(found, out or Path("runs") / slug(found.study.name), as_json, callbacks, rounds)
