"""What lowers the noise of a private run that learns nothing, each change with its estimated effect.

The estimate is the length of all noise of a run over that of all signal, if the parts of all clients pointed
the same way and were as long as their bounds. It follows from public settings alone, and is computed anew for
each change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, sqrt
from typing import Final

from securefl.accounting.composition import compose
from securefl.accounting.figures import counted
from securefl.algorithm.clients import specs_of
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError
from securefl.dp.calibration import sigma
from securefl.mechanisms.charges import Protection, events_of
from securefl.study.composition import built, sized
from securefl.study.config import Arm, Study
from securefl.training.task import Problem

DROWNED: Final = 0.5
"""The noise over the signal from which `securefl plan` warns. FedLog with local noise on digits ends
at an accuracy of 0.12 where the ratio is 0.64, at 0.22 where it is 0.34, and at 0.37 where it is 0.18."""


def advice(study: Study, arm: Arm, problem: Problem, *, least: float = 0.0) -> str:
    """What to change in a study whose arm learns nothing under noise, in a few sentences.

    Empty without noise, and where the ratio of noise and signal is at most `least`.
    """
    if not study.claims:
        return ""
    study = _with_target(study, arm, problem)
    now = _ratio(study, arm, problem)
    if not least < now < inf:
        return ""
    found = [(change, left) for change, left in _changes(study, arm, problem, now) if left[0] < 0.995 * now]
    times = f"{float(f'{now:.2g}'):,g} times"
    noise = f"The noise of the whole run is {times} as long as all that it covers could be."
    more = "Ask for a larger epsilon, or have many more records or clients."
    if not found:
        return f"{noise} No change of clients, rounds, bounds or rates lowers it. {more}"
    told = "; ".join(
        f"{' to '.join(f'{100 * own / now:.0f} %' for own in left)} with {change}" for change, left in found
    )
    said = f"{noise} Estimated, there remain of it {told}."
    if now > DROWNED and all(left[0] > DROWNED for _, left in found):
        said += f" None alone suffices: more than {DROWNED:g} times remain. Combine them. {more}"
    return said


def _with_target(study: Study, arm: Arm, problem: Problem) -> Study:
    """The study with the noise of its training calibrated, so that no change costs more epsilon."""
    private = study.dpsgd
    if private is None or private.epsilon is not None:
        return study
    epsilon = study.privacy.epsilon or _spent(study, arm, problem)
    if not 0 < epsilon < inf:
        return study
    return replace(study, dpsgd=replace(private, noise_multiplier=None, epsilon=epsilon))


def _spent(study: Study, arm: Arm, problem: Problem) -> float:
    """The largest epsilon against an adversary of the study after its rounds."""
    rounds, specs = study.study.rounds, specs_of(built(arm, problem))
    plan = study.privacy.plan(rounds, specs, records=problem.records, clients=problem.clients)
    events = [events_of(plan, specs, party, rounds) for party in plan.adversaries]
    return max((compose(own, plan.delta) for own in events), default=inf)


def _changes(study: Study, arm: Arm, problem: Problem, now: float) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Each change, and the ratio under it, or the least and the largest one that it may have."""
    clients, rounds, private = 2 * problem.clients, study.study.rounds, study.dpsgd
    twice = replace(problem, clients=clients, records=2 * problem.records)
    yield f"{clients} clients of as many records each", (_ratio(study, arm, twice),)
    other = {
        count: _ratio(
            replace(study, study=replace(study.study, rounds=count, evaluate_every=1)), arm, problem
        )
        for count in (max(1, rounds // 4), 4 * rounds)
    }
    count = min(other, key=lambda one: round(other[one] / now, 2))
    yield counted(count, "round"), (other[count],)
    trains = any(spec.training is not None for spec in specs_of(built(arm, problem)))
    if private is not None and trains:
        yield f"clip_norm = {private.clip_norm / 2:g}, the less the shorter gradients are", (now / 2, now)
        if (rate := min(1.0, 2 * private.sampling_rate)) > private.sampling_rate:
            batch = private.expected_batch * rate / private.sampling_rate
            larger = replace(study, dpsgd=replace(private, sampling_rate=rate, expected_batch=batch))
            yield f"sampling_rate = {rate:g}, expected_batch = {batch:g}", (_ratio(larger, arm, problem),)
    elif (bound := problem.local.update_bound) is not None:
        if problem.local.bound_quantile is None:
            yield f"update_bound = {bound / 2:g}, the less the shorter updates are", (now / 2, now)
        rate = 2 * problem.local.learning_rate
        yield f"learning_rate = {rate:g}, the less the shorter updates are", (now / 2, now)
    if arm.protocol != "heads":
        also = " and a `client_bound`" if study.privacy.unit == "client" else ""
        change = f'protocol = "heads"{also} on frozen features, which sends once'
        yield change, (_ratio(study, arm, problem, True),)


def _ratio(study: Study, arm: Arm, problem: Problem, as_head: bool = False) -> float:
    """The noise of a run over its signal. 0 without noise, and infinite where the study could not run.

    as_head: whether the arm's whole epsilon goes to one sum for a head on the last layer's features.
    """
    rounds, unit, found = study.study.rounds, (study.privacy.unit, study.privacy.adjacency), [0.0]
    try:
        problem = sized(study, arm, replace(problem, private=study.private))
        specs = specs_of(built(arm, problem))
        plan = study.privacy.plan(rounds, specs, records=problem.records, clients=problem.clients)
        if as_head:
            spent = _spent(study, arm, problem)
            noise = sigma(spent, plan.delta, releases=1, sensitivity=1.0)
            head = ValueSpec(name="head", reduction="sum", reveals="", sensitivity={unit: 1.0})
            plan = replace(plan, noise_multiplier=noise)
            return _of_sum(plan, head, problem, len(problem.head), problem.clients)
        for spec in specs:
            cohort, times = spec.cohort or problem.clients, spec.schedule.asked(rounds)
            if spec.training is not None and (own := problem.private) is not None:
                length = own.noise_multiplier * sqrt(len(problem.initial))
                found.append(length / (own.expected_batch * sqrt(cohort * times * own.steps)))
            elif spec.reduction == "sum" and times and Protection(plan, spec).noised:
                size = len(problem.initial if spec.depends_on == "trained-state" else problem.head)
                found.append(_of_sum(plan, spec, problem, size, cohort) / sqrt(times))
    except ConfigError:
        return inf
    return max(found)


def _of_sum(plan: Plan, spec: ValueSpec, problem: Problem, size: int, cohort: int) -> float:
    """The noise of one sum over its signal. size: the number of its entries."""
    moved = spec.sensitivity[plan.unit, plan.adjacency]
    parts = cohort if plan.unit == "client" else problem.records * cohort / problem.clients
    # A part that is replaced moves the sum by twice its bound.
    bound = moved / (2 if plan.adjacency == "replace-one" else 1)
    # Where only training is noised, a sum of its own would have the noise of one party, or shares of it.
    deviation = Protection(plan, spec).mechanism.deviation(cohort) or plan.noise_multiplier * moved
    return deviation * sqrt(size) / (bound * parts)
