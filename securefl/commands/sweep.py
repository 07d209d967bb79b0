"""The command `sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.commands.choices import FOLDER, completing, with_json
from securefl.commands.printing import echo, echo_json
from securefl.commands.telling import echo_arms, echo_pages, end_told, printing, stoppable, warn, with_trust
from securefl.core.errors import ConfigError, SecureFLError
from securefl.core.reading import beneath
from securefl.report.terminal import say
from securefl.study.packaged import packaged, text_of

if TYPE_CHECKING:
    from rich.console import Console

    from securefl.sweep.cells import Sweep


def find(study: str, trusted: Sequence[Path] = ()) -> Sweep:
    """Read a sweep by its path, or by the name of a packaged one. trusted: the paths of --trust-code."""
    from securefl.storage.own_code import CALLER
    from securefl.study.config import Brought, brought_of, origin_of
    from securefl.sweep.cells import parse_sweep

    text = text_of(study)
    try:
        home, namer, file, brought = None, CALLER, Path(study), Brought()
        if file.is_file():
            (home, namer), brought = origin_of(file, trusted), brought_of(file.parent)
        return replace(parse_sweep(text, home=home, brought=brought, namer=namer), file=study)
    except ConfigError as error:
        raise beneath(f"{study}: ", error) from None


_EXAMPLES = """\b
Example:  securefl sweep my_sweep.toml --out runs/sweep --workers 4
          RAY_ADDRESS=10.0.0.1:6379 securefl sweep my_sweep.toml --ray
"""


@click.command(epilog=_EXAMPLES)
@click.argument("study", shell_complete=completing(packaged))
@click.option(
    "--out",
    type=FOLDER,
    help="Folder of the sweep; default runs/<name of the study>-sweep.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes that run cells in parallel, one thread each; default: as many as processors.",
)
@click.option(
    "--ray",
    "on_ray",
    is_flag=True,
    help="Run cells on the Ray cluster of RAY_ADDRESS; without one, on one of this machine alone. Ray's "
    "workers read each other's objects by pickle: take a cluster that is yours alone.",
)
@with_trust
@with_json("Print the results as JSON, and nothing else.")
def sweep(
    study: str,
    out: Path | None,
    workers: int | None,
    on_ray: bool,
    trusted: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Run STUDY, a TOML file with a section [sweep], once for every cell of its grid.

    \b
    [sweep.grid]                            the product of all lists
    "privacy.epsilon" = [0.5, 1.0, inf]
    [[sweep.list]]                          the grid runs for each of these
    "privacy.noise" = "central"

    Keys are dotted paths into the study; "arm.<option>" is an option of every arm. An epsilon of inf, in
    privacy.epsilon or dpsgd.epsilon, is the run without noise and without a budget. With `panels` under
    [sweep], a list of swept keys, figures have a panel for each of their values. The folder gets a run
    folder per cell, results.csv, summary.csv, plots, sweep.html (a page of trade-offs that may be published),
    and a folder `private` with results that are not for publication, and a page of them. After an
    interruption, run the same command again: finished cells are not run again.

    With choice = { trials = "poisson", mean = 10 } under [sweep], one cell is chosen privately: a random
    number of trials is run, the best is kept in chosen/, and its epsilon includes the cost of the choice. No
    other file in the folder is then for publication.

    Every cell is checked before the first one runs. The exit code is 1 if cells failed, and 4 if all cells
    finished but nothing was learnt in any, or an arm stopped early (see `securefl run --help`).
    """
    from rich.console import Console

    from securefl.storage.folder_lock import locked
    from securefl.study.config import slug

    found = find(study, trusted)
    out = out or Path("runs") / f"{slug(found.name)}-sweep"
    console = Console(stderr=True, quiet=as_json)
    # Before the lock, which is a file in the folder: a refusal leaves the folder as it was.
    _require(found, out, on_ray, console)
    # Held before the folder is claimed, so that two sweeps that start at once do not both claim it.
    with locked(out, printing(console)):
        _swept(found, out, workers, on_ray, console, as_json)


def _require(found: Sweep, out: Path, on_ray: bool, console: Console) -> None:
    """Raises ConfigError, and writes nothing, if the sweep cannot run in this folder."""
    from securefl.sweep.cells import require_own
    from securefl.sweep.choice import require_choosable
    from securefl.sweep.session import own_code, require_runnable

    require_own(out, found)
    # Printed before the check, which runs this code.
    for line in own_code(found):
        say(console, line)
    if found.choice is not None:
        require_choosable(found)
        if on_ray:
            raise ConfigError(
                "Expected no --ray with `choice`, got it: the number of trials is private, and they run one "
                "after the other here. Leave it out."
            )
    require_runnable(found, out, console)


def _chosen(found: Sweep, out: Path, console: Console, as_text: bool) -> None:
    """Choose one cell privately, and print the results of this cell alone."""
    from securefl.sweep.cells import CONFIG
    from securefl.sweep.choice import choose

    trying = console.status("running trials; only the best is published")
    with stoppable(console, f"securefl sweep {out / CONFIG} --out {out}") as stop, trying:
        chosen = choose(found, out, stop=stop)
    if as_text:
        echo_json(chosen.as_json(), 2)
        return
    for sentence in chosen.sentences:
        echo(sentence)
    if chosen.cell is not None:
        echo_pages("Report", chosen.folder / "report.html")


def _swept(
    found: Sweep, out: Path, workers: int | None, on_ray: bool, console: Console, as_text: bool
) -> None:
    """Run the unfinished cells of a sweep in its folder, and print the results."""
    from securefl.report.sentences import rows
    from securefl.study.alarms import Alarm
    from securefl.study.publication import PERSONAL, PERSONALLY_TESTED
    from securefl.sweep.best import arms_of, caveats, headline
    from securefl.sweep.cells import CONFIG, claim
    from securefl.sweep.page import alarms_of
    from securefl.sweep.report import as_json
    from securefl.sweep.run import finished
    from securefl.sweep.session import run_and_write
    from securefl.sweep.tradeoff import series_of

    claim(out, found)
    if found.choice is not None:
        _chosen(found, out, console, as_text)
        return
    done = sum(finished(found.home(out, cell)) for cell in found.cells)
    go_on = f"securefl sweep {out / CONFIG} --out {out}{' --ray' if on_ray else ''}"
    if done:
        line = f"Going on with the sweep in {out}: {done} of {len(found.cells)} cells are finished."
        say(console, line)
    with stoppable(console, go_on) as stop:
        told, summary, failed = run_and_write(found, out, workers, console, stop, on_ray=on_ray)
    if as_text:
        echo_json(as_json(found, out, told, summary, failed), 2)
    elif not summary.empty:
        echo(f"{len(found.cells) - len(failed)} of {len(found.cells)} cells are finished.")
        echo(headline(series_of(found, summary)))
        echo_arms(*rows(arms_of(found, summary)))
        if PERSONAL in set(summary["models"]):
            echo(PERSONALLY_TESTED)
        for sentence in caveats(found):
            echo(sentence)
        echo(f"Tables: {out / 'results.csv'}, {out / 'summary.csv'}")
        echo_pages("Page", out / "sweep.html")
    alarming = {cell: [Alarm(**own) for own in ones] for cell, ones in alarms_of(told).items()}
    if failed:
        warn(alarming)
        what = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise SecureFLError(
            f"{len(failed)} of {len(found.cells)} cells failed: {what.rstrip('.')}. "
            f"To try them again: {go_on}"
        )
    stopped = any(not own.learnt for ones in alarming.values() for own in ones)
    means = summary.groupby(["cell", "arm"])[["final_accuracy", "floor"]].mean()
    discreet = any(cell.study.tests_on_the_claimed for cell in found.cells)
    drowned = not discreet and bool((means["final_accuracy"] <= means["floor"]).all())
    end_told(alarming, not stopped and not drowned)
