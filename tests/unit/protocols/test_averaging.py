"""The loop, its two aggregations and what clients send, by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_problem import client_context, tiny_problem

from securefl.algorithm.clients import ClientContext, Population, RoundResult, State, run_round
from securefl.algorithm.queries import Answers, ByCount, CohortQuery, Sum, Total
from securefl.core.errors import ConfigError, DataError
from securefl.protocols.averaging import Adam, Averaging, Selection, cohort_size
from securefl.protocols.baselines import ActiveFL, FedAdam, FedAvgRP
from securefl.protocols.contributions import Loss, Size
from securefl.protocols.fedavg import FedAvg
from securefl.protocols.parts import Part, Update
from securefl.training import mean_loss, to_vector, train
from securefl.training.task import Problem

CLIENTS = 4
SIZES = np.array([10.0, 20.0, 30.0, 40.0])
ROSTER = Population(clients=CLIENTS, seconds=np.arange(1.0, CLIENTS + 1))


@pytest.fixture
def problem() -> Problem:
    return tiny_problem(
        width=3, hidden=(4,), outputs=2, clients=CLIENTS, records=100, decay=0.5, batch_size=4
    )


class Clients:
    """Answers by hand: client k steps by k + 1 everywhere, weighs as asked, and `absent` stay silent."""

    def __init__(self, *, absent: tuple[int, ...] = (), numbers: dict[str, np.ndarray] | None = None) -> None:
        self.absent = absent
        self.numbers = {"size": SIZES, **(numbers or {})}
        self.asks: list[CohortQuery] = []

    def __call__(self, query: CohortQuery, stage: int) -> Answers:
        assert stage == len(self.asks)
        self.asks.append(query)
        there = tuple(k for k in query.cohort if k not in self.absent)
        totals = {s.spec.name: self._total(query, s, there) for s in query.sums}
        per_client = {
            e.spec.name: {k: float(self.numbers[e.spec.name][k]) for k in there} for e in query.per_client
        }
        return Answers(survivors=there, totals=totals, per_client=per_client)

    @staticmethod
    def _total(query: CohortQuery, question: Sum, there: tuple[int, ...]) -> Total:
        if question.spec.name == "count":
            return Total(np.array([SIZES[list(there)].sum()]), len(there))
        if isinstance(query.weights, ByCount):
            shares = [SIZES[k] / query.weights.total for k in there]
        else:
            shares = [query.weights.whole_weight((k,), question.spec) for k in there] if query.weights else []
        step = sum((share * (k + 1) for k, share in zip(there, shares, strict=True)), 0.0)
        return Total(np.full(question.size, step), sum(shares))


def one_round(algorithm: object, clients: Clients, state: State | None = None, number: int = 1) -> State:
    return played(algorithm, clients, state, number).state


def played(algorithm: object, clients: Clients, state: State | None = None, number: int = 1) -> RoundResult:
    state = state or algorithm.start()  # type: ignore[attr-defined]
    return run_round(algorithm, state, ROSTER, number, np.random.default_rng(0), clients)  # type: ignore[arg-type]


# Aggregation ------------------------------------------------------------------------------------


def test_partial_is_the_plain_mean_over_the_survivors(problem: Problem) -> None:
    algorithm = FedAvg(fraction=1.0, aggregation="partial").build(problem)
    after = one_round(algorithm, Clients(absent=(3,)))
    np.testing.assert_allclose(after.broadcast, problem.initial + (1 + 2 + 3) / 3, rtol=1e-6)


def test_a_client_of_unknown_size_counts_as_an_average_one_under_full(problem: Problem) -> None:
    """Who is absent from the sum of counts neither shrinks the cohort nor gives its weight to the others."""
    algorithm = FedAvg(fraction=1.0, aggregation="full").build(problem)
    clients = Clients(absent=(1, 2))
    ended = played(algorithm, clients)
    counting, training = clients.asks
    assert (counting.cohort, counting.sums[0].spec.name) == ((0, 1, 2, 3), "count")
    assert training.cohort == (0, 1, 2, 3)
    assert training.weights == ByCount(100)  # of 10 + 40 from two of four clients
    np.testing.assert_allclose(ended.state.broadcast, problem.initial + 0.1 * 1 + 0.4 * 4, rtol=1e-6)
    assert ended.drawn == {0: 1, 1: 1, 2: 1, 3: 1}
    assert ended.survivors == (0, 3)
    nobody = Clients(absent=(0, 1, 2, 3))
    one_round(algorithm, nobody)
    assert nobody.asks[-1].weights == ByCount(problem.records)
    again = Clients()
    one_round(algorithm, again, ended.state, number=2)
    assert len(again.asks) == 1, "counts are asked for once in a run"


@pytest.mark.parametrize("claim", [-1e9, -1.0, 0.0, 0.5, 101.0, 1.7e308, math.inf, math.nan])
def test_no_client_can_claim_a_size_that_spoils_the_weights(problem: Problem, claim: float) -> None:
    question = Size(problem).query
    assert not question.allows(claim)
    assert question.allows(1.0)
    assert question.allows(100.0)


@pytest.mark.parametrize("claim", [-1e-9, 1.1e6, math.inf, math.nan])
def test_no_client_can_claim_a_loss_that_no_client_has(claim: float) -> None:
    assert not Loss(None).query.allows(claim)  # type: ignore[arg-type]
    assert Loss(None).query.allows(0.0)  # type: ignore[arg-type]


def test_introductions_send_the_model_only_where_it_is_read(problem: Problem) -> None:
    sizes = Clients()
    one_round(FedAvgRP(fraction=1.0, scheme="I").build(problem), sizes)
    assert [query.broadcast.size for query in sizes.asks] == [0, len(problem.initial)]
    losses = Clients(numbers={"loss": np.ones(CLIENTS)})
    one_round(ActiveFL(fraction=1.0).build(problem), losses)
    assert [query.broadcast.size for query in losses.asks] == [len(problem.initial), 0, len(problem.initial)]


def test_fedadam_hands_its_options_to_the_server_adam(problem: Problem) -> None:
    algorithm: Any = FedAdam(fraction=0.5, learning_rate=0.02, beta1=0.5, beta2=0.7).build(problem)
    assert algorithm.server == Adam(learning_rate=0.02, beta1=0.5, beta2=0.7)
    assert algorithm.aggregation == "partial"


# The loop ---------------------------------------------------------------------------------------


@every(
    ("fraction", "clients", "size"), [(0.2, 60, 12), (0.1, 30, 3), (0.05, 50, 3), (1.0, 7, 7), (1e-12, 9, 1)]
)
def test_cohort_is_the_ceiling_of_c_n(fraction: float, clients: int, size: int) -> None:
    """K = ceil(C N), where 0.1 * 30 is 3 and not the 3.0000000000000004 of floats."""
    assert cohort_size(fraction, clients) == size


def test_everybody_is_introduced_once_and_the_unknown_again(problem: Problem) -> None:
    algorithm = ActiveFL(fraction=0.5).build(problem)
    losses = {"loss": np.array([1.0, 2.0, 3.0, 4.0])}
    first = Clients(absent=(2,), numbers=losses)
    state = one_round(algorithm, first)
    assert [query.cohort for query in first.asks[:2]] == [(0, 1, 2, 3)] * 2  # loss and size, each on its own
    assert len(first.asks) == 3
    assert np.isnan(state.memory["loss"][2])
    second = Clients(numbers=losses)
    state = one_round(algorithm, second, state, number=2)
    assert [query.cohort for query in second.asks[:2]] == [(2,)] * 2
    assert not any(query.sums for query in second.asks[:2])
    third = Clients(numbers=losses)
    one_round(algorithm, third, state, number=3)
    assert len(third.asks) == 1


def test_a_number_that_could_not_be_opened_keeps_the_older(problem: Problem) -> None:
    algorithm = ActiveFL(fraction=1.0).build(problem)

    class Unopened(Clients):
        def __call__(self, query: CohortQuery, stage: int) -> Answers:
            answers = super().__call__(query, stage)
            loss = {k: v for k, v in answers.per_client["loss"].items() if k != 1}
            return replace(answers, per_client={**answers.per_client, "loss": loss})

    state = one_round(algorithm, Clients(numbers={"loss": np.full(CLIENTS, 1.0)}))
    later = one_round(
        algorithm, Unopened(absent=(3,), numbers={"loss": np.full(CLIENTS, 9.0)}), state, number=5
    )
    assert later.memory["loss"].tolist() == [9.0, 1.0, 9.0, 1.0]
    assert state.memory["loss"].tolist() == [1.0] * CLIENTS, "the old state changed"


# What clients send ------------------------------------------------------------------------------


def context(problem: Problem, number: int = 1) -> ClientContext:
    data = np.random.default_rng(8)
    return client_context(
        data.random((9, 3), dtype=np.float32),
        data.integers(2, size=9),
        round=number,
        broadcast=problem.initial,
        rng=np.random.default_rng(1),
    )


def test_an_update_is_the_trained_model_less_the_broadcast(problem: Problem) -> None:
    """Round 2 trains at the decayed rate: rounds count from 1, the rate's exponent from 0."""
    for number in (1, 2):
        mine = context(problem, number)
        model = problem.model.build(problem.shape, problem.outputs, problem.seed)
        train(model, mine.x, mine.y, problem.local, "cross_entropy", np.random.default_rng(1), number - 1)
        value = Update(Part(problem)).compute(context(problem, number)).clear
        np.testing.assert_array_equal(value, to_vector(model) - problem.initial)
        assert np.abs(value).max() > 0


def test_a_client_that_holds_out_nothing_by_chance_tells_the_loss_of_its_training(problem: Problem) -> None:
    mine = context(problem)
    apart = replace(mine, held=(mine.x[:4], mine.y[:4]), x=mine.x[4:], y=mine.y[4:])
    none = replace(mine, held=(mine.x[:0], mine.y[:0]))
    model = problem.module(problem.initial)
    of_held = mean_loss(model, mine.x[:4], mine.y[:4], "cross_entropy")
    assert Loss(problem).compute(apart).clear.tolist() == [of_held]
    assert Loss(problem).compute(none).clear.tolist() == Loss(problem).compute(mine).clear.tolist()


@pytest.mark.parametrize(("value", "label"), [(0.0, 99), (0.0, -1), (np.nan, 0)])
def test_a_loss_of_a_record_that_fits_no_model_is_not_told(
    problem: Problem, value: float, label: int
) -> None:
    mine = context(problem)
    odd = np.full((1, *mine.x.shape[1:]), value, np.float32)
    own = replace(mine, x=np.concatenate([mine.x, odd]), y=np.concatenate([mine.y, [label]]))
    with pytest.raises(DataError, match="known labels"):
        Loss(problem).compute(own)


class Claiming(Clients):
    """Clients of which one claims so many records that the sum of counts is `claim`."""

    def __init__(self, claim: float) -> None:
        super().__init__()
        self.claim = claim

    def __call__(self, query: CohortQuery, stage: int) -> Answers:
        found = super().__call__(query, stage)
        counts = {name: Total(np.array([self.claim]), CLIENTS) for name in found.totals if name == "count"}
        return replace(found, totals={**found.totals, **counts})


def test_no_client_can_claim_records_that_spoil_the_weights(problem: Problem) -> None:
    for claim, within in ((1e9, problem.records), (-1e9, CLIENTS), (0.0, CLIENTS)):
        clients = Claiming(claim)
        one_round(FedAvg(fraction=1.0, aggregation="full").build(problem), clients)
        assert clients.asks[-1].weights == ByCount(within)


@every(("options", "asked"), [(FedAvg(fraction=1.0), "count"), (FedAvgRP(fraction=1.0, scheme="I"), "size")])
def test_who_has_retired_is_not_asked_for_its_numbers(options: Any, asked: str, problem: Problem) -> None:
    algorithm = options.build(problem)
    population = replace(ROSTER, retired=frozenset({1}))
    first = next(algorithm.round(algorithm.start(), population, 1, np.random.default_rng(0)))
    assert [spec.name for spec in first.wants()] == [asked]
    assert first.cohort == (0, 2, 3)


@dataclass(frozen=True)
class Own(Selection):
    """A person's own selection."""

    chosen: Any

    def draw(self, *_: Any) -> Any:
        return self.chosen(3) if callable(self.chosen) else self.chosen


def drawn_by_own(problem: Problem, chosen: Any) -> RoundResult:
    averaging = Averaging(problem=problem, fraction=0.5, selection=Own(chosen))
    return run_round(averaging, averaging.start(), ROSTER, 1, np.random.default_rng(0), Clients())


def test_numpys_numbers_are_draws(problem: Problem) -> None:
    drawn = drawn_by_own(problem, {k: np.int32(1) for k in np.arange(3)}).drawn
    assert drawn == {0: 1, 1: 1, 2: 1}
    assert {type(number) for pair in drawn.items() for number in pair} == {int}


@every("chosen", [[0, 1, 2], None, {0.5: 1}, {CLIENTS: 1}, {-1: 1}, {0: 0}, {"a": 1}, lambda k: [][k]])
def test_what_is_no_draw_is_refused_in_a_line(problem: Problem, chosen: Any) -> None:
    with pytest.raises(ConfigError, match="Own") as caught:
        drawn_by_own(problem, chosen)
    assert ("IndexError" if callable(chosen) else "{0: 1, 2: 1}, got ") in str(caught.value)
