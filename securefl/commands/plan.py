"""The command `plan`: forecasts a study's epsilon, bytes and time before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.commands import sweep as sweep_command
from securefl.commands.choices import completing, with_json
from securefl.commands.printing import echo, echo_json
from securefl.commands.telling import computed, find, on_workers, plain, with_trust, with_workers
from securefl.report.terminal import say
from securefl.storage.processes import processors
from securefl.study.packaged import packaged, text_of

if TYPE_CHECKING:
    from rich.console import Console

    from securefl.study.config import Study
    from securefl.study.forecast import Forecast
    from securefl.study.seeded import World
    from securefl.sweep.cells import Sweep


@click.command(epilog="Example:  securefl plan fedlog_digits")
@click.argument("study", shell_complete=completing(packaged))
@with_workers
@click.option(
    "--without-code",
    is_flag=True,
    help="Only look: import no code that STUDY names, and list this code with what speaks against it.",
)
@with_trust
@with_json()
def plan(
    study: str, workers: int | None, without_code: bool, trusted: tuple[Path, ...], as_json: bool
) -> None:
    """Forecast STUDY: what each party learns, epsilon after all rounds, number of rounds, bytes, time.

    Bytes and time come from a rehearsal of two rounds per arm with the first seed, whose results are dropped.
    For a sweep, every cell is checked. Those that can run are listed with their epsilons, and the first one
    is rehearsed. Each reason why cells cannot run comes last, once, with its cells. The exit code is then 1.

    A rehearsal imports the code that STUDY names. Look at a study from somebody else with --without-code
    first. If a study names code, that prints no forecast, which needs the records and models of this code.
    """
    from rich.console import Console

    from securefl.sweep.cells import has_sweep
    from securefl.training import single_thread

    single_thread()
    console = Console(stderr=True, quiet=as_json)
    if has_sweep(text_of(study)):
        sweep = sweep_command.find(study, trusted)
        if not (without_code and _looked([cell.study for cell in sweep.cells], as_json)):
            _sweep(sweep, workers or processors(), console, as_json)
        return
    found = on_workers(find(study, trusted), workers)
    if not (without_code and _looked([found], as_json)):
        _study(found, console, as_json)


def _looked(studies: Sequence[Study], as_json_: bool) -> bool:
    """Print the code that studies name, and run none. Returns whether they name any."""
    from securefl.study.own_code import told

    code = list(dict.fromkeys(line for study in studies for line in told(study, refused=True)))
    if code and as_json_:
        echo_json({"code": code}, 2)
    elif code:
        echo("\n".join(code))
        echo("None of this code was imported. A forecast imports it: the same without --without-code.")
    return bool(code)


def _study(found: Study, console: Console, as_json_: bool) -> None:
    from securefl.study import accounted, world
    from securefl.study.forecast import as_json, lines
    from securefl.study.own_code import told
    from securefl.study.publication import ON_TERMINAL

    # Printed before any of this code runs.
    for line in (code := told(found)):
        say(console, line)
    computed(found, found.study.seeds[:1], console)
    here = world.build(found, found.study.seeds[0])
    accounting, figures = accounted.forecast(found, here)
    made = _rehearsed(found, here, console)
    if as_json_:
        own = {"code": code, "notes": [*here.marks.outside], "private": {"notes": [*here.marks.notes]}}
        own |= {"accounting": accounting, **figures}
        echo_json({**as_json(found, made), **own}, 2)
        return
    private = (ON_TERMINAL,) if found.claims and here.marks.notes else ()
    for line in (*here.marks.notes, *private, *here.marks.outside):
        say(console, line)
    for line in lines(found, made, accounting):
        echo(line)


def _sweep(found: Sweep, workers: int, console: Console, as_json_: bool) -> None:
    from securefl.accounting.figures import plain as plain_of
    from securefl.study import world
    from securefl.study.forecast import lines
    from securefl.sweep import check as checking
    from securefl.sweep.choice import cost, told
    from securefl.sweep.session import own_code

    spent = None if found.choice is None else cost(found)
    # Printed before the check, which runs this code.
    for line in own_code(found):
        say(console, line)
    with console.status("checking all cells") as status:
        checked = checking.check(
            found.cells, costs=True, tell=lambda cell: status.update(plain(f"checking {cell}"))
        )
    able = [own.cell for own in checked if not own.refused]
    forecasts: list[Forecast] = []
    outside: tuple[str, ...] = ()
    if able:
        # As a sweep's worker runs it: a cell has no workers of its own.
        study = replace(able[0].study, runtime=able[0].study.runtime.here)
        here = world.build(study, study.study.seeds[0])
        outside, forecasts = here.marks.outside, _rehearsed(study, here, console)
    for sentence in outside:
        say(console, sentence)
    if as_json_:
        taken = checking.seconds(checked, forecasts, workers) if able else None
        own = {"notes": [*outside], "choice": plain_of(spent)}
        echo_json({**checking.as_json(found, checked, taken), **own}, 2)
    else:
        echo("\n".join(checking.lines(found, checked)))
        if spent is not None:
            echo("\n" + "\n".join(told(found, spent)))
        if able:
            echo(f"\nThe cell {able[0].name}, rehearsed:\n")
            # Without the last line, which is the time of this cell alone.
            echo("\n".join(list(lines(study, forecasts))[:-1]))
            echo(checking.last_line(checked, forecasts, workers))
    checking.require_all(found, checked)


def _rehearsed(study: Study, here: World, console: Console) -> list[Forecast]:
    from securefl.study.forecast import forecasts

    return forecasts(study, here, lambda arm: console.status(plain(f"rehearsing {arm}")))
