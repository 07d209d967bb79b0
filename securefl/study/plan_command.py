"""The command `plan`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
from rich.console import Console

from securefl.accounting.figures import brief
from securefl.release import PARTIES
from securefl.study import world
from securefl.study.commands import find
from securefl.study.config import Study
from securefl.study.forecast import Forecast, as_json, forecast
from securefl.study.session import require_known
from securefl.training import single_thread


@click.command(epilog="Example:  securefl plan fedlog_digits")
@click.argument("study")
@click.option("--json", "as_json_", is_flag=True, help="Print JSON, and nothing else.")
def plan(study: str, as_json_: bool) -> None:
    """What STUDY would cost: who learns what, epsilon after the whole schedule, rounds, bytes, time.

    Bytes and time come from a rehearsal of two rounds per arm with the first seed, of which nothing is kept.
    """
    single_thread()
    found = find(study)
    console = Console(stderr=True, quiet=as_json_)
    here = world.build(found, found.study.seeds[0])
    require_known(found, [arm.options.build(here.problem) for arm in found.arms])
    forecasts = []
    for arm in found.arms:
        with console.status(f"rehearsing {arm.name}"):
            forecasts.append(forecast(found, arm, here))
    if as_json_:
        click.echo(json.dumps(as_json(found, forecasts), indent=2))
        return
    for line in lines(found, forecasts):
        click.echo(line)


def lines(study: Study, forecasts: list[Forecast]) -> Iterator[str]:
    """The page, line by line."""
    privacy, clients = study.privacy, study.data.clients
    counts = ((len(study.arms), "arm"), (study.study.rounds, "round"), (clients, "client"))
    yield f"{study.study.name}: {', '.join(_many(*count) for count in counts)}"
    yield (
        f"Epsilon is per {privacy.unit} ({privacy.adjacency}) at delta {privacy.delta:g}, of a client that "
        "takes part in every round."
    )
    for own in forecasts:
        yield ""
        yield own.arm
        for party in PARTIES:
            yield f"  {party:11} ε {brief(own.epsilon[party]):>6}   learns {own.learns[party]}"
        if own.affordable is not None:
            yield (
                f"  a budget of {privacy.budget:g} buys {own.affordable} of {study.study.rounds} rounds "
                f"against {' and '.join(privacy.against)}"
            )
        for name, (first, later) in (("up", own.bytes_up), ("down", own.bytes_down)):
            once, again = first / clients, later / clients
            yield f"  bytes {name:5} a client: {once:,.0f} in round 1, then {again:,.0f} a round"
        yield from (f"  changed for private training: {change}" for change in own.changes)
    seconds = sum(own.total_seconds(study.study.rounds, len(study.study.seeds)) for own in forecasts)
    yield ""
    yield f"About {_time(seconds)} on this machine, for {_many(len(study.study.seeds), 'seed')}."


def _many(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
