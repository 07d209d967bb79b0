"""Client-level privacy: clipped updates under noise, wherever it is added and however they are summed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.private_studies import DISTRIBUTED, KEY_HOLDER
from support.private_studies import client_level as study
from support.tiny_problem import client_context
from support.tiny_study import composed, run, spied, world

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientContext
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum
from securefl.core.errors import ConfigError, DataError
from securefl.core.streams import client_stream, stream
from securefl.core.wire import Header
from securefl.engine.inprocess import simulated
from securefl.protocols.contributions import Sampling, bounded
from securefl.protocols.parts import Part, Update
from securefl.study.seeded import World
from securefl.training import train

PRIVACIES = [
    {},
    {"noise": '"local"'},
    *({**DISTRIBUTED, "sum": f'"{way}"'} for way in ("masked", "ckks", "two-server")),
    KEY_HOLDER,
]
"""One protocol meets each of them in `make test`, under both adjacencies; the others meet two."""


@pytest.mark.parametrize(
    ("name", "adjacency", "privacy"),
    [
        pytest.param(
            name,
            adjacency,
            privacy,
            marks=[] if name == "fedavg" or (turn < 2 and adjacency == "zero-out") else pytest.mark.slow,
        )
        for name in ("fedavg", "fedadam", "lg_fedavg")
        for adjacency in ("zero-out", "replace-one")
        for turn, privacy in enumerate(PRIVACIES)
    ],
)
def test_a_run_costs_what_was_asked_for(
    name: str, adjacency: str, privacy: dict[str, str], tmp_path: Path
) -> None:
    of = study(name, adjacency=f'"{adjacency}"', **privacy)
    finished = run(of, tmp_path)
    spent = finished.records[-1]["epsilon"]
    assert spent["others"] == pytest.approx(8.0, rel=1e-3)
    assert spent["server"] == (np.inf if not privacy else pytest.approx(8.0, rel=1e-3))
    assert spent["key-holder"] == (np.inf if privacy is KEY_HOLDER else 0)
    assert all(len(record["answered"]) == 6 for record in finished.records)


def test_profiles_beside_it_are_still_endless(tmp_path: Path) -> None:
    spent = run(study("fedprof"), tmp_path).records[-1]["epsilon"]
    assert spent["others"] == np.inf


def test_without_a_bound_no_noise_is_enough() -> None:
    of = study()
    of = replace(of, local=replace(of.local, update_bound=None))
    with pytest.raises(ConfigError, match="one client moves it"):
        composed(of)


def test_a_bound_does_not_help_a_record() -> None:
    of = study(unit='"record"', adjacency='"add-remove"', delta="1e-4")
    with pytest.raises(ConfigError, match="one record moves it"):
        composed(of)


def test_cohorts_without_a_least_size_have_no_shares() -> None:
    of = study("fedprof", more="replacement = true\n", **DISTRIBUTED)
    with pytest.raises(ConfigError, match="Expected a least size"):
        composed(of)


@pytest.mark.parametrize("bound", ["0.0", "1e-4", "2048.0", "inf", "nan"])
def test_a_bound_is_a_number_that_a_grid_can_have(bound: str) -> None:
    with pytest.raises(ConfigError, match="update_bound"):
        study(bound=bound)


# Clipping ----------------------------------------------------------------------------------------


def context(here: World, **changed: Any) -> ClientContext:
    x, y = here.records[0]
    plain = client_context(x, y, broadcast=here.problem.initial, rng=stream(1, "client", 1, 0))
    return replace(plain, **changed)


@pytest.mark.parametrize("bound", [0.01, 0.37, 1.0, 700.0])
def test_no_client_moves_the_sum_by_more_than_the_bound(bound: float) -> None:
    of = study(bound=str(bound))
    here = world(of)
    update = Update(Part(here.problem), Sampling(cohort=6))
    grid = update.spec.grid
    x, y = here.records[0]
    odd = [np.full_like(x, value) for value in (1e30, np.nan, np.inf, -1e15, 1e-40)]
    labels = np.full_like(y, 99)
    for mine in (
        context(here),
        *(context(here, x=o) for o in odd),
        context(here, y=labels),
        context(here, x=x[:0], y=y[:0]),
    ):
        with np.errstate(all="ignore"):
            value = update.compute(mine).floats()
        integers = np.rint(value / grid.step).astype(np.int64)
        assert np.array_equal(integers * grid.step, value)
        assert sum(int(i) ** 2 for i in integers) <= (bound / grid.step) ** 2


def test_a_small_update_is_only_rounded_and_a_large_one_keeps_its_direction() -> None:
    here = world(study(bound="4.0"))
    model = here.problem.module(here.problem.initial)
    mine = context(here)
    train(model, mine.x, mine.y, here.problem.local, here.problem.loss, stream(1, "client", 1, 0), 0)
    loose = Update(Part(here.problem))
    whole = loose.compute(mine).floats()
    small = world(study(bound="0.1")).problem
    clipped = Update(Part(small)).compute(context(here)).floats()
    assert np.linalg.norm(whole) > 0.5
    assert 0.0999 < np.linalg.norm(clipped) <= 0.1
    cosine = clipped @ whole / np.linalg.norm(clipped) / np.linalg.norm(whole)
    assert cosine > 0.999


def test_without_noise_a_bound_far_above_the_updates_loses_nothing() -> None:
    """On the grid for noise nearly every entry is 0, and the run learnt nothing."""
    here = world(study(bound="1000.0"))
    quiet = replace(here.problem, planned=lambda sent: Plan(delta=1e-5, max_rounds=1))
    free = replace(quiet, local=replace(quiet.local, update_bound=None))
    noised, bound, exact = (
        Update(Part(problem)).compute(context(here)).floats() for problem in (here.problem, quiet, free)
    )
    assert np.abs(bound - exact).max() <= Update(Part(quiet)).spec.grid.step < 1e-4
    assert np.mean(noised == 0) > 0.5 + np.mean(exact == 0)


def test_nobody_is_silent_for_what_its_records_are(tmp_path: Path) -> None:
    """Labels that there are not, records that are not finite, no records: each answers, with 0 if need be."""
    of = study(rounds=1)
    here = world(of)
    (x0, y0), (x1, y1), (x2, y2), *rest = here.records
    records = [(x0, np.full_like(y0, -3)), (np.full_like(x1, np.nan), y1), (x2[:0], y2[:0]), *rest]
    assert run(of, tmp_path, here=replace(here, records=records)).records[0]["answered"] == list(range(6))


# Noise -------------------------------------------------------------------------------------------


def test_the_mean_carries_the_noise_that_was_asked_for(tmp_path: Path) -> None:
    """Central: model - (old + mean of the clipped updates) is z C / K a coordinate; false alarm 1e-6."""
    of = study(rounds=1)
    of = replace(of, model=replace(of.model, hidden=(64,)))
    here = world(of)
    plan = composed(of, here)[1]
    spy, _ = spied(of, tmp_path, here)
    update = Update(Part(here.problem), Sampling(cohort=6))
    steps = [
        update.compute(
            client_context(
                here.records[k][0],
                here.records[k][1],
                client=k,
                broadcast=spy.states[0].broadcast,
                rng=stream(here.seed, "client", 1, k),
            )
        ).floats()
        for k in range(6)
    ]
    residual = spy.states[1].broadcast - (spy.states[0].broadcast + np.mean(steps, axis=0))
    scaled = residual / (plan.noise_multiplier * 0.5 / 6)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(scaled))
    assert low < np.sum(scaled**2) < high
    assert not low < np.sum((0.9 * scaled) ** 2) < high, "nine tenths of the noise would be noticed"


def test_a_clients_sensitivity_is_its_bound_or_twice_that() -> None:
    """Removed, its update is gone; replaced, another one may point the other way."""
    spec = Update(Part(world(study(bound="0.5")).problem)).spec
    assert spec.sensitivity == {("client", "zero-out"): 0.5, ("client", "replace-one"): 1.0}


def test_a_client_stays_and_its_contribution_goes() -> None:
    """The cohort and its weights are public, so neighbours are not data sets with and without a client."""
    said = 'adjacency = "zero-out"'
    with pytest.raises(ConfigError, match=said):
        study(adjacency='"add-remove"')
    with pytest.raises(ConfigError, match=said):
        Plan(unit="client", adjacency="add-remove", delta=1e-5, max_rounds=1)
    with pytest.raises(ConfigError, match='got "zero-out"'):
        Plan(unit="record", adjacency="zero-out", delta=1e-5, max_rounds=1)


def test_who_cannot_be_enough_is_not_asked(tmp_path: Path) -> None:
    """Of 6 clients 3 have retired; a sum needs 5, so the others keep their budgets."""
    of = study(rounds=2, **DISTRIBUTED)
    here = world(of)
    algorithm, plan = composed(of, here)
    with Ledger(tmp_path / "ledger.sqlite", plan.terms()) as ledger:
        engine = simulated(
            plan,
            algorithm.contributions,
            ledger,
            here.records,
            rng=partial(client_stream, 1),
        )
        model = here.problem.initial
        spec = algorithm.contributions[0].spec
        query = CohortQuery(cohort=(0, 2, 5), broadcast=model, sums=(Sum(spec, len(model)),))
        answers, log = engine.query(query, Header(bytes(32), 1, 0, 0))
        assert answers.survivors == ()
        assert log.abstained["server"] == "3 clients are left, a sum needs 5."
        assert ledger.rows() == []


def test_a_training_that_fails_is_an_update_of_zero() -> None:
    problem = world(study()).problem
    for failed in (DataError("diverged"), np.full_like(problem.initial, np.nan)):
        value = bounded(problem, problem.initial, failed)
        assert value.integers is not None
        assert not value.integers.any()
