"""Forecasts a study before it runs: what each party learns, the final epsilon, bytes and time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from securefl.accounting.budget import most_rounds
from securefl.accounting.composition import compose, within
from securefl.accounting.figures import brief, plain
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.release import PARTIES
from securefl.engine.privacy_card import learns
from securefl.mechanisms.charges import events_of
from securefl.study.accounted import ALONE
from securefl.study.composition import composition, require_known
from securefl.study.config import Arm, Study
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.training.cohorts import why_alone
from securefl.training.isolation import sentence
from securefl.training.private_steps import lone_rows
from securefl.training.task import Problem


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of one arm, for a client that takes part in every round.

    Attributes:
        clients: the number of clients.
        learns, epsilon: by party. Epsilon is the one after the last round of the schedule.
        affordable: the number of rounds that the budget buys, if extra queries come evenly over the schedule.
            None without a budget.
        bytes_up, bytes_down: of all clients, in the first and in a later round, from a rehearsal of two
            rounds whose results are discarded.
        seconds: of the same two rounds, on this machine.
        changes: the changes that private training makes in the model.
        alone: the reason why clients train one by one. Empty if they train in batches.
        apart: how private training keeps records apart, and its cost. Empty without private training.
    """

    arm: str
    clients: int
    learns: dict[str, str]
    epsilon: dict[str, float]
    affordable: int | None
    bytes_up: tuple[int, int]
    bytes_down: tuple[int, int]
    seconds: tuple[float, float]
    changes: tuple[str, ...]
    alone: str = ""
    apart: str = ""

    def total_seconds(self, rounds: int, seeds: int) -> float:
        return seeds * (self.seconds[0] + (rounds - 1) * self.seconds[1])


def forecasts(
    study: Study, world: World, watch: Callable[[str], AbstractContextManager[object]]
) -> list[Forecast]:
    """Forecast every arm. Raises ConfigError if the study could not run.

    watch: makes a context for the rehearsal of the arm of this name, such as a line on the terminal.
    """
    # Checked before the rehearsals, which take a while.
    require_known(study, [arm.options.build(world.problem) for arm in study.arms])
    found = []
    for arm in study.arms:
        with watch(arm.name):
            found.append(forecast(study, arm, world))
    return found


def forecast(study: Study, arm: Arm, world: World) -> Forecast:
    """Forecast one arm. Raises ConfigError if the study could not run."""
    algorithm, plan = composition(study, arm, world)
    sent = [contribution.spec for contribution in algorithm.contributions]
    first, later = _rehearsed(study, arm, world)
    return Forecast(
        arm=arm.name,
        clients=world.problem.clients,
        learns={party: learns(plan, sent, party) for party in PARTIES},
        epsilon={
            party: compose(events_of(plan, sent, party, plan.max_rounds), plan.delta) for party in PARTIES
        },
        affordable=affordable_rounds(plan, sent),
        bytes_up=(first["bytes_up"], later["bytes_up"]),
        bytes_down=(first["bytes_down"], later["bytes_down"]),
        seconds=(first["wall_seconds"], later["wall_seconds"]),
        changes=world.problem.changes,
        alone=_alone(study, world),
        apart=_apart(world.problem),
    )


def _apart(problem: Problem) -> str:
    if problem.private is None:
        return ""
    model, chunk = problem.layers, problem.private.chunk
    return sentence(
        model, lone_rows(chunk, sum(one.numel() for one in model.parameters() if one.requires_grad))
    )


def _alone(study: Study, world: World) -> str:
    if study.runtime.training == "sequential":
        return 'training = "sequential" under [runtime]'
    return why_alone(world.problem)


def affordable_rounds(plan: Plan, sent: Sequence[ValueSpec]) -> int | None:
    """The number of rounds that the plan's budget buys; None without a budget."""
    if plan.budget is None:
        return None
    budget = plan.budget

    def bears(rounds: int) -> bool:
        # Only the algorithm knows when extra queries come. They are assumed evenly over the schedule.
        by_then = [replace(s, extra_queries=ceil(s.extra_queries * rounds / plan.max_rounds)) for s in sent]
        spent = [events_of(plan, by_then, party, rounds) for party in plan.adversaries]
        return all(within(events, plan.delta, budget) for events in spent)

    # At most the schedule, for which the noise was calibrated: a ledger refuses further rounds.
    return most_rounds(bears, plan.max_rounds)


def _rehearsed(study: Study, arm: Arm, world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    """The records of the first round and of a later one, from a run in a temporary folder."""
    # Two rounds: only the first one has initial queries and key exchanges.
    two = min(2, study.study.rounds)
    # With a lane's share of the workers, as in the run.
    study = replace(study, runtime=study.runtime.lane(lanes(study)))
    # The rehearsal releases nothing, so a shared ledger does not count it.
    study = replace(study, privacy=replace(study.privacy, ledger=None))
    with tempfile.TemporaryDirectory() as folder:
        records = run_arm(study, arm, world, Path(folder), lambda record: None, rounds=two).records
    return records[0], records[-1]


def lanes(study: Study) -> int:
    """The number of pairs of arm and seed that run side by side."""
    return study.runtime.lanes(len(study.arms) * len(study.study.seeds))


def total_seconds(study: Study, forecasts: Sequence[Forecast]) -> float:
    """The wall time of the study in seconds: all arms and seeds divided by its lanes, or the longest one."""
    rounds, seeds = study.study.rounds, len(study.study.seeds)
    together = sum(own.total_seconds(rounds, seeds) for own in forecasts) / lanes(study)
    return max([together, *(own.total_seconds(rounds, 1) for own in forecasts)])


def as_json(study: Study, forecasts: Sequence[Forecast]) -> dict[str, Any]:
    """The forecasts for scripts. An infinite epsilon is the text "inf"."""
    return {
        "study": study.study.name,
        "unit": study.privacy.unit,
        "adjacency": study.privacy.adjacency,
        "delta": study.privacy.delta,
        "evaluate_every": study.study.evaluate_every,
        "seconds": total_seconds(study, forecasts),
        "workers": study.runtime.processes,
        "arms": [
            {**vars(own), "epsilon": {p: plain(e) for p, e in own.epsilon.items()}} for own in forecasts
        ],
    }


def lines(study: Study, forecasts: list[Forecast], accounting: Sequence[str] = (ALONE,)) -> Iterator[str]:
    """The forecast as text, line by line. accounting: sentences on the shared ledger now and with the run."""
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
                f"against {' and '.join(privacy.adversaries)}"
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
