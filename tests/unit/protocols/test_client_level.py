"""Client-level privacy: clipped updates under noise, wherever it is added and however they are summed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.private_studies import DISTRIBUTED, KEY_HOLDER
from support.private_studies import client_level as study
from support.tiny_problem import client_context
from support.tiny_study import composed, run, world

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError, DataError
from securefl.core.streams import stream
from securefl.protocols.contributions import Sampling, bounded
from securefl.protocols.parts import Part, Update
from securefl.study.seeded import World

PRIVACIES = [
    {},
    {"noise": '"local"'},
    *({**DISTRIBUTED, "sum": f'"{way}"'} for way in ("masked", "ckks", "two-server")),
    KEY_HOLDER,
]


@every("privacy", PRIVACIES)
@every("adjacency", ["zero-out", "replace-one"])
def test_a_run_costs_what_was_asked_for(adjacency: str, privacy: dict[str, str], tmp_path: Path) -> None:
    finished = run(study(adjacency=f'"{adjacency}"', **privacy), tmp_path)
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


# Noise -------------------------------------------------------------------------------------------


def test_a_clients_sensitivity_is_its_bound_or_twice_that() -> None:
    """Removed, its update is gone; replaced, another one may point the other way."""
    spec = Update(Part(world(study(bound="0.5")).problem)).spec
    assert spec.sensitivity == {("client", "zero-out"): 0.5, ("client", "replace-one"): 1.0}


def test_a_client_stays_and_its_contribution_goes() -> None:
    """The cohort and its weights are public, so neighbours are not data sets with and without a client."""
    said = 'adjacency = "zero-out"'
    with pytest.raises(ConfigError, match=said):
        Plan(unit="client", adjacency="add-remove", delta=1e-5, max_rounds=1)
    with pytest.raises(ConfigError, match='got "zero-out"'):
        Plan(unit="record", adjacency="zero-out", delta=1e-5, max_rounds=1)


def test_a_training_that_fails_is_an_update_of_zero() -> None:
    problem = world(study()).problem
    for failed in (DataError("diverged"), np.full_like(problem.initial, np.nan)):
        value = bounded(problem, problem.initial, failed)
        assert value.integers is not None
        assert not value.integers.any()
