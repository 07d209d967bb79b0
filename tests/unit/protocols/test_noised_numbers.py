"""Profiles, losses and sizes as noised releases: a whole FedProf run has a finite epsilon."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.every import every
from support.private_studies import FEDPROF, private
from support.private_studies import noised_fedprof as fedprof
from support.tiny_problem import client_context
from support.tiny_study import FEDAVG, charged, composed, run, spied, study, world

from securefl.algorithm.clients import ClientContext, Contribution
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Value, ValueSpec
from securefl.core.errors import ConfigError, DataError
from securefl.core.release import ReleaseKey
from securefl.core.streams import stream
from securefl.matching.profiles import Anchor, Bounds, Variant
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.protecting import protect
from securefl.protocols.contributions import Loss, Size
from securefl.protocols.fedprof.statistic import Clip, RepresentationProfile
from securefl.training import probe_profile
from securefl.training.task import Problem

CLIP = Clip(outputs=20.0, squares=400.0)


def context(problem: Problem, x: NDArray[Any], y: NDArray[Any]) -> ClientContext:
    anchor = Anchor.of(probe_profile(problem.module(problem.initial), problem.layer, problem.shape, 1))
    return client_context(
        x,
        y,
        broadcast=problem.initial,
        public={"anchor_centre": anchor.centre, "anchor_scale": anchor.scale},
        rng=stream(1, "job"),
    )


# Whole runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scores", ["clear", "ckks", "pads"])
@pytest.mark.parametrize("variant", ["full", pytest.param("mean-only", marks=pytest.mark.slow)])
def test_a_whole_run_costs_what_was_asked_for(scores: str, variant: str, tmp_path: Path) -> None:
    """Private training and noised profiles of a client that takes part in every round."""
    of = fedprof(f'variant = "{variant}"\n', scores=f'"{scores}"')
    finished = run(of, tmp_path)
    for party in ("server", "others"):
        assert finished.records[-1]["epsilon"][party] == pytest.approx(8.0, rel=2e-3)
        assert finished.records[-1]["epsilon"][party] <= 8.0 * 1.001
    assert finished.records[-1]["epsilon"]["key-holder"] == 0
    assert [len(record["answered"]) for record in finished.records] == [4, 4]
    plan = composed(of)[1]
    assert dict(plan.max_releases) == {"update": 2, "profile": 3}
    assert charged(tmp_path) == {"profile": 3 * 4, "update": 2 * 4}


def test_active_fl_and_sizes_are_finite_too(tmp_path: Path) -> None:
    of = private(
        "active_fl", "fraction = 1.0\nexcluded = 0.0\nloss_bound = 5.0\n", noise='"local"', epsilon="8.0"
    )
    spy, finished = spied(of, tmp_path)
    assert finished.records[-1]["epsilon"]["server"] == pytest.approx(8.0, rel=2e-3)
    memory = spy.states[-1].memory
    exact = world(of).sizes
    assert not np.array_equal(memory["size"], exact)
    assert ((memory["size"] >= 1) & (memory["size"] <= exact.sum())).all()
    assert ((memory["loss"] >= 0) & (memory["loss"] <= 5)).all()


def test_noised_scores_follow_nobodys_seed(tmp_path: Path) -> None:
    runs = [spied(fedprof(rounds=1), tmp_path / name)[0] for name in "ab"]
    first, second = (spy.states[-1].memory["profile"] for spy in runs)
    assert np.isfinite(first).all()
    assert (first >= 0).all()
    assert not np.array_equal(first, second)


def test_what_is_clipped_of_noised_profiles_is_counted(tmp_path: Path) -> None:
    """It follows from the noised sums, so it is counted after the noise."""
    narrow = "bounds = { mean = 1e-3, variance_high = 64, weight = 64 }\n"
    (record,) = run(fedprof(narrow, rounds=1), tmp_path).records
    assert set(record["clipped"]) == {f"client-{k:04}" for k in range(4)}


def test_unbounded_profiles_cannot_be_noised() -> None:
    of = private("fedprof", "fraction = 1.0", noise='"local"', epsilon="8.0")
    with pytest.raises(ConfigError, match="moves it without bound"):
        composed(of)


def test_a_profile_once_in_several_rounds_has_less_noise(tmp_path: Path) -> None:
    often, seldom = fedprof(rounds=4), fedprof("refresh = 2\n", rounds=4)
    plans = [composed(of)[1] for of in (often, seldom)]
    assert [dict(plan.max_releases)["profile"] for plan in plans] == [5, 3]
    assert plans[1].noise_multiplier < plans[0].noise_multiplier
    spy, finished = spied(seldom, tmp_path)
    asked = [any(e.spec.name == "profile" for e in query.per_client) for query, _ in spy.asks if query.sums]
    assert asked == [False, True, False, True]
    assert finished.records[-1]["epsilon"]["server"] == pytest.approx(8.0, rel=2e-3)


def test_who_retires_stays_away(tmp_path: Path) -> None:
    """The budget bears no profile in round 4, though it would bear an update in round 5."""
    of = fedprof("refresh = 2\n", rounds=5, budget="6.5")
    finished = run(of, tmp_path)
    new = [set(record["retired"]) for record in finished.records]
    retired = list(accumulate(new, set.union))
    assert retired[-1]
    assert sum(map(len, new)) == len(retired[-1]), "nobody retires twice"
    for record, out in zip(finished.records[1:], retired, strict=False):
        assert not out & set(record["selected"])


# Sensitivity -------------------------------------------------------------------------------------


def statistics(problem: Problem) -> dict[str, Contribution]:
    return {
        "profile": RepresentationProfile(problem, Variant.FULL, Bounds(), CLIP),
        "loss": Loss(problem, 2.0),
        "size": Size(problem),
    }


def test_what_follows_from_the_sums_reads_nothing_else() -> None:
    """`after_noise` of one client's value, given another's sums, is the other's value: post-processing."""
    here = world(fedprof())
    for statistic in statistics(here.problem).values():
        one, other = (statistic.compute(context(here.problem, *here.records[k])) for k in (0, 1))
        assert one.after_noise is not None
        assert other.after_noise is not None
        sums = other.floats()
        mine, theirs = one.after_noise(sums), other.after_noise(sums)
        assert np.array_equal(mine.clear, theirs.clear)
        assert np.array_equal(mine.hidden, theirs.hidden)


def test_without_noise_clipped_profiles_are_close_to_the_plain_ones() -> None:
    here = world(fedprof())
    clipped = RepresentationProfile(here.problem, Variant.FULL, Bounds(), Clip(outputs=30.0, squares=2000.0))
    exact = RepresentationProfile(here.problem, Variant.FULL, Bounds())
    mine = context(here.problem, *here.records[0])
    value = clipped.compute(mine)
    assert value.after_noise is not None
    np.testing.assert_allclose(
        value.after_noise(value.floats()).hidden,
        exact.compute(mine).hidden,
        rtol=0.01,
        atol=0.05,
    )


def test_without_records_there_is_no_profile_but_one_that_is_noised() -> None:
    here = world(fedprof())
    nobody = context(here.problem, here.records[0][0][:0], here.records[0][1][:0])
    with pytest.raises(DataError, match="at least one record"):
        RepresentationProfile(here.problem, Variant.FULL, Bounds()).compute(nobody)
    clipped = RepresentationProfile(here.problem, Variant.FULL, Bounds(), CLIP).compute(nobody)
    assert clipped.integers is not None
    assert not clipped.integers.any()


WRONG_ANCHORS = {
    "none": {},
    "one number": {"anchor_centre": np.zeros(1), "anchor_scale": np.ones(1)},
    "another length": {"anchor_centre": np.zeros(3), "anchor_scale": np.ones(3)},
    "no vector": {"anchor_centre": np.zeros((2, 32)), "anchor_scale": np.ones((2, 32))},
    "not finite": {"anchor_centre": np.full(64, np.nan), "anchor_scale": np.ones(64)},
}


@every("wrong", WRONG_ANCHORS.values())
@every("clip", [None, CLIP])
def test_an_anchor_that_is_none_costs_the_server_the_profile(wrong: Any, clip: Clip | None) -> None:
    """A server broadcasts it: a client abstains, whatever came."""
    here = world(fedprof())
    asked = replace(context(here.problem, *here.records[0]), public=wrong)
    with pytest.raises(DataError):
        RepresentationProfile(here.problem, Variant.FULL, Bounds(), clip).compute(asked)


# Noise -------------------------------------------------------------------------------------------


def released(plan: Plan, spec: ValueSpec, sums: NDArray[np.int64], number: int) -> NDArray[np.float64]:
    """What the statistic's post-processing is given."""
    seen: list[NDArray[np.float64]] = []

    def then(noised: NDArray[np.float64]) -> Value:
        seen.append(noised)
        return Value(clear=np.zeros(1))

    key = ReleaseKey("client-0000", bytes(32), number, 0, 0, spec.name)
    value = Value(integers=sums, step=spec.grid.step, after_noise=then)
    protect(Protection(plan, spec), value, key=key, weight=1.0)
    return seen[0]


@pytest.mark.parametrize("name", ["fedprof", "active_fl"])
def test_a_lost_number_costs_a_client_no_other(name: str, tmp_path: Path) -> None:
    """In a network that loses introductions: sizes are asked for once, the rest is asked for again."""
    options = {
        "fedprof": FEDPROF.replace("alpha = 1.0", 'alpha = "theorem-1"'),
        "active_fl": "fraction = 1.0\nexcluded = 0.0\nloss_bound = 5.0\n",
    }
    of = private(name, options[name], noise='"local"', epsilon="8.0", rounds=6)
    of = replace(of, network=replace(of.network, dropout=0.25))
    spy, _ = spied(of, tmp_path)
    memory = spy.states[-1].memory
    assert np.isnan(memory["size"]).any(), "choose another seed: no introduction was lost"
    assert np.isfinite(memory["profile" if name == "fedprof" else "loss"]).all()


def test_a_size_is_public_where_no_neighbour_has_another() -> None:
    plan = Plan(adjacency="replace-one", delta=1e-5, max_rounds=1, noise="local", noise_multiplier=3.0)
    problem = world(study(FEDAVG)).problem
    assert released(plan, Size(problem).spec, np.array([17 * 2**21]), 1) == [17.0]
    # A record that is replaced may become the server's, or come back from there.
    leaving = Size(replace(problem, leaving=True)).spec
    assert leaving.sensitivity["record", "replace-one"] == 1
    assert released(plan, leaving, np.array([17 * 2**21]), 1) != [17.0]
