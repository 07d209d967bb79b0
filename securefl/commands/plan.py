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
    from securefl.study.forecast import as_json, forecasts
    from securefl.study.forecast_text import lines
    from securefl.training import single_thread

    single_thread()
    found = on_workers(find(study), workers)
    console = Console(stderr=True, quiet=as_json_)
    here = world.build(found, found.study.seeds[0])
    made = forecasts(found, here, lambda arm: console.status(f"rehearsing {arm}"))
    if as_json_:
        click.echo(json.dumps(as_json(found, made), indent=2))
        return
    for line in lines(found, made):
        click.echo(line)
