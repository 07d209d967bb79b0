"""A client's search: what it finds, what it is drawn from, and who cannot search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.every import every
from support.supernets import CNN, MLP, context, supernet

from securefl.algorithm.clients import ClientContext
from securefl.core.errors import DataError
from securefl.protocols.adds.contributions import Map
from securefl.protocols.adds.importance import Criterion
from securefl.protocols.adds.subnet_search import Search, Subnet, redrawn, search_job, skew, subnet_of
from securefl.protocols.adds.supernet import Supernet
from securefl.study.lying import Lied
from securefl.training import ModelConfig
from securefl.training.cohorts import Batched
from securefl.training.jobs import TrainingJob, TrainingResult
from securefl.training.parallel import Forked
from securefl.training.run_jobs import one_by_one, run_job

SEARCH = Search(importance="slim", rate=0.05)


def search(net: Supernet, config: Search, own: ClientContext) -> Subnet:
    return subnet_of(net, own, run_job(search_job(net, config, own)))


def test_a_search_is_drawn_from_the_clients_stream_and_learns() -> None:
    net = supernet(CNN)
    first, second = search(net, SEARCH, context(net)), search(net, SEARCH, context(net))
    np.testing.assert_array_equal(first.model, second.model)
    np.testing.assert_array_equal(first.units, second.units)
    assert not np.array_equal(first.model, net.problem.initial)
    assert first.units.sum() < net.units
    for layer, alpha in zip(net.sampled, first.alpha, strict=True):
        assert first.units[layer.own].sum() == np.ceil(alpha * layer.units - 1e-9)
        assert SEARCH.min_rate <= alpha < 0.9


def test_a_fixed_lambda_is_that_of_every_client() -> None:
    """A larger one gives smaller subnets, whatever the labels; the skew's own value gives the same search."""
    net = supernet(ModelConfig(kind="mlp", hidden=(60, 40)))
    config = replace(SEARCH, optimizer="sgd", rate=0.05, mask_temperature=0.3)
    sizes = [
        net.parameters(search(net, replace(config, fixed_lambda=weight), context(net, records=60)).units)
        for weight in (0.0, 0.4, 1.2)
    ]
    assert sizes[0] > sizes[1] > sizes[2]
    own = search(net, config, context(net, records=60))
    same = search(net, replace(config, fixed_lambda=own.skew + 0.5), context(net, records=60))
    np.testing.assert_array_equal(own.units, same.units)
    np.testing.assert_array_equal(own.model, same.model)


def test_skew_is_0_for_uniform_labels_and_1_for_one_class() -> None:
    assert skew(np.arange(10).repeat(3), 10) == pytest.approx(0, abs=1e-12)
    assert skew(np.zeros(5, np.int64), 10) == pytest.approx(1)
    two, five = (skew(np.arange(k), 10) for k in (2, 5))
    assert 0 < five < two < 1


def test_validation_is_redrawn_and_never_empty() -> None:
    rng = np.random.default_rng(0)
    draws = [redrawn(40, 0.1, rng) for _ in range(3)]
    assert len({tuple(held) for _, held in draws}) == 3
    for learning, held in draws:
        assert len(held) == 4
        assert sorted([*learning, *held]) == list(range(40))
    assert [len(part) for part in redrawn(2, 0.1, rng)] == [1, 1]
    assert [len(part) for part in redrawn(2, 0.99, rng)] == [1, 1]


@every("records", [0, 1])
def test_a_client_without_validation_records_is_told(records: int) -> None:
    net = supernet(CNN)
    own = context(net)
    with pytest.raises(DataError, match=r"one record|two records"):
        search(net, SEARCH, replace(own, x=own.x[:records], y=own.y[:records]))


@every("criterion", ["slim", "activation", "lrp"])
@every("value", [np.nan, 1e30])
def test_a_broadcast_that_leads_nowhere_costs_its_client_alone(criterion: Criterion, value: float) -> None:
    """A server may send any model. A rate that is not a number once kept a client busy for ever."""
    net = supernet(CNN)
    own = context(net)
    with pytest.raises(DataError, match="diverged"):
        search(
            net,
            replace(SEARCH, importance=criterion),
            replace(own, broadcast=np.full_like(own.broadcast, value)),
        )


def test_a_search_whose_slopes_overflow_is_told() -> None:
    """The weights know nothing of lambda, so their model stays finite."""
    net = supernet(MLP)
    with pytest.raises(DataError, match="diverged"):
        search(net, replace(SEARCH, fixed_lambda=1e308), context(net))


@every("label", [-1, 10])
def test_a_label_that_is_no_class_is_told(label: int) -> None:
    net = supernet(MLP)
    own = context(net)
    with pytest.raises(DataError, match="labels from 0 to 9"):
        search(net, SEARCH, replace(own, y=np.where(np.arange(40) == 3, label, own.y)))


def test_a_first_rate_below_the_least_is_refused() -> None:
    with pytest.raises(ValueError, match="min_rate"):
        replace(SEARCH, initial=0.05)


@every("resample_per_pass", [False, True])
@every("optimizer", ["adam", "sgd"])
def test_clients_search_beside_others_as_alone(resample_per_pass: bool, optimizer: str) -> None:
    """Of different sizes, the smallest with one record to learn from. Its bits hang on no other client."""
    net = supernet(MLP)
    config = Search(optimizer=optimizer, resample_per_pass=resample_per_pass)  # type: ignore[arg-type]
    own = [context(net, records=n, client=n) for n in (2, 9, 23, 40)]

    def jobs() -> list[TrainingJob]:
        fresh = [replace(one, rng=np.random.default_rng(one.client)) for one in own]
        return [search_job(net, config, one) for one in fresh]

    together, alone = Batched(nobody)(jobs()), one_by_one(jobs())
    for place, (one, few, many) in enumerate(zip(own, alone, together, strict=True)):
        found, expected = subnet_of(net, one, many), subnet_of(net, one, few)
        np.testing.assert_allclose(found.model, expected.model, atol=1e-5)
        np.testing.assert_allclose(found.alpha, expected.alpha, atol=1e-6)
        np.testing.assert_array_equal(found.units, expected.units)
        assert not np.array_equal(found.model, net.problem.initial)
        (apart,) = Batched(nobody)(jobs()[place : place + 1])
        np.testing.assert_array_equal(np.array(apart).view(np.int32), np.array(many).view(np.int32))


def test_clients_search_in_worker_processes_as_in_one() -> None:
    """Of a model whose result takes more room than the least that a worker has."""
    net = supernet(ModelConfig(kind="mlp", hidden=(700,)), size=2)
    jobs = [[search_job(net, SEARCH, context(net, client=k)) for k in range(3)] for _ in range(2)]
    for one, other in zip(Forked(2)(jobs[0]), one_by_one(jobs[1]), strict=True):
        np.testing.assert_array_equal(np.array(one).view(np.int32), np.array(other).view(np.int32))


def test_a_search_that_diverges_costs_its_client_alone() -> None:
    net = supernet(MLP)
    own = [context(net, client=k) for k in range(3)]
    own[1] = replace(own[1], broadcast=np.full_like(net.problem.initial, 1e30))
    own.append(context(net, records=1))
    found = Batched(one_by_one)([search_job(net, SEARCH, one) for one in own])
    assert [isinstance(result, DataError) for result in found] == [False, True, False, True]


def test_a_client_that_lies_about_its_model_has_the_subnet_that_it_found() -> None:
    net = supernet(MLP)
    honest = Map(net, SEARCH)
    lied = Lied(honest, {0: "reversed"}, 1.0)
    told, found = (own.compute(context(net)).new_state for own in (lied, honest))
    assert told is not None
    assert found is not None
    np.testing.assert_array_equal(told["units"], found["units"])
    np.testing.assert_allclose(told["after"] - told["before"], found["before"] - found["after"], atol=1e-6)
    assert not np.array_equal(told["after"], found["after"])


def nobody(jobs: Sequence[TrainingJob]) -> list[TrainingResult]:
    assert not jobs, "all of them can search side by side"
    return []
