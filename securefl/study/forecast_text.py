"""A forecast as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from securefl.accounting.figures import brief
from securefl.core.release import PARTIES
from securefl.study.accounted import ALONE
from securefl.study.config import Study
from securefl.study.forecast import Forecast, total_seconds


def lines(study: Study, forecasts: list[Forecast], accounting: Sequence[str] = (ALONE,)) -> Iterator[str]:
    """The page of the forecast, line by line. accounting: what a shared ledger holds, and would hold."""
    privacy, clients = study.privacy, forecasts[0].clients
    counts = ((len(study.arms), "arm"), (study.study.rounds, "round"), (clients, "client"))
    yield f"{study.study.name}: {', '.join(_many(*count) for count in counts)}"
    if study.study.evaluate_every > 1:
        yield f"Models are tested every {study.study.evaluate_every} rounds, and after the last one."
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
        if own.alone:
            yield f"  clients train one by one: {own.alone}"
        if own.apart:
            yield f"  records apart: {own.apart}"
        yield from (f"  changed for private training: {change}" for change in own.changes)
    yield ""
    yield from accounting
    seeds, workers = _many(len(study.study.seeds), "seed"), _many(study.runtime.processes, "worker")
    yield ""
    yield f"About {duration(total_seconds(study, forecasts))} on this machine with {workers}, for {seeds}."


def _many(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
