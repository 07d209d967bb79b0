"""A server that lies chooses what clients keep, and then asks all of them for one sum: it reads nobody.

Each attack is a sequence of well-formed queries, of which each alone would be honest. With the rule of
`mechanisms.agreed` the last one opens nothing. Without it the victim's value comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray
from support.tiny_study import study, world

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, ByCount, ByDraws, CohortQuery, PerClient, Sum, Value
from securefl.core.linear import LinearQuery
from securefl.core.wire import Header
from securefl.engine.exchange import client
from securefl.engine.inprocess import simulated
from securefl.engine.network import Network
from securefl.engine.party import key_holder
from securefl.protocols import fltrust
from securefl.protocols.adds import contributions as adds
from securefl.protocols.adds.options import Adds
from securefl.protocols.client_state import digest_of
from securefl.protocols.compression import download, moved
from securefl.protocols.fedavg import FedAvg
from securefl.protocols.lg_fedavg import LGFedAvg
from securefl.protocols.stc import STC

EVERYBODY, VICTIM = tuple(range(6)), 0
OTHERS = EVERYBODY[1:]
SESSION = bytes(32)
Vector = NDArray[Any]


def problem() -> Any:
    found = world(study()).problem
    return replace(found, local=replace(found.local, epochs=1))


class Parties:
    """Six clients of one algorithm. `own` has the values that they computed, newest last."""

    def __init__(self, options: Any, how: str, of: Any = None, **words: Any) -> None:
        self.algorithm = options.build(of or problem())
        # A form that refuses maps in hidden sums is another rule, which does not stand in here.
        specs = [replace(one.spec, form="discrete") for one in self.algorithm.contributions]
        self.specs = specs
        plan = Plan(
            **{
                "sum": how,
                "delta": 1e-5,
                "max_rounds": 9,
                "non_private": tuple(spec.name for spec in specs),
                "corrupt": 0.0,
                "min_cohort_size": 5,
                "max_cohort_size": 6,
                "min_honest": 2,
                "max_client_weight": 0.5,
                "weights": {spec.name: spec.weighs for spec in specs if spec.weighs != "equal"},
                "draws": max(spec.draws for spec in specs),
                "secagg": "active",
                **words,
            }
        )
        self.own: dict[int, list[Vector]] = {k: [] for k in EVERYBODY}
        computed = [self._spied(one.compute) for one in self.algorithm.contributions]
        parts = [ClientFunction(spec, own) for spec, own in zip(specs, computed, strict=True)]
        self.engine = simulated(
            plan,
            parts,
            Ledger(":memory:", plan.terms()),
            [(x[:30], y[:30]) for x, y in world(study()).records],
            rng=lambda number, k, again: np.random.default_rng([number, k, again]),
        )

    def _spied(self, compute: Callable[[Any], Value]) -> Callable[[Any], Value]:
        def spied(context: Any) -> Value:
            value = compute(context)
            self.own[context.client].append(value.floats())
            return value

        return spied

    def ask(
        self, number: int, cohort: tuple[int, ...], sent: Vector, at: int = 0, stage: int = 0, **more: Any
    ) -> Answers:
        spec = self.specs[at]
        said = {"weights": ByDraws(dict.fromkeys(cohort, 1)), "size": len(sent), "session": SESSION, **more}
        size, session = said.pop("size"), said.pop("session")
        query = CohortQuery(cohort=cohort, broadcast=sent, **{"sums": (Sum(spec, size),), **said})
        return self.engine.query(query, Header(session, number, stage, 0))[0]

    def total(self, answers: Answers) -> Vector:
        """The plain sum of the values."""
        total = answers.totals["update"]
        return np.asarray(total.value * len(answers.survivors) / total.weight)


def dead(model: Vector) -> Vector:
    """A model of which no hidden unit fires: training moves only the biases of its last layer."""
    found = model.copy()
    found[64 * 8 : 64 * 8 + 8] = -1e6
    return found


FIRST_LAYER = slice(0, 64 * 8)


@contextmanager
def unequal(crafted: Mapping[int, Vector]) -> Iterator[None]:
    """The server shows these clients another model."""
    whole = client.Client._whole

    def lying(self: Any, broadcast: Any) -> Any:
        return whole(self, replace(broadcast, model=crafted.get(self.number, broadcast.model)))

    with mock.patch.object(client.Client, "_whole", lying):
        yield


# The attacks: each returns the last answers, what the server reads of the victim, and what the victim sent.

Read = tuple[Answers, Callable[[], tuple[Vector, Vector]]]


def stc_model(how: str) -> Read:
    """The others keep a dead model as version 1. Then one change brings the victim alone a live one."""
    parties = Parties(STC(fraction=1.0, p=0.2), how)
    start = parties.algorithm.start()
    size = len(start.broadcast)
    parties.ask(
        1, OTHERS, np.concatenate([np.array([1, 0, 1], np.float32), dead(start.broadcast)]), size=size
    )
    change = np.zeros(size, np.float32)
    change[-1] = 0.01
    asked = parties.ask(2, EVERYBODY, download(moved(start, change, np.zeros(size)), EVERYBODY), size=size)
    return asked, lambda: (
        parties.total(asked)[FIRST_LAYER],
        parties.own[VICTIM][-1][FIRST_LAYER],
    )


def stc_residual(how: str) -> Read:
    """A loud model fills the others' residuals in the last layer. Then all get one honest model."""
    parties = Parties(STC(fraction=1.0, p=0.05), how)
    start = parties.algorithm.start()
    size, loud = len(start.broadcast), start.broadcast.copy()
    loud[: 64 * 8 + 8] = 50.0
    loud[64 * 8 + 8 :] *= 1e-3
    for number, model, cohort in ((1, loud, OTHERS), (2, start.broadcast, EVERYBODY)):
        sent = np.concatenate([np.array([1, 0, number], np.float32), model])
        asked = parties.ask(number, cohort, sent, size=size)
    there = np.flatnonzero(parties.own[VICTIM][-1][FIRST_LAYER]) if asked.survivors else np.zeros(0, int)
    return asked, lambda: (parties.total(asked)[there], parties.own[VICTIM][-1][there])


def lg_bodies(how: str) -> Read:
    """Crafted heads kill the others' bodies. Then all get one honest head."""
    parties = Parties(LGFedAvg(), how)
    head = parties.algorithm.start().broadcast
    deadly = np.zeros_like(head)  # class 0 at any price: what is of another class pushes each unit down
    deadly[:8] = 1e4
    for number in (1, 2):
        parties.ask(number, OTHERS, deadly)
    asked = parties.ask(3, EVERYBODY, head)
    weights = slice(0, 80)  # the others move their biases alone
    return asked, lambda: (parties.total(asked)[weights], parties.own[VICTIM][-1][weights])


def stale_models(how: str) -> Read:
    """The victim's model stands in the first sum alone, those of the others in both."""
    terms = {"public_num_examples": 100, "min_records": 6, "max_records": 600, "draws": 6}
    parties = Parties(FedAvg(fraction=1.0, aggregation="full", stale=True), how, **terms)
    start, by = parties.algorithm.start().broadcast, {"weights": ByCount(600)}
    first = parties.ask(1, EVERYBODY, start, **by)
    second = parties.ask(2, OTHERS, dead(start), **by)

    def read() -> tuple[Vector, Vector]:
        both = 6 * (first.totals["update"].value + second.totals["update"].value)
        own = both - 5 * (dead(start).astype(np.float64) - start)
        return own[FIRST_LAYER], parties.own[VICTIM][0][FIRST_LAYER]

    return second, read


ADDS = Adds(fraction=1.0, importance="activation", rate=0.02, optimizer="sgd")


def adds_stages(how: str) -> Read:
    """The maps come from unequal models, so their sum may stay shut. The update's query is equal for all."""
    parties = Parties(ADDS, how)
    start = parties.algorithm.start().broadcast
    groups = parties.algorithm.averaged.supernet.groups
    with unequal(dict.fromkeys(OTHERS, dead(start))):
        parties.ask(1, EVERYBODY, start, size=groups)
    public = {adds.MASK: adds.packed(np.ones(groups, np.bool_)), adds.FIRST: digest_of(start)}
    size = int(parties.algorithm.averaged.supernet.entries(np.ones(groups, np.bool_)).sum())
    asked = parties.ask(1, EVERYBODY, start[:0], 1, 2, size=size, public=public)
    return asked, lambda: (
        parties.total(asked)[FIRST_LAYER],
        parties.own[VICTIM][-1][FIRST_LAYER],
    )


def fltrust_stages(how: str) -> Read:
    """The directions come from unequal models, and are kept for one sum."""
    parties = Parties(fltrust.FLTrust(fraction=1.0), how, draws=6)
    start = parties.algorithm.start().broadcast
    point = np.zeros(len(start))
    point[0] = 1.0
    scored = PerClient(parties.specs[0], LinearQuery(fltrust.cosine_bounds(len(start)), point))
    with unequal(dict.fromkeys(OTHERS, dead(start))):
        parties.ask(1, EVERYBODY, start, sums=(), per_client=(scored,), weights=None)
    asked = parties.ask(1, EVERYBODY, start, 1, 2)
    return asked, lambda: (
        parties.total(asked)[FIRST_LAYER],
        parties.own[VICTIM][-1][FIRST_LAYER],
    )


def stale_newcomer(how: str) -> Read:
    """An honest server asks the victim in its second round. What others add is two steps' difference."""
    terms = {"public_num_examples": 100, "min_records": 6, "max_records": 600, "draws": 6}
    small = replace(problem(), local=replace(problem().local, learning_rate=0.02))
    options, by = FedAvg(fraction=1.0, aggregation="full", stale=True), {"weights": ByCount(600)}
    parties = Parties(options, how, of=small, secagg="semi-honest", **terms)
    start = parties.algorithm.start().broadcast
    first = parties.ask(1, OTHERS, start, **by)
    if not first.totals:
        return first, lambda: (start, start)
    model = (start + first.totals["update"].value).astype(np.float32)
    asked, moved = parties.ask(2, EVERYBODY, model, **by), model.astype(np.float64) - start
    return asked, lambda: (
        (6 * (asked.totals["update"].value - moved))[FIRST_LAYER],
        (parties.own[VICTIM][0] - moved)[FIRST_LAYER],
    )


ATTACKS = {own.__name__: own for own in (stc_model, stc_residual, lg_bodies, stale_models)}
STAGES = {own.__name__: own for own in (adds_stages, fltrust_stages)}
ways = pytest.mark.parametrize("how", ["masked", "two-server"])


@ways
@pytest.mark.parametrize("name", [*ATTACKS, *STAGES, "stale_newcomer"])
def test_nothing_opens_that_reads_state_of_the_servers_choice(name: str, how: str) -> None:
    asked, _ = (ATTACKS | STAGES | {"stale_newcomer": stale_newcomer})[name](how)
    assert asked.survivors == ()
    assert not asked.totals


@pytest.mark.parametrize("name", ATTACKS)
def test_without_the_rule_the_victim_is_read(name: str) -> None:
    with mock.patch.object(client, "require_agreed"), mock.patch.object(key_holder, "require_agreed"):
        _, read = ATTACKS[name]("two-server")
    found, own = read()
    assert np.abs(own).max() > 1e-4
    assert np.abs(found - own).max() < 0.01 * np.abs(own).max()


def test_a_server_that_follows_reads_a_newcomer_of_stale_models() -> None:
    """In a sum of six updates, a guess of one errs by about 0.9 of its size."""
    with mock.patch.object(client, "require_agreed"), mock.patch.object(key_holder, "require_agreed"):
        _, read = stale_newcomer("masked")
    found, own = read()
    assert np.linalg.norm(found - own) < 0.25 * np.linalg.norm(own)


@pytest.mark.parametrize("name", STAGES)
def test_without_the_digest_the_victim_is_read(name: str) -> None:
    module = adds if name == "adds_stages" else fltrust
    with mock.patch.object(module, "require_made_in"):
        _, read = STAGES[name]("two-server")
    found, own = read()
    assert np.abs(own).max() > 1e-4
    assert np.abs(found - own).max() < 0.01 * np.abs(own).max()


def test_state_of_another_session_serves_no_query() -> None:
    """Else the server asks for one update in two sums of two sessions, over two cohorts."""
    parties = Parties(ADDS, "masked")
    start = parties.algorithm.start().broadcast
    groups = parties.algorithm.averaged.supernet.groups
    public = {adds.MASK: adds.packed(np.ones(groups, np.bool_)), adds.FIRST: digest_of(start)}
    more: dict[str, Any] = {
        "size": int(parties.algorithm.averaged.supernet.entries(np.ones(groups, np.bool_)).sum()),
        "public": public,
    }
    assert parties.ask(1, EVERYBODY, start, size=groups).survivors == EVERYBODY
    assert parties.ask(1, OTHERS, start[:0], 1, 2, session=bytes([1] * 32), **more).survivors == ()


NOBODYS = {
    "of no model": np.arange(8.0),
    "with no number": np.full(8, np.nan),
    "above 32 bits": np.full(8, 2.0**40),
    "cut": digest_of(np.zeros(1, np.float32))[:7],
    "empty": np.zeros(0),
}


@pytest.mark.parametrize("which", NOBODYS)
def test_a_digest_of_a_model_that_nobody_can_compute_opens_nothing(which: str) -> None:
    """All clients abstain, and the next round is as if it had not been asked."""
    parties = Parties(ADDS, "masked")
    start, net = parties.algorithm.start().broadcast, parties.algorithm.averaged.supernet
    everything = np.ones(net.groups, np.bool_)
    size, answered = int(net.entries(everything).sum()), []
    for number, first in ((1, NOBODYS[which]), (2, digest_of(start))):
        assert parties.ask(number, EVERYBODY, start, size=net.groups).survivors == EVERYBODY
        public = {adds.MASK: adds.packed(everything), adds.FIRST: first}
        asked = parties.ask(number, EVERYBODY, start[:0], 1, 2, size=size, public=public)
        answered.append(asked.survivors)
    assert answered == [(), EVERYBODY]


@pytest.mark.parametrize("lost", [True, False])
def test_nothing_is_kept_of_a_masked_sum_that_did_not_open(lost: bool) -> None:
    """Masked vectors are lost, so clients computed their values, and nobody answers to the end."""
    parties = Parties(ADDS, "masked")
    start = parties.algorithm.start().broadcast
    net = Network(tamper=lambda sender, to, data: b"" if lost and b"masked-input" in data else data)
    query = parties.engine.query
    with mock.patch.object(parties.engine, "query", lambda asked, at: query(asked, at, net)):
        answers = parties.ask(1, EVERYBODY, start, size=parties.algorithm.averaged.supernet.groups)
    assert parties.own[VICTIM], "it computed its map"
    assert bool(answers.survivors) != lost
    assert set(parties.engine.kept) == set(() if lost else EVERYBODY)
