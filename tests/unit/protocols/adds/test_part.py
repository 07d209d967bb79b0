"""Two sums, divided entry by entry; and what a server could try between them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.every import every
from support.supernets import CNN, LOCAL, MLP, context, problem, supernet
from support.tiny_dpsgd import config
from support.tiny_study import spied, study

from securefl.algorithm.clients import ClientContext, Population, State
from securefl.algorithm.queries import Answers, CohortQuery
from securefl.core.errors import ConfigError, DataError
from securefl.core.messages import task
from securefl.core.wire import Header
from securefl.engine.exchange.server import broadcast_of, order_of
from securefl.protocols.adds import Adds
from securefl.protocols.adds.contributions import FIRST, MASK, packed, unpacked
from securefl.protocols.adds.part import Subnets
from securefl.protocols.averaging import weights
from securefl.protocols.client_state import digest_of
from securefl.protocols.contributions import Sampling
from securefl.protocols.parts import ServerContext

COHORT = {0: 1, 1: 1, 2: 1}


def part(fewest: int = 1, **changes: Any) -> Subnets:
    options = Adds(fraction=1.0, rate=0.1, importance="lrp", min_clients_per_entry=fewest)
    built = options.build(problem(MLP, **changes))
    return built.part  # type: ignore[attr-defined, no-any-return]


def asked(own: Subnets) -> CohortQuery:
    return CohortQuery(
        cohort=tuple(COHORT),
        broadcast=own.initial,
        weights=weights("partial", COHORT, State(own.initial)),
    )


class Clients:
    """Clients that compute what they are asked for, in the clear."""

    def __init__(self, own: Subnets, lost: tuple[int, ...] = ()) -> None:
        self.contributions = {
            contribution.spec.name: contribution for contribution in own.contributions(Sampling())
        }
        self.jobs = {k: context(own.supernet, client=k, classes=2) for k in COHORT}
        self.lost = lost
        self.asks: list[CohortQuery] = []

    def answer(self, query: CohortQuery) -> Answers:
        self.asks.append(query)
        (question,) = query.sums
        contribution, total = self.contributions[question.spec.name], np.zeros(question.size, np.int64)
        # in the second ask some are lost
        there = tuple(k for k in query.cohort if len(self.asks) == 1 or k not in self.lost)
        for k in there:
            own = replace(self.jobs[k], public=query.public, broadcast=query.broadcast)
            value = contribution.compute(own)
            assert value.new_state is not None
            self.jobs[k] = replace(self.jobs[k], kept=value.new_state)
            weight = query.weights.whole_weight((k,), question.spec)  # type: ignore[union-attr]
            total += question.spec.grid.quantise(value.floats(), weight)
        return Answers(
            survivors=there, totals={question.spec.name: query.total(question, total, there)}, per_client={}
        )


def gathered(own: Subnets, clients: Clients, fewest: int = 1) -> tuple[NDArray[Any] | None, Answers]:
    population = Population(clients=4, seconds=np.ones(4), fewest=lambda cohort: fewest)
    rng, contributions = np.random.default_rng(0), own.contributions(Sampling())
    here = ServerContext(population=population, number=1, rng=rng, contributions=contributions)
    turn = own.gather(asked(own), here)
    try:
        answers = clients.answer(next(turn))
        while True:
            answers = clients.answer(turn.send(answers))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def maps_of(own: Subnets) -> dict[int, tuple[NDArray[Any], NDArray[Any]]]:
    """Of each client, its entries and its model."""
    (first, _), found = own.contributions(Sampling()), {}
    for k in COHORT:
        value = first.compute(context(own.supernet, client=k, classes=2))
        assert value.new_state is not None
        assert value.integers is not None
        entries = own.supernet.entries(value.integers.astype(np.bool_))
        model = np.zeros(len(entries))
        model[entries] = value.new_state["after"].astype(np.float64) - own.initial[entries]
        found[k] = (entries, model)
    return found


def test_each_entry_is_the_mean_of_those_that_have_it() -> None:
    own = part()
    step, answers = gathered(own, Clients(own))
    assert step is not None
    assert answers.survivors == tuple(COHORT)
    maps = maps_of(own)
    counts = np.sum([entries for entries, _ in maps.values()], axis=0)
    sums = np.sum([model for _, model in maps.values()], axis=0)
    assert {0, 3} < set(counts), "choose another seed: some entry has nobody, one has all, one has some"
    np.testing.assert_array_equal(step[counts == 0], 0)
    np.testing.assert_allclose(step[counts > 0], (sums / np.maximum(counts, 1))[counts > 0], atol=1e-5)


def test_an_entry_of_few_clients_stays_out_of_a_hidden_second_sum() -> None:
    """An entry that one client trained would be that client's, whatever the sum hides."""
    own = part()
    clients = Clients(own)
    step, _ = gathered(own, clients, fewest=3)
    assert step is not None
    counts = np.sum([entries for entries, _ in maps_of(own).values()], axis=0)
    np.testing.assert_array_equal(step[counts < 3], 0)
    assert step[counts == 3].any()
    assert clients.asks[1].sums[0].size == (counts == 3).sum()
    few = Clients(own)
    nobody, answers = gathered(own, few, fewest=4)
    assert nobody is None
    assert len(few.asks) == 1
    assert answers.survivors == ()


def test_the_options_least_number_holds_in_the_clear_too() -> None:
    strict, hidden = part(fewest=3), part()
    first, second = gathered(strict, Clients(strict)), gathered(hidden, Clients(hidden), fewest=3)
    np.testing.assert_array_equal(first[0], second[0])


def test_who_is_lost_between_the_two_sums_counts_with_the_old_model() -> None:
    own = part()
    step, answers = gathered(own, Clients(own, lost=(1,)))
    assert step is not None
    assert answers.survivors == (0, 2)
    maps = maps_of(own)
    counts = np.sum([entries for entries, _ in maps.values()], axis=0)
    sums = maps[0][1] + maps[2][1]
    np.testing.assert_allclose(step[counts > 0], (sums / np.maximum(counts, 1))[counts > 0], atol=1e-5)


def test_the_mask_stands_in_what_clients_sign() -> None:
    """A server that shows one client another mask would read its entries off the sum: no two digests fit."""
    header = Header(bytes(32), 1, 1, 1)
    one, other = np.ones(40, np.bool_), np.ones(40, np.bool_)
    other[3] = False
    digests = {
        task(header, order_of(query), broadcast_of(query))
        for mask in (one, other)
        for query in [
            CohortQuery(cohort=(0, 1), broadcast=np.zeros(0, np.float32), public={MASK: packed(mask)})
        ]
    }
    assert len(digests) == 2


@every("groups", [1, 31, 32, 33, 100])
def test_a_mask_comes_back(groups: int) -> None:
    mask = np.random.default_rng(groups).random(groups) < 0.5
    np.testing.assert_array_equal(unpacked(packed(mask), groups), mask)


@every("words", [[], [1.0, 2.0], [0.5], [-1.0], [2.0**32], [np.nan], [np.inf]])
def test_a_mask_of_other_words_is_refused(words: list[float]) -> None:
    with pytest.raises(DataError, match="whole numbers"):
        unpacked(np.array(words), 20)


def test_an_update_is_not_told_without_its_map_of_this_round() -> None:
    """A server that skips the maps, or comes back to an older subnet, is told nothing."""
    own = part()
    first, second = own.contributions(Sampling())
    start = context(own.supernet)
    everything = {
        MASK: packed(np.ones(own.supernet.groups, np.bool_)),
        FIRST: digest_of(start.broadcast),
    }
    kept = first.compute(start).new_state
    assert kept is not None
    told = second.compute(replace(start, kept=kept, public=everything))
    for asked_too_early in (
        replace(start, public=everything),
        replace(start, kept=kept, public=everything, round=2),
        replace(start, kept=told.new_state or {}, public=everything),
        replace(start, kept=kept, public=everything, session=b"another"),
        replace(start, kept=kept, public={MASK: everything[MASK]}),
        replace(start, kept=kept, public={**everything, FIRST: digest_of(start.broadcast + 1)}),
    ):
        with pytest.raises(DataError, match="Ask first for the value that trains it"):
            second.compute(asked_too_early)


def spoilt(own: ClientContext) -> ClientContext:
    return replace(own, x=own.x[:0], y=own.y[:0])


def test_under_a_bound_a_client_without_records_is_not_silent() -> None:
    """Silence would tell: it has no entry, and its update is 0."""
    bounded = part(local=replace(LOCAL, update_bound=0.5))
    first, second = bounded.contributions(Sampling())
    start = spoilt(context(bounded.supernet))
    value = first.compute(start)
    assert value.integers is not None
    assert not value.integers.any()
    mask = np.zeros(bounded.supernet.groups, np.bool_)
    mask[:5] = True
    public = {MASK: packed(mask), FIRST: digest_of(start.broadcast)}
    update = second.compute(replace(start, kept=value.new_state or {}, public=public))
    assert update.integers is not None
    assert not update.integers.any()
    assert len(update.integers) == bounded.supernet.entries(mask).sum()
    plain = part()
    with pytest.raises(DataError, match="at least one record"):
        plain.contributions(Sampling())[0].compute(spoilt(context(plain.supernet)))


def test_under_a_bound_one_record_that_is_of_no_use_does_not_undo_a_clients_part() -> None:
    bounded = part(local=replace(LOCAL, update_bound=0.5))
    own = context(bounded.supernet)
    x, y = own.x.copy(), own.y.copy()
    x[3], y[5] = np.nan, 10
    value = bounded.contributions(Sampling())[0].compute(replace(own, x=x, y=y))
    assert value.integers is not None
    assert value.integers.any()


def test_a_rate_of_1_is_unweighted_fedavg_bit_for_bit(tmp_path: Path) -> None:
    adds = '[[arm]]\nname = "x"\nprotocol = "adds"\nfraction = 0.5\ninitial = 1.0\n'
    plain = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 0.5\naggregation = "partial"\n'
    (own, _), (other, _) = (
        spied(study(arm, clients=7, rounds=3), tmp_path / name)
        for name, arm in (("adds", adds), ("plain", plain))
    )
    for one, two in zip(own.states, other.states, strict=True):
        np.testing.assert_array_equal(one.broadcast, two.broadcast)
    assert not np.array_equal(own.states[0].broadcast, own.states[-1].broadcast)


def test_in_the_clear_zeros_take_no_bytes_and_an_observer_sees_the_subnets(tmp_path: Path) -> None:
    arm = '[[arm]]\nname = "x"\nprotocol = "adds"\nfraction = 1.0\nrate = 0.1\nimportance = "slim"\n'
    _, finished = spied(study(arm, clients=3, rounds=1), tmp_path)
    (record,) = finished.records
    shares = np.array(record["figures"]["parameters"][1])
    assert len(shares) == 3
    assert (shares < 0.6).all()
    parameters = 65 * 8 + 9 * 10
    # a bit for each entry and group, and 4 bytes for each parameter of a subnet
    most = 4 * parameters * shares.sum() + 3 * (parameters / 8 + 5 + 300)
    assert 4 * parameters * shares.sum() < record["bytes_up"] < most
    assert set(record["figures"]) == {"parameters", "macs", "skew", "rate of fc1"}


def test_what_subnets_cannot_be_searched_under_is_refused() -> None:
    options = Adds(fraction=1.0)
    with pytest.raises(ConfigError, match=r"no \[dpsgd\]"):
        options.build(problem(MLP, private=config()))
    with pytest.raises(ConfigError, match="two classes or more"):
        options.build(problem(MLP, kind="regression"))
    assert supernet(CNN).units
