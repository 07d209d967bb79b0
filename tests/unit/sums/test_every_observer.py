"""A client that sees the total of a hidden sum knows its own value too: one other fewer hides the victim.

The observer here is an honest client of a real run. It sees what its function sees, the broadcasts, and what
the colluders of the plan tell it. The server follows the protocol: it broadcasts the mean of the round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.one_value import engine

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ByCount, ByDraws, CohortQuery, Schedule, Sum, Value, ValueSpec
from securefl.algorithm.weighing import Weights, admits, require_allowed
from securefl.core.errors import ConfigError, DataError
from securefl.core.wire import Header
from securefl.engine.privacy_card import learns
from securefl.sums.registry import scheme_of

SIZE = 2_000
OWN = ValueSpec(name="own", reduction="sum", reveals="it", form="real")
ALONE = replace(OWN, on_model=False)
"""What nobody makes a model of: in one round its total stays with the server."""
VECTORS = np.random.default_rng(5).normal(size=(6, SIZE))
COUNTS = (3, 3, 2, 2, 2, 2)
"""The victim is client 0 and the observer client 1: none is heavier."""
WEIGHED: dict[str, dict[str, Any]] = {
    "equal": {},
    "counts": {"weights": {"own": "counts"}, "min_num_examples": 2, "max_num_examples": 3,
               "min_records": 1, "max_records": 99},
    "draws": {"weights": {"own": "draws"}},
}  # fmt: skip


def plan_of(clients: int, how: str = "equal", **words: Any) -> Plan:
    """As little as a plan can demand: whoever is hidden by it is hidden by its cohorts."""
    least: dict[str, Any] = {"sum": "masked", "corrupt": 0.0, "min_honest": 1, "max_client_weight": 0.9,
                             "max_rounds": 2}  # fmt: skip
    own = WEIGHED[how] | ({"draws": clients} if how == "draws" else {})
    sizes = {"min_cohort_size": clients, "max_cohort_size": clients}
    return Plan(delta=1e-5, non_private=("own",), **{**least, **own, **sizes, **words})


def observed(plan: Plan, clients: int, spec: ValueSpec = OWN, lost: int = 0) -> float:
    """The error of the observer's guess of the victim's vector, in spreads, after a run with two broadcasts.

    The last clients are lost in round 1, and those before them collude.
    """
    how = plan.weights.get("own", "equal")
    spec = replace(spec, weighs=how)
    seen: dict[int, np.ndarray[Any, Any]] = {}

    def compute(context: Any) -> Value:
        if context.client == 1:
            seen[len(seen)] = context.broadcast.astype(np.float64)
        if len(seen) < 2 and context.client >= clients - lost:
            raise DataError("It is lost.")
        return Value(clear=VECTORS[context.client])

    parties = engine(plan, spec, compute, COUNTS[:clients])
    cohort, whole = tuple(range(clients)), sum(COUNTS[:clients])
    weights = {"counts": ByCount(whole), "draws": ByDraws(dict.fromkeys(cohort, 1)), "equal": None}[how]
    model = np.zeros(SIZE, np.float32)
    for number in (1, 2):
        query = CohortQuery(cohort=cohort, broadcast=model, sums=(Sum(spec, SIZE),), weights=weights)
        answers, log = parties.query(query, Header(bytes(32), number, 0, 0))
        assert answers.survivors == cohort[: clients - lost * (number == 1)], log.abstained
        model = (model + answers.totals["own"].value).astype(np.float32)
    share = {"counts": np.array(COUNTS) / whole, "draws": np.ones(6) / clients, "equal": np.ones(6)}[how]
    known = [1, *range(clients - lost - plan.colluding(clients), clients - lost)]
    left = seen[1] - seen[0] - share[known] @ VECTORS[known]
    slope = (left @ VECTORS[0]) / (left @ left)
    return float(np.sqrt(((VECTORS[0] - slope * left) ** 2).mean() / (VECTORS[0] ** 2).mean()))


CASES = list(product(range(2, 7), ("equal", "counts"), (0.0, 0.34), (0.0, 0.2)))


def test_plans_of_each_kind_are_refused_and_run() -> None:
    """Of forty; a bound on sums that no plan allows would be none."""
    found = Counter(
        (how, allowed(clients, how, dropout, corrupt)) for clients, how, dropout, corrupt in CASES
    )
    assert len(CASES) == 40
    assert min(found.values()) >= 6


def allowed(clients: int, how: str, dropout: float, corrupt: float) -> bool:
    try:
        plan_of(clients, how, dropout=dropout, corrupt=corrupt)
    except ConfigError:
        return False
    return True


@every(("clients", "how", "dropout", "corrupt"), CASES)
def test_no_client_that_sees_two_broadcasts_guesses_better_than_the_plan_says(
    clients: int, how: str, dropout: float, corrupt: float
) -> None:
    if not allowed(clients, how, dropout, corrupt):
        return
    plan = plan_of(clients, how, dropout=dropout, corrupt=corrupt)
    lost = clients - plan.survivors(clients)
    error = observed(plan, clients, lost=lost)
    assert error >= 0.95 * plan.guess_error(replace(OWN, weighs=how))
    assert error >= 0.95 * np.sqrt(1 - plan.max_client_weight)  # type: ignore[operator]


@every(("clients", "dropout"), [(2, 0.0), (3, 0.34)])
@every("how", WEIGHED)
def test_a_cohort_that_leaves_one_other_is_refused_and_one_more_client_is_the_remedy(
    clients: int, dropout: float, how: str
) -> None:
    with pytest.raises(ConfigError, match="larger cohorts"):
        plan_of(clients, how, dropout=dropout)
    plan = plan_of(clients + 1, how, dropout=dropout)
    assert observed(plan, clients + 1, lost=clients + 1 - plan.survivors(clients + 1)) > 0.5
    with pytest.raises(ConfigError, match="lower dropout"):
        plan_of(3, how, dropout=0.34)
    assert plan_of(3, how, dropout=0.33).beside(3) == 1


@every(
    "spec",
    [
        OWN,
        *(replace(ALONE, schedule=s) for s in (Schedule(once=True), Schedule(initial=1), Schedule(extra=1))),
    ],
)
@every("how", ["masked", "two-server", "ckks"])
def test_in_one_round_each_party_refuses_a_total_that_may_be_told(spec: ValueSpec, how: str) -> None:
    plan = plan_of(2, sum=how, max_rounds=1)
    scheme = scheme_of(plan)
    assert scheme is not None
    scheme.check(ALONE, 2)
    with pytest.raises(ConfigError, match="larger cohorts"):
        scheme.check(spec, 2)
    scheme_of(plan_of(3, sum=how, max_rounds=1)).check(spec, 3)  # type: ignore[union-attr]
    assert plan.guess_error(spec) == 0.0 == plan.guess_error()
    assert plan.guess_error(ALONE) == pytest.approx(np.sqrt(0.5))


def test_a_batch_of_two_is_no_batch_where_totals_are_told() -> None:
    """The difference of two broadcasts is a batch's sum, and one of the two sees it."""
    batches: dict[str, Any] = {"min_cohort_size": 4, "max_cohort_size": 6}
    with pytest.raises(ConfigError, match="larger batches"):
        plan_of(4, fixed_batch=2, **batches)
    plan = plan_of(6, fixed_batch=3, min_cohort_size=6, max_cohort_size=12)
    assert plan.guess_error(OWN) == pytest.approx(np.sqrt(0.5)), "one of three is left beside an observer"


def test_draws_are_held_to_what_an_observer_leaves() -> None:
    """Two draws of one client, and one each of three others: beside the heaviest lost, two others, or one."""
    words: dict[str, Any] = {"draws": 5, "max_client_weight": 0.6}
    spec = replace(OWN, weighs="draws")
    plan = plan_of(4, "draws", **words)
    require_allowed(plan, [spec], Weights((1,) * 4, whole=4))
    assert admits(plan, dict.fromkeys(range(4), 1))
    with pytest.raises(ConfigError, match="max_client_weight"):
        require_allowed(plan, [spec], Weights((2, 1, 1, 1), whole=5))
    assert not admits(plan, {0: 2, 1: 1, 2: 1, 3: 1})
    alone = replace(plan, max_rounds=1)
    require_allowed(alone, [replace(spec, on_model=False)], Weights((2, 1, 1, 1), whole=5))


def test_the_card_says_for_whom_its_figure_holds() -> None:
    told, kept = plan_of(5), plan_of(5, max_rounds=1)
    assert "errs by 0.86 of it or more, and so does another client's guess" in learns(told, [OWN], "server")
    said = learns(kept, [ALONE], "server")
    assert "errs by 0.89 of it or more" in said
    assert "another client" not in said


def test_noise_that_others_are_promised_hides_a_total_that_is_told() -> None:
    """A speck of noise does not, and neither does noise that does not hold against them."""
    spec = replace(OWN, sensitivity={("client", "zero-out"): 1.0})
    plan = replace(
        plan_of(2, max_rounds=1), noise="local", noise_multiplier=1.0, unit="client", adjacency="zero-out"
    )
    noised = replace(plan, non_private=())
    assert not noised.tells(spec)
    scheme_of(noised).check(spec, 2)  # type: ignore[union-attr]
    told = (
        (replace(noised, noise_multiplier=0.09), spec),
        (replace(noised, adversaries=("server",)), spec),
        (plan, spec),
        (noised, OWN),
    )
    for allowed, own in told:
        assert allowed.tells(own)
        with pytest.raises(ConfigError, match="larger cohorts"):
            scheme_of(allowed).check(own, 2)  # type: ignore[union-attr]
