"""Well-formed orders of a server that lies about cohort, weights and n, by its own process and by another's.

Every attack is played twice under each way of summing. As the clients are, nothing opens, and no ledger has a
release of a sum. Without the clients' rule, where that is what bars it, the victim's vector comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from support.every import every
from support.four_clients import CLIENTS, SESSION, SIZE
from support.hidden_plans import lawless
from support.one_value import engine
from support.residents import Deployment

from securefl.accounting.ledger import Ledger
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, ByCount, ByDraws, CohortQuery, Sum, Value, ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.errors import ConfigError
from securefl.core.wire import Header
from securefl.engine import server
from securefl.engine.exchange import client
from securefl.engine.party import key_holder
from securefl.sums import masked, scheme

WAYS = ("masked", "two-server", "ckks")
EVERYBODY = tuple(range(CLIENTS))
VECTORS = np.random.default_rng(5).normal(size=(CLIENTS, SIZE))
"""Of equal spread, and with nothing to do with each other."""
OWN = ValueSpec(name="own", reduction="sum", reveals="it")
DRAWN, COUNTED = replace(OWN, weighs="draws"), replace(OWN, weighs="counts")
TERMS: dict[str, Any] = {
    "delta": 1e-5,
    "max_rounds": 9,
    "non_private": ("own",),
    "corrupt": 0.0,
    "min_cohort_size": 3,
    "max_cohort_size": CLIENTS,
    "min_honest": 2,
    "max_client_weight": 0.5,
}
BY_DRAWS = {"weights": {"own": "draws"}, "draws": CLIENTS}
BY_COUNTS = {
    "weights": {"own": "counts"},
    "min_cohort_size": CLIENTS,
    "max_client_weight": 0.53,  # 3^2 / (3^2 + 2 * 2^2)
    "min_num_examples": 2,
    "max_num_examples": 3,
    "min_records": CLIENTS,
    "max_records": 20,
}
RULE = (client, key_holder, scheme, masked)
"""Where clients and key holder hold an order against their plans."""


@dataclass(frozen=True)
class Attack:
    """What clients offer, words of their plan, and the order.

    opens: whether the order alone tells client 0. said: the reason that comes in words.
    """

    spec: ValueSpec
    words: Mapping[str, Any]
    cohort: tuple[int, ...] = EVERYBODY
    weights: Any = None
    opens: bool = True
    said: str = ""

    def plan(self, how: str) -> Plan:
        return Plan(sum=how, **{**TERMS, **self.words})

    def query(self) -> CohortQuery:
        return CohortQuery(
            cohort=self.cohort,
            broadcast=np.zeros(1, np.float32),
            sums=(Sum(self.spec, SIZE),),
            weights=self.weights,
        )


def heavy(most: int, others: int = 1) -> ByDraws:
    return ByDraws({k: others if k else most for k in EVERYBODY})


ATTACKS = {
    "one of 2^40 draws": Attack(DRAWN, BY_DRAWS, weights=heavy(2**40), said="Expected 4 draws in all"),
    "as many draws as the plan lets one have": Attack(
        DRAWN,
        {**BY_DRAWS, "draws": 2**20},
        weights=heavy(2**20 - 3),
        said="no client to have more than 0.5",
    ),
    "just beyond the share": Attack(  # 3^2 / (3^2 + 2 * 1) is above 1/2, though 3 / 6 is not
        DRAWN, {**BY_DRAWS, "draws": 6}, weights=heavy(3), opens=False, said="got up to 0.818"
    ),
    "draws in an arm without": Attack(OWN, {}, weights=heavy(2**40), said="weighs 'own' equally"),
    "draws beside counts": Attack(COUNTED, BY_COUNTS, weights=heavy(2**40), said="weighs 'own' by counts"),
    "two clients of four": Attack(OWN, {}, cohort=(0, 1), opens=False, said="a cohort of 3 to 4"),
    "an n beyond the public total": Attack(
        COUNTED, BY_COUNTS, weights=ByCount(21), opens=False, said="n from 4 to 20"
    ),
    "an n of 2^62": Attack(COUNTED, BY_COUNTS, weights=ByCount(2**62), opens=False, said="n from 4 to 20"),
    "an n below the clients": Attack(COUNTED, BY_COUNTS, weights=ByCount(3), opens=False, said="n from 4"),
    "no weights where counts weigh": Attack(COUNTED, BY_COUNTS, opens=False, said="weighs 'own' by counts"),
}


def compute(context: Any) -> Value:
    return Value(clear=VECTORS[context.client])


@dataclass
class InOneProcess:
    """All parties in this process; `why` is what the last ask told of clients, key holder and server."""

    attack: Attack
    how: str
    why: str = ""

    def __post_init__(self) -> None:
        plan = self.attack.plan(self.how)
        self.ledger = Ledger(None, plan.terms())
        self._engine = engine(plan, self.attack.spec, compute, [k + 2 for k in EVERYBODY], self.ledger)
        self.server = self._engine.server

    def query(self, query: CohortQuery, number: int = 1) -> Answers:
        answers, log = self._engine.query(query, Header(SESSION, number, 0, 0))
        self.why = f"{log.abstained} {log.traffic.rejected_from}"
        return answers

    def released(self) -> int:
        return len(self.ledger.rows())


@dataclass
class Apart:
    """Each party a `PartySession` of its own, which hears frames alone."""

    attack: Attack
    how: str
    why: str = ""
    _round: int = 0

    def __post_init__(self) -> None:
        plan = self.attack.plan(self.how)
        self._own = Deployment(plan, compute=compute, spec=self.attack.spec)
        self._own.enter(bytes(32))
        self.server = self._own.server

    def query(self, query: CohortQuery, number: int = 1) -> Answers:
        answers = self._own.query(number, query)
        told = [one.text for files in self._own.files.values() for one in files.diary.refusals()]
        self.why = f"{told} {self._own.server.log.take().abstained}"
        return answers

    def released(self) -> int:
        return sum(len(files.ledger.rows()) for files in self._own.files.values())


Home = type[InOneProcess] | type[Apart]
homes = pytest.mark.parametrize("home", [InOneProcess, Apart])
ways = pytest.mark.parametrize("how", WAYS)


@contextmanager
def lying_server(*others: Any) -> Iterator[None]:
    """The server does not hold its own orders against the plan. Nor do the parties of these modules."""
    rules = ("require_allowed", "require_weighed")
    with ExitStack() as patches:
        for module in (server, *others):
            for rule in rules:
                if hasattr(module, rule):
                    patches.enter_context(mock.patch.object(module, rule))
        yield


@homes
@ways
@pytest.mark.parametrize("name", ATTACKS)
def test_an_order_that_the_plan_does_not_allow_opens_nothing(name: str, how: str, home: Home) -> None:
    attack = ATTACKS[name]
    parties = home(attack, how)
    # What the server demands of cohorts before it asks at all, it leaves out too.
    parties.server._plan = lawless(
        parties.server._plan, min_cohort_size=2, min_honest=1, max_client_weight=0.99
    )
    with lying_server():
        answers = parties.query(attack.query())
    assert answers.survivors == ()
    assert not answers.totals
    assert parties.released() == 0, "who refuses an order is charged nothing, and sends nothing"
    assert attack.said in parties.why


@ways
@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.opens])
def test_without_the_rule_the_order_opens_one_client(name: str, how: str) -> None:
    attack = ATTACKS[name]
    # A call bears no larger numbers. These do as well: the others' weights vanish on the grid.
    attack = replace(attack, weights=heavy(min(attack.weights.draws[0], 2**30)))
    with lying_server(*RULE), mock.patch("securefl.engine.exchange.client._check_draws"):
        answers = InOneProcess(attack, how).query(attack.query())
    total = answers.totals["own"]
    heaviest = attack.weights.draws[0] / sum(attack.weights.draws.values())
    assert np.abs(total.value / heaviest - VECTORS[0]).max() < 2e-5


@every("how", ["two-server", "ckks"])
def test_the_key_holder_refuses_what_clients_would_sign(how: str) -> None:
    """Clients that were changed sign any order. The key holder has a plan of its own."""
    attack = ATTACKS["one of 2^40 draws"]
    parties = InOneProcess(attack, how)
    with lying_server(client, masked):
        assert parties.query(attack.query()).survivors == ()
    assert "key holder to answer its call" in parties.why or "draws in all" in parties.why


@homes
@ways
def test_the_honest_order_of_each_attack_opens(how: str, home: Home) -> None:
    for spec, words, weights in (
        (OWN, {}, None),
        (DRAWN, BY_DRAWS, heavy(1)),
        (COUNTED, BY_COUNTS, ByCount(14)),
    ):
        attack = Attack(spec, words, weights=weights)
        answers = home(attack, how).query(attack.query())
        assert answers.survivors == EVERYBODY
        if weights is None:
            assert np.abs(answers.totals["own"].value - VECTORS.sum(0)).max() < 2e-5


@homes
@ways
def test_a_client_takes_one_n_in_a_session(how: str, home: Home) -> None:
    attack = Attack(COUNTED, BY_COUNTS, weights=ByCount(14))
    parties = home(attack, how)
    assert parties.query(attack.query(), 1).survivors == EVERYBODY
    changed = replace(attack, weights=ByCount(15))
    assert parties.query(changed.query(), 2).survivors == ()
    assert "Expected n = 14, as it was told first in this session, got 15" in parties.why
    assert parties.query(attack.query(), 3).survivors == EVERYBODY


def test_four_cohorts_of_three_would_tell_a_client() -> None:
    """Sums over any three of four clients at one broadcast are four equations in four clients."""
    threes = [tuple(k for k in EVERYBODY if k != out) for out in EVERYBODY]
    asks = [replace(Attack(OWN, {}).query(), cohort=three) for three in threes]
    parties = InOneProcess(Attack(OWN, {"min_cohort_size": 4}), "masked")
    parties.server._plan = replace(parties.server._plan, min_cohort_size=3)
    with lying_server():
        assert all(parties.query(query, 1 + number).survivors == () for number, query in enumerate(asks))
    parties = InOneProcess(Attack(OWN, {}), "masked")
    sums = [parties.query(query, 1 + number).totals["own"].value for number, query in enumerate(asks)]
    found = np.sum(sums, axis=0) / 3 - sums[2]
    assert np.abs(found - VECTORS[2]).max() < 4e-6, "differences of rounds are not held without noise"


@every(
    ("words", "said"),
    [
        ({"max_client_weight": 0.0}, "0 < max_client_weight < 1"),
        ({"max_client_weight": 1.0}, "0 < max_client_weight < 1"),
        ({"max_client_weight": float("nan")}, "0 < max_client_weight < 1"),
        ({"max_client_weight": None}, "add max_client_weight=0.5"),
        ({"min_cohort_size": None}, "add min_cohort_size=10"),
        ({"max_cohort_size": None}, "add max_cohort_size=10"),
        ({"min_honest": None}, "add min_honest=5"),
        ({"corrupt": None}, "Expected `corrupt`"),
        ({"min_cohort_size": 1}, "min_cohort_size >= 2"),
        ({"min_cohort_size": 5}, "min_cohort_size <= max_cohort_size"),
        ({"min_honest": 4}, "at least 4 honest contributors"),
        ({"min_honest": 0}, "min_honest as a whole number from 1"),
        ({**BY_DRAWS, "draws": None}, "Add draws=K"),
        ({**BY_DRAWS, "draws": 0}, "draws as a whole number from 1"),
        ({**BY_COUNTS, "min_num_examples": 0}, "min_num_examples as a whole number from 1"),
        ({**BY_COUNTS, "max_num_examples": 1}, "min_num_examples <= max_num_examples"),
        ({**BY_COUNTS, "max_num_examples": 2**31}, "Add min_num_examples"),
        ({**BY_COUNTS, "max_num_examples": 4}, "Take narrower bounds of the counts, or equal weights"),
        ({**BY_COUNTS, "min_records": 0}, "min_records as a whole number from 1"),
        ({**BY_COUNTS, "min_records": 21}, "min_records <= max_records"),
        ({"corrupt": 0.5}, "lower dropout"),
        ({"weights": {"own": "size"}}, "Weighing], of equal, draws, counts"),
        ({"weights": "draws"}, "Weighing], of equal, draws, counts"),
        ({"max_client_weight": "0.5"}, "Expected `max_client_weight` as float"),
        ({"min_cohort_size": np.int64(3)}, "min_cohort_size as a whole number"),
        ({**BY_DRAWS, "draws": 2}, "as many draws as clients"),
        ({"corrupt": 0.6, "dropout": 0.4}, "dropout \\+ corrupt < 1"),
    ],
)
def test_a_plan_without_the_words_or_with_words_that_hold_nothing_is_refused(
    words: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        Plan(sum="masked", **{**TERMS, **words})


def test_a_plan_says_its_worst_guess_without_a_name() -> None:
    terms = {**TERMS, "min_cohort_size": CLIENTS}
    drawn = Plan(sum="masked", **terms, **BY_DRAWS)
    assert drawn.guess_error() == drawn.guess_error(DRAWN) == pytest.approx(np.sqrt(0.5))
    another = replace(OWN, name="another")
    assert drawn.guess_error(another) == pytest.approx(np.sqrt(2 / 3)), "two hide it from another client"


def test_an_n_by_which_small_values_vanish_is_refused() -> None:
    """At its grid's end a value would be kept, and one of ordinary size would not."""
    wide = {**BY_COUNTS, "max_records": 10**6}
    attack = Attack(COUNTED, wide, weights=ByCount(10**6), opens=False)
    parties = InOneProcess(attack, "masked")
    with lying_server():
        assert parties.query(attack.query()).survivors == ()
    assert "small values would round to 0" in parties.why


@every("called", [19, 20])
def test_masked_sums_and_key_holders_need_as_many_of_the_ordered(called: int) -> None:
    """Noise was sized for 19 clients: of 20 that were ordered, one more may collude, whoever is called."""
    spec = replace(OWN, sensitivity={("client", "zero-out"): 1.0}, cohort=19)
    words = {"noise": "distributed", "noise_multiplier": 8.0, "unit": "client", "adjacency": "zero-out"}
    cohorts = {"min_cohort_size": 15, "max_cohort_size": 20, "min_honest": 5}
    terms = {**TERMS, "corrupt": 0.155, "dropout": 0.1, "non_private": ()}
    plan = Plan(sum="masked", **{**terms, **words, **cohorts})
    policy = masked.Masked(plan).policy([spec], 20)
    assert policy.least_survivors == scheme.required_contributions(plan, [spec], called, Weights((1,) * 20))
    with pytest.raises(ConfigError, match="19 survivors"):
        policy.check(policy.parameters(called, 20))
