"""FedLog with bodies that are trained, and what epsilon is true for each body."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent
from support.tiny_dpsgd import config
from support.tiny_fedlog import world as digits_world
from support.tiny_study import charged, spied
from support.trained_bodies import FEDLOG, PLAN, context, prepared, run, study, world

from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.mechanisms.charges import Protection
from securefl.protocols.class_sums import Clipping
from securefl.protocols.fedlog.bodies import Trained
from securefl.protocols.fedlog.head import Prior, solve
from securefl.protocols.fedlog.options import FedLog, Heads
from securefl.study.composition import composition
from securefl.training import run_jobs
from securefl.training.heads import last_dense
from securefl.training.task import Bodies
from securefl.training.vector import to_vector

# What is true of each body -----------------------------------------------------------------------


def moved(body: str, client_bound: float | None = None, records: int = 6) -> list[float]:
    """|T - T'| of a client's statistic over removed records, each time prepared anew as the protocol does."""
    here = world()
    if body == "dp-sgd":
        here = replace(here, problem=replace(here.problem, private=DPSGD_CONFIG))
    options = FedLog(body=body, client_bound=client_bound)  # type: ignore[arg-type]
    (made,) = options.build(here.problem).contributions
    x, y = here.records[0]
    y = y.copy()
    y[0] = (y[0] + 5) % 10  # one record has a wrong label
    head = made.compute(context(here, x, y, np.zeros(0, np.float32))).floats().astype(np.float32)

    def twice(x: Any, y: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        first = made.compute(context(here, x, y, head))
        return made.compute(context(here, x, y, head, first.new_state or {})).floats()

    whole = twice(x, y)
    return [float(np.linalg.norm(whole - twice(np.delete(x, i, 0), np.delete(y, i)))) for i in range(records)]


DPSGD_CONFIG = config(expected_batch=10, steps=20, learning_rate=0.3)


def test_a_private_mechanisms_body_moves_too_and_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same sampling and noise a record moves the statistic further than D, by way of the body: what
    holds is no sensitivity but a composition, of the training's event and the statistic's given the body."""
    monkeypatch.setattr(run_jobs, "Source", lambda: Source(SecretKey(bytes(range(32)))))
    assert max(moved("dp-sgd")) > np.sqrt(2)
    problem = replace(world().problem, private=DPSGD_CONFIG)
    (made,) = FedLog(body="dp-sgd").build(problem).contributions
    charge = Protection(replace(PLAN, noise="local"), made.spec).charge()
    assert charge.server == ComposedDpEvent((GaussianDpEvent(3.0), DPSGD_CONFIG.event))


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, 1e20])
@pytest.mark.parametrize("label", [3, -1, 99])
def test_no_record_silences_a_client_that_is_charged_a_finite_epsilon(
    value: float, label: int, tmp_path: Path
) -> None:
    """Not by features that are not finite or make training diverge, nor by a label that is none."""
    of = study(
        FEDLOG + "\nclient_bound = 30.0",
        rounds=2,
        noise='"local"',
        epsilon="3.0",
        unit='"client"',
        adjacency='"zero-out"',
        non_private="[]",
    )
    here = world()
    records = [(x[:8].copy(), y[:8].copy()) for x, y in here.records]  # of more, training takes longer
    records[0][0][0], records[0][1][0] = value, label
    finished = run(of, tmp_path, replace(here, records=records))
    assert [record["answered"] for record in finished.records] == [list(range(10))] * 2
    assert finished.records[-1]["epsilon"]["server"] == pytest.approx(3.0, abs=1e-6)


def test_central_noise_is_fresh_in_every_run(tmp_path: Path) -> None:
    """With a public body the true sum is the same in each: only the noise differs."""
    arm = 'name = "FedLog"\nprotocol = "fedlog"'
    of = study(arm, rounds=1, noise='"central"', epsilon="1.0", adversaries='["others"]', non_private="[]")
    drawn = []
    for name in "abc":
        spy, _ = spied(of, tmp_path / name, world())
        sums = [state.memory["sum"] for state in spy.states]
        drawn += [after - before for before, after in pairwise(sums)]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert np.mean(one == other) < 0.01


def test_the_papers_claim_holds_for_a_public_body_only() -> None:
    """Specification of DP, 2.12: D = sqrt(2) per record at unit norm; the private body breaks it."""
    claimed = np.sqrt(2)
    assert max(moved("public")) <= claimed
    assert max(moved("private")) > 3 * claimed
    assert max(moved("private", client_bound=20.0)) <= 2 * 20.0, "what a client does at most, trained or not"


def test_a_private_body_has_no_record_level_epsilon_whatever_the_noise(tmp_path: Path) -> None:
    central: dict[str, str] = {"noise": '"central"', "epsilon": "0.1", "adversaries": '["others"]'}
    with pytest.raises(ConfigError, match="trained on the records"):
        composition(study(**{**central, "non_private": "[]"}), study().arms[0], world())
    finished = run(study(**central), tmp_path)
    assert finished.records[-1]["epsilon"]["others"] == np.inf
    quiet = run(study(), tmp_path / "quiet")
    assert finished.records[-1]["accuracy"] < quiet.records[-1]["accuracy"], "the noise is there all the same"


def test_a_clipped_client_has_a_finite_epsilon_that_counts_the_first_exchange(tmp_path: Path) -> None:
    of = study(
        FEDLOG + "\nclient_bound = 30.0",
        noise='"local"',
        epsilon="3.0",
        unit='"client"',
        adjacency='"zero-out"',
        non_private="[]",
    )
    finished = run(of, tmp_path)
    assert finished.records[-1]["epsilon"]["server"] == pytest.approx(3.0, abs=1e-6)
    _, plan = composition(of, of.arms[0], world())
    assert plan.max_releases == {"statistic": 4}, "three rounds and the exchange before them"
    assert charged(tmp_path) == {"statistic": 4 * 10}


@pytest.mark.parametrize("bound", [0.5, 20.0, 1000.0])
def test_a_clients_whole_statistic_is_scaled_to_its_bound(bound: float) -> None:
    here = world()
    (made,) = FedLog(body="private", client_bound=bound).build(here.problem).contributions
    x, y = here.records[0]
    clipped = made.compute(context(here, x, y, np.zeros(0, np.float32))).floats()
    (free,) = FedLog(body="private").build(here.problem).contributions
    whole = free.compute(context(here, x, y, np.zeros(0, np.float32))).floats()
    assert np.linalg.norm(clipped) <= bound
    factor = min(1.0, bound / float(np.linalg.norm(whole)))
    np.testing.assert_allclose(clipped, factor * whole, atol=3 * Clipping().grid.step)
    assert made.spec.sensitivity["client", "zero-out"] == bound
    assert made.spec.sensitivity["client", "replace-one"] == 2 * bound


# Training the bodies -----------------------------------------------------------------------------


def test_the_head_is_frozen_and_the_body_is_not() -> None:
    here = world()
    body = Trained(Bodies(here.problem), None)
    x, y = here.records[0]
    statistic = np.random.default_rng(0).normal(size=(10, 33)) + 5
    before = to_vector(here.problem.module(here.problem.initial))
    model, kept = prepared(body, context(here, x, y, statistic.ravel().astype(np.float32)))
    head = solve(statistic.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(last_dense(model).weight.detach(), head[:, 1:], rtol=1e-6)
    assert all(parameter.requires_grad for parameter in model.parameters()), "free again afterwards"
    assert kept is not None
    assert not np.array_equal(kept["model"][: 64 * 32], before[: 64 * 32])


def test_server_and_clients_solve_under_the_same_prior(tmp_path: Path) -> None:
    """A client that solved under another one would train its body under a head that nobody else has."""
    arm = FEDLOG + "\nprior = { chi = 0.5, nu = 40.0 }"
    given = study(arm, rounds=2)
    algorithm = given.arms[0].options.build(world().problem)
    assert isinstance(algorithm, Heads)
    assert isinstance(algorithm.statistic.body, Trained)
    assert algorithm.prior == algorithm.statistic.body.prior == Prior(chi=0.5, nu=40.0)
    spy, _ = spied(given, tmp_path, world())
    sent = spy.states[-1].broadcast
    mine, paper = algorithm.head(sent), solve(sent.astype(np.float64).reshape(10, -1))
    assert not np.allclose(mine, paper)
    here = world()
    x, y = here.records[0]
    model, _ = prepared(algorithm.statistic.body, context(here, x, y, sent))
    np.testing.assert_allclose(last_dense(model).weight.detach(), mine[:, 1:], rtol=1e-6)


def test_messages_are_two_statistics_whatever_the_body(tmp_path: Path) -> None:
    for hidden in ("[32]", "[128, 32]"):
        record = run(study(hidden=hidden, rounds=2), tmp_path / hidden, world(hidden)).records[1]
        statistic = 10 * 4 * 10 * 33  # clients, bytes, classes, features
        assert statistic < record["bytes_up"] < statistic + 10 * 200
        assert statistic < record["bytes_down"] < statistic + 10 * 350


def test_bodies_may_differ_and_share_a_head(tmp_path: Path) -> None:
    arm = FEDLOG + "\nshorter = 0.5"
    spy, finished = spied(study(arm, hidden="[48, 32]"), tmp_path, world("[48, 32]"))
    assert finished.records[-1]["accuracy"] > 0.9
    assert spy.states[-1].broadcast.shape == (10 * 33,)
    bodies = Bodies(world("[48, 32]").problem, 0.5)
    sizes = [len(bodies.of(client).initial) for client in range(10)]
    assert sizes[:5] == [64 * 32 + 32 + 33 * 10] * 5
    assert sizes[5:] == [64 * 48 + 48 + 48 * 32 + 32 + 33 * 10] * 5
    with pytest.raises(ConfigError, match="leave out the first"):
        composition(study(arm), study(arm).arms[0], world())


# What the observer tests on ----------------------------------------------------------------------


def test_test_records_are_dealt_like_the_training_records() -> None:
    here = world()
    tests = here.tests
    for (_, trained), (_, tested) in zip(here.records, tests, strict=True):
        assert set(tested) <= set(trained)
        assert len(set(trained)) == 2
    assert sum(len(y) for _, y in tests) == len(here.problem.server_y)
    seen = np.concatenate([x.reshape(len(x), -1) for x, _ in tests])
    assert sorted(map(bytes, seen)) == sorted(map(bytes, here.problem.server_x.reshape(len(seen), -1)))


def test_a_class_that_nobody_holds_is_tested_by_nobody() -> None:
    here = digits_world()
    records = [(x[y != 7], y[y != 7]) for x, y in here.records]
    tests = replace(here, records=records).tests
    assert not any((y == 7).any() for _, y in tests)


def test_a_regular_query_without_a_head_trains_the_body() -> None:
    """Else its statistic is the same in every round, and sums over two cohorts tell that of one client."""
    here = world()
    body: Any = FedLog(body="private", alpha=0.01).build(here.problem).statistic.body  # type: ignore[attr-defined]
    asked, kept = context(here, *here.records[0], np.zeros(0, np.float32)), [{}]
    for _ in range(2):
        _, state = prepared(body, replace(asked, kept=kept[-1]))
        kept.append(state)
    assert not np.array_equal(kept[1]["model"], kept[2]["model"])
    assert prepared(body, replace(asked, kept=kept[2], initial=1))[1] is None, (
        "an initial query trains nothing"
    )


def test_an_initial_query_is_about_the_initial_body_also_after_training() -> None:
    """Else, after a round without one client, it tells that client's statistic: the others' are known."""
    here = world()
    body: Any = FedLog(body="private").build(here.problem).statistic.body  # type: ignore[attr-defined]
    asked = context(here, *here.records[0], np.zeros(0, np.float32))
    _, trained = prepared(body, asked)
    states = ({}, trained or {})
    first, after = (
        np.array(to_vector(prepared(body, replace(asked, kept=kept, initial=1))[0])) for kept in states
    )
    assert np.array_equal(first, after)
