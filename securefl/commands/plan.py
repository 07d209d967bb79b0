"""The command `plan`."""

from __future__ import annotations

import json

import click

from securefl.commands.telling import find, on_workers, with_workers


@click.command(epilog="Example:  securefl plan fedlog_digits")
@click.argument("study")
@with_workers
@click.option("--json", "as_json_", is_flag=True, help="Print JSON, and nothing else.")
def plan(study: str, workers: int | None, as_json_: bool) -> None:
    """What STUDY would cost: who learns what, epsilon after the whole schedule, rounds, bytes, time.

    Bytes and time come from a rehearsal of two rounds per arm with the first seed, of which nothing is kept.
    """
    from rich.console import Console

    from securefl.study import world
    from securefl.study.forecast import as_json, forecast
    from securefl.study.forecast_text import lines
    from securefl.study.own import told
    from securefl.study.session import require_known
    from securefl.training import single_thread

    single_thread()
    found = on_workers(find(study), workers)
    console = Console(stderr=True, quiet=as_json_)
    # Before any of it runs.
    for line in (code := told(found)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    here = world.build(found, found.study.seeds[0])
    # Before the rehearsals, which take a while: a study that `run` would refuse is refused at once.
    require_known(found, [arm.options.build(here.problem) for arm in found.arms])
    forecasts = []
    for arm in found.arms:
        with console.status(f"rehearsing {arm.name}"):
            forecasts.append(forecast(found, arm, here))
    if as_json_:
        own = {"code": code, "notes": here.marks.notes}
        click.echo(json.dumps({**as_json(found, forecasts), **own}, indent=2))
        return
    for line in here.marks.notes:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in lines(found, forecasts):
        click.echo(line)
