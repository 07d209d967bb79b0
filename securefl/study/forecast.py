"""Forecasts a study before it runs: what each party learns, the final epsilon, bytes and time."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import ceil, inf, isinf
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent, GaussianDpEvent

from securefl.accounting.budget import most_rounds
from securefl.accounting.composition import compose, within
from securefl.accounting.curve import Curve, beside_epsilon
from securefl.accounting.events import dump_event
from securefl.accounting.figures import brief, counted, plain
from securefl.algorithm.clients import specs_of
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.release import PARTIES
from securefl.engine.privacy_card import crafts, learns
from securefl.mechanisms.charges import Protection, correlated_sums, events_of, infinite_reasons
from securefl.study.accounted import ALONE
from securefl.study.advice import DROWNED, advice
from securefl.study.composition import composition, compositions, sized
from securefl.study.config import Arm, Study
from securefl.study.privacy import PrivacySection
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.training.cohorts import why_alone
from securefl.training.isolation import sentence
from securefl.training.private_steps import lone_rows
from securefl.training.task import Problem


@dataclass(frozen=True, kw_only=True)
class EpsilonPart:
    """What one kind of release takes of a client's epsilon.

    name: of the value, or "training". releases: its number in the whole run, or of rounds of training.
    noise_multiplier: the deviation of its noise over its sensitivity; None without noise. epsilon: what these
    releases cost by themselves, against the adversary that learns the most. Parts compose to less than
    their sum.
    """

    name: str
    releases: int
    noise_multiplier: float | None
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of one arm, for a client that takes part in every round.

    Attributes:
        clients: the number of clients.
        learns, epsilon: by party. Epsilon is the one after the last round of the schedule.
        curves: what the privacy curve against each party says beside its epsilon, in words. Empty if that is
            0 or infinite.
        by_round: the largest epsilon against an adversary after some rounds, by their number.
        takes: the parts of epsilon, one for training and one for each value that costs any.
        noise: the noise of private training in words. Empty without it.
        correlation: the error and the epsilon of noise that is correlated over rounds, beside independent
            noise, in words, or why it is independent. Empty if the study asks for no such noise.
        affordable: the number of rounds that the budget buys, if extra queries come evenly over the schedule.
            None without a budget.
        bytes_up, bytes_down: of all clients, in the first and in a later round, from a rehearsal of two
            rounds whose results are discarded. If the last round has a query of its own, a third number is
            what it costs beyond a later one.
        seconds: of the same rounds, on this machine.
        values: the number of the model's values that are trained, and that of those that are frozen. Frozen
            ones are neither sent, summed, clipped nor noised.
        buffers: what becomes of the model's running statistics. Empty without any.
        changes: the changes that private training makes in the model.
        alone: the reason why clients train one by one. Empty if they train in batches.
        apart: how private training keeps records apart, and its cost. Empty without private training.
        crafted: the names of the values of which a server that crafts the model reads single records.
        infinite_reason: why no finite epsilon holds against the adversaries. Empty if one does.
        advice: what lowers the noise, if it may drown what the arm learns. Empty otherwise.
    """

    arm: str
    clients: int
    learns: dict[str, str]
    epsilon: dict[str, float]
    curves: dict[str, str] = field(default_factory=dict)
    affordable: int | None
    bytes_up: tuple[int, ...]
    bytes_down: tuple[int, ...]
    seconds: tuple[float, ...]
    values: tuple[int, int]
    changes: tuple[str, ...]
    by_round: dict[int, float] = field(default_factory=dict)
    takes: tuple[EpsilonPart, ...] = ()
    noise: str = ""
    correlation: str = ""
    buffers: str = ""
    alone: str = ""
    apart: str = ""
    crafted: tuple[str, ...] = ()
    infinite_reason: str = ""
    advice: str = ""

    def total_seconds(self, rounds: int, seeds: int) -> float:
        first, later, *end = self.seconds
        return seeds * (first + (rounds - 1) * later + sum(end))


def forecasts(
    study: Study, world: World, watch: Callable[[str], AbstractContextManager[object]]
) -> list[Forecast]:
    """Forecast every arm. Raises ConfigError if the study could not run.

    watch: makes a context for the rehearsal of the arm of this name, such as a line on the terminal.
    """
    # Checked before the rehearsals, which take a while.
    compositions(study, world)
    found = []
    for arm in study.arms:
        with watch(arm.name):
            found.append(forecast(study, arm, world))
    return found


def forecast(study: Study, arm: Arm, world: World) -> Forecast:
    """Forecast one arm. Raises ConfigError if the study could not run."""
    world = world.under(arm.local)
    algorithm, plan = composition(study, arm, world)
    sent = specs_of(algorithm)
    first, later, *last = _rehearsed(study, arm, world, sent)
    epsilon = final_epsilon(plan, sent)
    endless = any(isinf(epsilon[party]) for party in plan.adversaries)
    costs = {"bytes_up": "bytes_up", "bytes_down": "bytes_down", "seconds": "wall_seconds"}
    apart, in_turn = "", 'training = "sequential" under [runtime]'
    trained = len(world.problem.initial)
    if (private := world.problem.private) is not None:
        apart = sentence(world.problem.layers, lone_rows(private.chunk, trained))
    return Forecast(
        **{
            name: (first[key], later[key], *(max(0, own[key] - later[key]) for own in last))
            for name, key in costs.items()
        },
        arm=arm.name,
        clients=world.problem.clients,
        learns={party: learns(plan, sent, party) for party in PARTIES},
        epsilon=epsilon,
        curves={party: beside_epsilon(Curve.of(own)) for party, own in _final(plan, sent).items()},
        by_round=_by_round(plan, sent),
        takes=tuple(_parts(plan, sent)),
        noise=_noise(study, arm, world, sent),
        correlation=_correlation(plan, sent),
        affordable=affordable_rounds(plan, sent),
        values=(trained, world.problem.frozen),
        buffers=_buffers(world.problem),
        changes=world.problem.changes,
        alone=in_turn if study.runtime.training == "sequential" else why_alone(world.problem),
        apart=apart,
        crafted=tuple(spec.name for spec in sent if crafts(plan, spec)),
        infinite_reason=infinite_reasons(plan, sent) if endless else "",
        advice=advice(study, arm, world.problem, least=DROWNED),
    )


def _buffers(problem: Problem) -> str:
    if kept := len(problem.initial_norms):
        return f"each client keeps its own {kept:,}, which are neither sent nor noised"
    if not (averaged := len(problem.averaged[0])):
        return ""
    if (bound := problem.local.buffers_bound) is not None:
        return f"{averaged:,} are summed apart within a norm of {bound:g}, a release that epsilon counts"
    return (
        f"{averaged:,} are averaged, and no server optimiser moves them; with bounded or noised updates set "
        'buffers = "local" under [model], or `buffers_bound` under [local]'
    )


def final_epsilon(plan: Plan, sent: Sequence[ValueSpec]) -> dict[str, float]:
    """The epsilon against each party after the last round of the schedule."""
    return {party: compose(own, plan.delta) for party, own in _final(plan, sent).items()}


def _final(plan: Plan, sent: Sequence[ValueSpec]) -> dict[str, Counter[DpEvent]]:
    """The events against each party after the last round of the schedule."""
    return {party: events_of(plan, sent, party, plan.max_rounds) for party in PARTIES}


def _spent(
    plan: Plan, sent: Sequence[ValueSpec], rounds: int, parties: Sequence[str]
) -> Iterator[Counter[DpEvent]]:
    """The events after some rounds, against each of these parties."""
    # Only the algorithm knows when extra queries come. They are assumed evenly over the schedule.
    extra = [ceil(s.schedule.extra * rounds / plan.max_rounds) for s in sent]
    by_then = [
        replace(s, schedule=replace(s.schedule, extra=own)) for s, own in zip(sent, extra, strict=True)
    ]
    return (events_of(plan, by_then, party, rounds) for party in parties)


def _by_round(plan: Plan, sent: Sequence[ValueSpec]) -> dict[int, float]:
    """The epsilon after the first round, a quarter, half and all of the rounds."""
    rounds, parties = plan.max_rounds, plan.adversaries or PARTIES
    shown = sorted({1, max(1, rounds // 4), max(1, rounds // 2), rounds})
    return {one: max(compose(own, plan.delta) for own in _spent(plan, sent, one, parties)) for one in shown}


def _parts(plan: Plan, sent: Sequence[ValueSpec]) -> Iterator[EpsilonPart]:
    """What training and each value take, training first. A value that costs nothing is left out."""
    trained: Counter[DpEvent] = Counter()
    for spec in sent:
        protection = Protection(plan, spec)
        if spec.training is not None and protection.charge() != protection.charge(trained=False):
            trained[spec.training] += spec.asked(plan.max_rounds, plan.separation) - spec.schedule.initial
    if trained:
        yield EpsilonPart(
            name="training",
            releases=sum(trained.values()),
            noise_multiplier=noise_of(next(iter(trained))),
            epsilon=compose(trained, plan.delta),
        )
    for spec in sent:
        protection, often = Protection(plan, spec), spec.asked(plan.max_rounds, plan.separation)
        own = protection.charge(trained=False).by_party()
        parties = plan.adversaries or PARTIES
        alone = max(compose({own[party]: often}, plan.delta) for party in parties)
        if alone > 0:
            yield EpsilonPart(
                name=spec.name,
                releases=often,
                noise_multiplier=plan.noise_multiplier if protection.noised else None,
                epsilon=alone,
            )


def noise_of(training: DpEvent) -> float:
    """The noise multiplier of a round of private training."""
    return float(dump_event(training)["noise_multiplier"])


def _noise(study: Study, arm: Arm, world: World, sent: Sequence[ValueSpec]) -> str:
    """The noise of the arm's private training, why it is as large, and for which clients it holds."""
    private = sized(study, arm, world.problem).private
    if study.dpsgd is None or private is None or all(spec.training is None for spec in sent):
        return ""
    target = study.dpsgd.epsilon
    schedule = counted(study.study.rounds, "round")
    if retries := study.privacy.max_retries:
        schedule += (
            f" and {counted(retries, 'retry', 'retries')}, which cost what the last round leaves of it"
        )
    why = "as given" if target is None else f"from epsilon = {target:g} over {schedule}"
    return (
        f"noise multiplier {private.noise_multiplier:g} ({why}), {counted(private.steps, 'step')} a round at "
        f"sampling rate {private.sampling_rate:g}. It is the same at every client, whatever its number of "
        "records: rate and steps are public, and no cohort amplifies privacy"
    )


def _correlation(plan: Plan, sent: Sequence[ValueSpec]) -> str:
    """The error of correlated noise beside that of independent noise, at equal epsilon and the reverse."""
    if not (noised := correlated_sums(plan, sent)):
        sums = [spec for spec in sent if spec.each_round and Protection(plan, spec).noised]
        names = " and the ".join(spec.name for spec in sums if len(plan.coefficients) > 1)
        return names and f"the noise of the {names} is independent: this model is no sum of such totals"
    noise, rounds, z = plan.correlation(noised[0]), plan.max_rounds, plan.noise_multiplier
    error, often = noise.error(rounds), noise.max_participations
    own, alone = (compose({GaussianDpEvent(one): often}, plan.delta) for one in (z, z * error))
    return (
        f"the noise of the {' and the '.join(spec.name for spec in noised)} is correlated over "
        f"{noise.span}, and a client contributes {counted(often, 'time')} at most: sums "
        f"over rounds have {error:.2f} of the error of independent noise at ε {brief(own)}, which would have "
        f"the same error at ε {brief(alone)}"
    )


def affordable_rounds(plan: Plan, sent: Sequence[ValueSpec]) -> int | None:
    """The number of rounds that the plan's budget buys; None without a budget."""
    if plan.budget is None:
        return None
    budget = plan.budget

    def bears(rounds: int) -> bool:
        spent = _spent(plan, sent, rounds, plan.adversaries)
        return all(within(events, plan.delta, budget) for events in spent)

    # At most the schedule, for which the noise was calibrated: a ledger refuses further rounds.
    return most_rounds(bears, plan.max_rounds)


def _rehearsed(study: Study, arm: Arm, world: World, sent: Sequence[ValueSpec]) -> list[dict[str, Any]]:
    """The records of the first round and of a later one, from a run in a temporary folder.

    If the algorithm has a query at the end of a run, a third record is that of the last round.
    """
    # Only the first round has initial queries and key exchanges.
    rounds = min(2, study.study.rounds)
    if ends := study.study.rounds > 2 and any(spec.schedule.at_end for spec in sent):
        rounds = 3
    # With a lane's share of the workers, as in the run. It releases nothing, so no shared ledger counts it.
    own = replace(
        study, runtime=study.runtime.lane(lanes(study)), privacy=replace(study.privacy, ledger=None)
    )
    last = rounds if ends else None
    with tempfile.TemporaryDirectory() as folder:
        run = run_arm(own, arm, world, Path(folder), lambda record: None, rounds=rounds, last=last)
    records = run.records
    return [records[0], records[min(1, len(records) - 1)], *records[2:]]


def lanes(study: Study) -> int:
    """The number of pairs of arm and seed that run side by side."""
    return study.runtime.lanes(len(study.pairs))


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
        "arms": plain(forecasts),
    }


def lines(study: Study, forecasts: list[Forecast], accounting: Sequence[str] = (ALONE,)) -> Iterator[str]:
    """The forecast as text, line by line. accounting: sentences on the shared ledger now and with the run."""
    privacy, clients = study.privacy, forecasts[0].clients
    counts = ((len(study.arms), "arm"), (study.study.rounds, "round"), (clients, "client"))
    yield f"{study.study.name}: {', '.join(counted(*count) for count in counts)}"
    if study.study.evaluate_every > 1:
        yield f"Models are tested every {study.study.evaluate_every} rounds, and after the last one."
    every = "every round" if privacy.separation == 1 else f"one of {privacy.separation} rounds"
    yield (
        f"Epsilon is per {privacy.unit} ({privacy.adjacency}) at delta {privacy.delta:g}, of a client that "
        f"takes part in {every}."
    )
    if privacy.sampling_rate < 1 and privacy.epsilon == inf:
        yield (
            "Without noise no client draws: all that are asked train, "
            f"{1 / privacy.sampling_rate:.3g} times as many as with noise."
        )
    if open_ := [f"the {' and the '.join(own.crafted)} of {own.arm}" for own in forecasts if own.crafted]:
        yield (
            f"A server that crafts the model reads single records from {', '.join(open_)}, however sums are "
            "hidden. [dpsgd], or noise on bounded updates, ends that."
        )
    for own in forecasts:
        yield ""
        yield own.arm
        for party in PARTIES:
            yield f"  {party:11} ε {brief(own.epsilon[party]):>6}   learns {own.learns[party]}"
        if own.infinite_reason:
            yield f"  no finite ε: {own.infinite_reason}"
        yield from _spending(privacy, own)
        if own.advice:
            yield f"  it may learn nothing: {own.advice}"
        if own.affordable is not None:
            yield (
                f"  a budget of {privacy.budget:g} buys {own.affordable} of {study.study.rounds} rounds "
                f"against {' and '.join(privacy.adversaries)}"
            )
        if own.values[1]:
            trained, frozen = own.values
            yield (
                f"  trains {trained:,} of {trained + frozen:,} values of the model; the others are frozen: "
                "neither sent, summed, clipped nor noised"
            )
        if own.buffers:
            yield f"  running statistics: {own.buffers}"
        yield from _bytes(own)
        if own.alone:
            yield f"  clients train one by one: {own.alone}"
        if own.apart:
            yield f"  records apart: {own.apart}"
        yield from (f"  changed for private training: {change}" for change in own.changes)
    yield ""
    yield from accounting
    seeds, workers = counted(len(study.study.seeds), "seed"), counted(study.runtime.processes, "worker")
    yield ""
    yield f"About {duration(total_seconds(study, forecasts))} on this machine with {workers}, for {seeds}."


def _bytes(own: Forecast) -> Iterator[str]:
    for way in ("up", "down"):
        once, again, *end = (f"{count / own.clients:,.0f}" for count in getattr(own, f"bytes_{way}"))
        more = f", and {end[0]} more in the last one" if end else ""
        yield f"  bytes {way:5} a client: {once} in round 1, then {again} a round{more}"


def _spending(privacy: PrivacySection, own: Forecast) -> Iterator[str]:
    """Lines on an arm's noise, and, if it is finite, its epsilon over the rounds and the parts of it."""
    if own.noise:
        yield f"  private training: {own.noise}"
    if own.correlation:
        yield f"  {own.correlation}"
    if not any(0 < value < inf for value in own.by_round.values()):
        return
    against = ", ".join(privacy.adversaries) or "anybody"
    rounds = ", ".join(f"{brief(value)} after round {number}" for number, value in own.by_round.items())
    yield f"  ε against {against}: {rounds}"
    worst = max(privacy.adversaries or PARTIES, key=own.epsilon.__getitem__)
    if own.curves[worst]:
        yield f"  against {worst} after all rounds: {own.curves[worst]}"
    parts = "; ".join(
        f"{part.name} ε {brief(part.epsilon)} ({counted(part.releases, 'time')}"
        f"{'' if part.noise_multiplier is None else f', noise multiplier {part.noise_multiplier:.5g}'})"
        for part in own.takes
    )
    yield f"  of it alone: {parts}"


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
