"""Code that is not ours may keep state where nobody sees it: it counts as reading state, and cards say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from support.every import every
from support.four_clients import CLIENTS, MASKED, SENDS, SIZE, given, records
from who_learns import stance

import securefl
from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientContext
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.core.wire import Header
from securefl.deployment.updates import Updates
from securefl.engine.inprocess import simulated
from securefl.engine.privacy_card import learns

WARNING = "not held against a server that lies: state that code of the client's own keeps"
REMEDIES = ("noise of an epsilon up to", "trust in the server")
VICTIM = CLIENTS - 1
BOUNDED = Updates(evaluation=("accuracy",), update_bound=2.0, evaluation_bound=1.0, cohort=CLIENTS)


def card(plan: Plan, *specs: ValueSpec) -> str:
    return learns(plan, specs, "server")


def test_an_app_that_hides_its_state_in_a_file_is_read_and_its_card_said_so(tmp_path: Path) -> None:
    """The server freezes all clients but one by an earlier query. No rule of ours sees the file."""

    def compute(context: ClientContext) -> Value:
        file = tmp_path / f"frozen-{context.client}"
        if context.broadcast[0] < 0:
            file.touch()
        return Value(clear=np.full(SIZE, 0.0 if file.exists() else float(len(context.x))))

    plan = replace(MASKED, max_rounds=3, min_cohort_size=3)
    book = Ledger(None, plan.terms())
    engine = simulated(plan, [given(compute)], book, records(), rng=lambda *_: np.random.default_rng(0))
    sums = (Sum(SENDS, SIZE),)
    for number, cohort, sent in ((1, range(VICTIM), -1.0), (2, range(CLIENTS), 1.0)):
        query = CohortQuery(cohort=tuple(cohort), broadcast=np.full(2, sent, np.float32), sums=sums)
        answers = engine.query(query, Header(bytes(32), number, 0, 0))[0]
    assert answers.totals["own"].value.tolist() == [VICTIM + 1.0] * SIZE, "the victim's value alone"
    assert WARNING in card(plan, SENDS)
    assert stance(plan, [SENDS]) == "not held, said"


@every("how", ["masked", "two-server", "ckks"])
@every("rules", [Updates(), BOUNDED])
def test_a_flower_app_counts_as_reading_state_and_noise_is_the_way_on(rules: Updates, how: Any) -> None:
    specs = tuple(rules.spec(MASKED).values())
    bare = replace(MASKED, sum=how, non_private=tuple(spec.name for spec in specs))
    said = card(bare, *specs)
    assert WARNING in said
    assert all(remedy in said[said.index(WARNING) :] for remedy in REMEDIES)
    if rules.update_bound and how == "masked":
        noise = {"noise": "distributed", "noise_multiplier": 1.0, "unit": "client", "adjacency": "zero-out"}
        noised = replace(bare, non_private=(), **noise)  # type: ignore[arg-type]
        assert WARNING not in card(noised, *rules.spec(noised).values())
    assert WARNING not in card(replace(bare, secagg="semi-honest"), *specs)


def test_a_loop_around_masked_sums_counts_as_reading_state() -> None:
    """Its vectors may follow from totals of sums before."""
    vectors = {name: [1.0, 2.0] for name in "abcd"}
    trust: dict[str, Any] = {"corrupt": 0.25, "min_honest": 2, "max_client_weight": 0.5}
    assert WARNING in securefl.masked_sum(vectors, bound=10, **trust).learns["server"]
    noised = securefl.masked_sum(vectors, clip=3, noise_multiplier=1.0, delta=1e-3, **trust)
    assert WARNING not in noised.learns["server"]
