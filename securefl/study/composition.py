"""Builds an arm's algorithm and privacy plan, and refuses combinations that could never run to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

from securefl.accounting.composition import compose, running_epsilon, within
from securefl.accounting.events import History
from securefl.accounting.figures import above
from securefl.algorithm.clients import Algorithm, specs_of
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError
from securefl.core.reading import Mistakes, near
from securefl.dp.calibration import check_delta
from securefl.mechanisms.agreed import require_agreed, require_needed
from securefl.mechanisms.charges import Protection, events_of
from securefl.study.config import Arm, Study, place_of, placed
from securefl.study.seeded import World
from securefl.sums.registry import scheme_of
from securefl.training.audits import keeps_apart
from securefl.training.devices import Hardware
from securefl.training.kept_norms import KeptNorms
from securefl.training.models import ModelConfig
from securefl.training.task import Problem


def composition(study: Study, arm: Arm, world: World) -> tuple[Algorithm, Plan]:
    """The arm's algorithm and plan. Raises ConfigError for a release that the plan would never allow."""
    unit, problem = study.privacy.unit, world.under(arm.local).problem
    holders = problem.records if unit == "record" else problem.clients
    with placed(study, "[privacy]"):
        check_delta(study.privacy.delta, holders, force=study.privacy.force_delta)
    with placed(study, "[model]"):
        problem.initial  # noqa: B018 -- builds the model, so that its error names [model]
    problem = sized(study, arm, problem)
    with placed(study, place_of(arm)):
        algorithm = built(arm, problem)
        sent = specs_of(algorithm)
        _check_quantile(arm, problem, sent)
    with placed(study, f"[privacy], for {arm.name}:"):
        plan = study.privacy.plan(
            study.study.rounds,
            sent,
            records=problem.records,
            clients=problem.clients,
            leaving=problem.leaving,
            accepts_kept_state=arm.accepts_kept_state,
        )
        _check_target(study, plan, sent)
        _check_budget(plan, sent)
        require_agreed(plan, sent)
        require_needed(plan, sent)
        _check_separation(plan, sent)
        _check_cohorts(plan, sent, problem.clients)
        _check_device(plan, sent, problem.hardware)
    with placed(study, place_of(arm)):
        start = algorithm.start()  # raises the error about a layer that does not exist
        keeps = ("keeps_trained", *(("tests_trained",) if study.data.holdout else ()))
        if study.measures.at == "own" and not any(getattr(algorithm, name, False) for name in keeps):
            raise ConfigError(
                'Expected a protocol under which each client keeps the model that it trained, for at = "own" '
                f"under [measures], got {arm.protocol!r}. Leave `at` out, or take a protocol such as fedrep. "
                "Protocols with one model for all clients, such as fedavg, need `holdout` under [data]."
            )
        if study.study.patience is not None:
            _check_patience(study, problem, algorithm.evaluate(start, ()).personal)
    return algorithm, plan


def _check_patience(study: Study, problem: Problem, personal: bool) -> None:
    """Raises ConfigError unless a stop follows from the server's own records alone.

    personal: whether models are tested on records like their clients'.
    """
    shared = problem.leaving or study.data.test_clients > 0
    if personal or not len(problem.server_x) or (study.tests_on_the_claimed and shared):
        what = "records of its clients" if len(problem.server_x) else "no records"
        raise ConfigError(
            f"Expected the server's own test records for `patience` under [study], got {what}: "
            "the round of a stop would tell of them, and no epsilon covers it. Leave it out, or name a "
            'public file as `test` under [data] (give {"train": ..., "test": ...} from Python) and a '
            "protocol with one model for all."
        )


def sized(study: Study, arm: Arm, problem: Problem) -> Problem:
    """The problem with the private training of this arm. If a target is set, its noise follows from the arm.

    Raises ConfigError if no noise reaches the target.
    """
    if study.dpsgd is None or study.dpsgd.epsilon is None:
        return problem
    with placed(study, place_of(arm)):
        # Which values follow training, and how often, does not depend on the noise.
        specs = specs_of(built(arm, problem))
    with placed(study, "[dpsgd]"):
        private = study.privacy.training_of(study.dpsgd, study.study.rounds, specs)
    return replace(problem, private=private)


def built(arm: Arm, problem: Problem) -> Algorithm:
    """The arm's algorithm for this problem.

    Raises ConfigError for options that do not fit it, and for an object that is no algorithm.
    """
    found = arm.options.build(problem)
    lacking = [name for name in dir(Algorithm) if name[0] != "_" and name not in dir(found)]
    if lacking:
        raise ConfigError(
            f"Expected an algorithm from `build` of {arm.protocol!r}, got {type(found).__name__}, which "
            f"lacks {', '.join(lacking)}. Write them as securefl.algorithm.Algorithm has them."
        )
    return KeptNorms(arm.options.build, problem) if len(problem.initial_norms) else found


def compositions(study: Study, world: World) -> dict[str, tuple[Algorithm, Plan]]:
    """The algorithm and plan of every arm, by its name.

    Raises ConfigError with the mistakes of all arms, and those of `_check_used`.
    """
    made, mistakes = dict[str, tuple[Algorithm, Plan]](), Mistakes()
    for arm in study.arms:
        with mistakes.noted():
            made[arm.name] = composition(study, arm, world)
    with mistakes.noted(), placed(study, "[privacy]"):
        _check_used(study, made, world)
    mistakes.require_none()
    return made


def _check_used(study: Study, made: Mapping[str, tuple[Algorithm, Plan]], world: World) -> None:
    """Raises ConfigError for what no arm uses: `dropout` and `augment` if none trains, and a name in
    `non_private` that none sends. made: the arms that are not refused."""
    try:
        sent = [
            spec
            for arm in study.arms
            for spec in specs_of(made[arm.name][0] if arm.name in made else built(arm, world.problem))
        ]
    except ConfigError:  # an arm with an error of its own, which is noted: what it would send is not known
        return
    trains = any(spec.depends_on == "trained-state" or spec.training is not None for spec in sent)
    if isinstance(model := study.model, ModelConfig) and model.draws and not trains:
        raise ConfigError(
            f"[model] Expected no `dropout` or `augment` where no arm trains the model, got {model.dropout} "
            f"and {model.augment}: training alone draws. Leave it out, or add an arm that trains, such as "
            "fedavg."
        )
    names = sorted({spec.name for spec in sent})
    if unknown := [name for name in study.privacy.non_private if name not in names]:
        raise ConfigError(
            f"Expected non_private among {', '.join(names)}, which the arms send, got {unknown[0]!r}"
            f"{near(unknown[0], names)}."
        )


def _check_target(study: Study, plan: Plan, sent: Sequence[ValueSpec]) -> None:
    """Raises ConfigError if [dpsgd] has a target and what one client sends would cost more in the end."""
    target = None if study.dpsgd is None else study.dpsgd.epsilon
    if target is None or all(spec.training is None for spec in sent):
        return
    for spec in sent:
        if endless := Protection(plan, spec).open_to:
            raise ConfigError(
                f"[dpsgd] Expected every value to have a finite epsilon beside the target {target:g}, "
                f"got {spec.name!r} of the arm without noise against the {' and the '.join(endless)}. Set "
                f"`noise` in [privacy], or trust the {' and the '.join(endless)}: leave them out of "
                "`adversaries`. To train privately beside it all the same, give `noise_multiplier`."
            )
    for party in plan.adversaries:
        spent = events_of(plan, sent, party, plan.max_rounds)
        for spec in sent:
            if spec.reduction == "sum":
                spent[Protection(plan, spec).charge().by_party()[party]] += plan.max_retries
        # The noise is scaled from that of other training. An event of another form could cost more.
        if (cost := running_epsilon(History.of(spent), plan.delta)) > target:
            raise ConfigError(
                f"[dpsgd] Expected training whose noise grows with the noise multiplier under the target "
                f"{target:g}, got epsilon {above(cost, target)} against the {party}. Mend `training` in the "
                "specs of its protocol, or give `noise_multiplier`."
            )


def _check_budget(plan: Plan, sent: Sequence[ValueSpec]) -> None:
    """Raises ConfigError for a value without noise under a budget, or a budget below the cost of round 1."""
    for spec in sent:
        endless = Protection(plan, spec).open_to  # without a budget too: a spec that cannot be noised raises
        if plan.budget is not None and endless:
            raise ConfigError(
                f"Expected noise on every value under a budget, got {spec.name!r} without noise, whose "
                "epsilon is infinite: every client would refuse. "
                f"Set budget = inf, or trust the {' and the '.join(endless)}: leave them out of "
                "`adversaries`."
            )
    if plan.budget is None:
        return
    for party in plan.adversaries:
        # Without extra queries: an algorithm spreads those over the run.
        first = events_of(
            plan, [replace(spec, schedule=replace(spec.schedule, extra=0)) for spec in sent], party, 1
        )
        if not within(first, plan.delta, plan.budget):
            cost = compose(first, plan.delta)
            trains = any(spec.training is not None for spec in sent)
            where = "[dpsgd], in place of `noise_multiplier`" if trains else "[privacy]"
            raise ConfigError(
                f"Expected round 1 to cost a client at most the budget {plan.budget:g} against the "
                f"{party}, got epsilon {above(cost, plan.budget)}. Write `epsilon = {plan.budget:g}` in "
                f"{where}: the noise of all rounds follows from it."
            )


def _check_device(plan: Plan, sent: Sequence[ValueSpec], hardware: Hardware) -> None:
    """If an epsilon per record depends on it, check that the GPU keeps records apart, and leave or refuse it
    if it does not (see `Hardware.require`)."""
    trained = any(spec.training is not None for spec in sent)
    if trained or (plan.unit == "record" and plan.noise_multiplier > 0):
        hardware.require(keeps_apart)


def _check_quantile(arm: Arm, problem: Problem, sent: Sequence[ValueSpec]) -> None:
    """Raises ConfigError for a `bound_quantile` on which no value of the arm depends: nothing would adapt."""
    if (quantile := problem.local.bound_quantile) is None:
        return
    fixed = replace(problem, local=replace(problem.local, bound_quantile=None))
    if specs_of(built(arm, fixed)) == sent:
        raise ConfigError(
            f"Expected no `bound_quantile` for {arm.protocol!r}, which sends no update that a bound clips, "
            f"got {quantile:g}. Leave it out, or set it in the `local` of those arms alone that average "
            "updates of the whole model, such as fedavg."
        )


def _check_separation(plan: Plan, sent: Sequence[ValueSpec]) -> None:
    """Raises ConfigError for a sum to which a client may contribute more often than the separation says."""
    for spec in sent:
        often = spec.asked(plan.max_rounds, plan.separation)
        if (
            spec.reduction == "sum"
            and plan.separation > 1
            and often > ceil(plan.max_rounds / plan.separation)
        ):
            raise ConfigError(
                f"Expected sums that each round queries once for a separation of {plan.separation} rounds, "
                f"got {spec.name!r}, which a client may be asked for {often} times in {plan.max_rounds} "
                "rounds: none would rest. Set separation = 1, or ask for nothing beside the rounds (for "
                "FedCor updates = 0)."
            )


def _check_cohorts(plan: Plan, sent: Sequence[ValueSpec], clients: int) -> None:
    """Raises ConfigError for a hidden sum that would never be opened over the cohorts that the arm draws.

    If a value's spec states no cohort, the number of drawn clients counts, or else all clients.
    """
    if plan.fixed_batch is not None and clients % plan.fixed_batch:
        raise ConfigError(
            f"Expected clients in whole batches, got {clients} clients in batches of {plan.fixed_batch} "
            "(`fixed_batch`): the last clients would be in no sum. Take a divisor."
        )
    scheme = scheme_of(plan)
    for spec in sent:
        size = spec.cohort or spec.draws or clients
        # A value may be weighted by more draws than there are clients.
        drawn, apart = min(size, clients), min(plan.apart(spec), plan.max_rounds)
        if drawn * apart > clients:
            raise ConfigError(
                f"Expected cohorts of at most {clients // apart} of {clients} clients for a separation of "
                f"{plan.separation} rounds, got {drawn}: too few clients would be left for a round. Take "
                f"separation = {clients // drawn} or less, or a smaller fraction."
            )
        if scheme is None or spec.reduction != "sum":
            continue
        if size < 2:
            raise ConfigError(
                f"Expected cohorts of two or more for the hidden sum of {spec.name!r}, got {size}: a sum of "
                "one value is that value, so it is never opened. Select more clients a round."
            )
        scheme.check(spec, size)
