"""FedProf: matched versions, the two forms of a divergence, options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.every import every
from support.tiny_study import Spy, run, spied, study, world

from securefl.core.errors import ConfigError
from securefl.matching.profiles import divergence
from securefl.protocols.fedprof import FedProf
from securefl.study.arm import ArmRun
from securefl.study.seeded import World
from securefl.training import profile

ALPHA = "alpha = 0.3\n"  # soft enough that every client's version differs after some rounds


def arm(more: str = ALPHA) -> str:
    return f'[[arm]]\nname = "FedProf"\nprotocol = "fedprof"\nfraction = 0.34\n{more}'


def recomputed(spy: Spy, run: ArmRun, here: World, client: int) -> float:
    """The divergence of a client at the version it was last asked at, from the stored model."""
    model = here.problem.module(spy.states[last_round(run, client)].broadcast)
    own = profile(model, here.problem.layer, here.records[client][0])
    return divergence(own, profile(model, here.problem.layer, here.problem.server_x))


def last_round(run: ArmRun, client: int) -> int:
    """The newest round a client took part in; 0 where it was only introduced, at version 0."""
    rounds = [record["round"] - 1 for record in run.records if client in record["selected"]]
    return max(rounds, default=0)


def test_profiles_are_matched_with_the_baseline_of_their_own_version(tmp_path: Path) -> None:
    """Algorithm 1, lines 8, 12, 13: what the server remembers is the divergence at version v_k."""
    of = study(arm(), rounds=6)
    here = world(of)
    spy, run = spied(of, tmp_path, here)
    versions = [last_round(run, k) for k in range(6)]
    assert len(set(versions)) >= 3, "choose another seed: the versions do not differ"
    remembered = spy.states[-1].memory["profile"]
    for client in range(6):
        # The run reads all clients' records in one pass: in float32 its last bits are not those of one alone.
        assert remembered[client] == pytest.approx(recomputed(spy, run, here, client), rel=1e-4)
    # the test has power: at another version the number is another one
    stale = int(np.argmin(versions))
    model = here.problem.module(spy.states[-1].broadcast)
    now = divergence(
        profile(model, here.problem.layer, here.records[stale][0]),
        profile(model, here.problem.layer, here.problem.server_x),
    )
    assert remembered[stale] != pytest.approx(now, rel=1e-3)


def test_alpha_zero_runs_as_fedavg_does(tmp_path: Path) -> None:
    """The same cohorts and the same models, bit for bit, under the same seed."""
    mine, _ = spied(study(arm('alpha = 0.0\naggregation = "partial"\n'), rounds=3), tmp_path / "a")
    plain = arm("aggregation = 'partial'\n").replace("fedprof", "fedavg")
    uniform, _ = spied(study(plain, rounds=3), tmp_path / "b")
    for a, b in zip(mine.states, uniform.states, strict=True):
        assert np.array_equal(a.broadcast, b.broadcast)
        assert np.array_equal(a.memory["cohort"], b.memory["cohort"])


def test_the_query_stays_with_the_server(tmp_path: Path) -> None:
    """Clients get the anchor, which depends on no data, and never the baseline."""
    of = study(arm(), rounds=1)
    here = world(of)
    spy, _ = spied(of, tmp_path, here)
    other = replace(here, problem=replace(here.problem, server_x=here.problem.server_x * 0.5))
    again, _ = spied(of, tmp_path / "other", other)
    for (mine, _), (theirs, _) in zip(spy.asks, again.asks, strict=True):
        assert set(mine.public) == {"anchor_centre", "anchor_scale"}
        assert all(np.array_equal(mine.public[k], theirs.public[k]) for k in mine.public)
        assert not np.array_equal(mine.per_client[0].query.hidden, theirs.per_client[0].query.hidden)


def test_theorem_1_asks_for_sizes_too(tmp_path: Path) -> None:
    spy, _ = spied(study(arm('alpha = "theorem-1"\nreplacement = true\n'), rounds=1), tmp_path)
    assert [e.spec.name for query, _ in spy.asks[:2] for e in query.per_client] == ["profile", "size"]
    assert not spy.asks[1][0].public
    here = world(study(arm()))
    assert spy.states[-1].memory["size"].tolist() == here.sizes.tolist()


# Options ----------------------------------------------------------------------------------------


def test_each_alpha_is_a_penalty() -> None:
    assert FedProf(fraction=0.5, alpha=10).alpha == 10
    with pytest.raises(ValueError, match="alpha"):
        FedProf(fraction=0.5, alpha=(1.0, -1.0))


def test_one_alpha_a_client() -> None:
    here = world(study(arm()))
    with pytest.raises(ConfigError, match="6 clients, got 2"):
        FedProf(fraction=0.5, alpha=(1.0, 2.0)).build(here.problem)
    FedProf(fraction=0.5, alpha=(1.0,) * 6).build(here.problem)


@every(("most", "rounds", "found"), [(None, 6, 3 + 1), (9, 6, 9), (1, 6, 1)])
def test_profiles_declare_how_many_leave(most: int | None, rounds: int, found: int) -> None:
    """By default as many as one study asks for: in every second round, and once before the first."""
    options = FedProf(fraction=0.5, refresh=2, max_releases=most)
    contributions = options.build(world(study(arm())).problem).contributions
    (own,) = (contribution for contribution in contributions if contribution.spec.name == "profile")
    assert own.spec.schedule.most_releases(rounds) == found


def test_a_client_abstains_once_its_profiles_are_given(tmp_path: Path) -> None:
    """The introduction is one. Whoever was chosen in round 1 gave a second, and is asked no more."""
    found = run(study(arm(ALPHA + "max_releases = 2\n"), rounds=6), tmp_path)
    chosen = [client for record in found.records for client in record["selected"]]
    assert len(chosen) == len(set(chosen)) > 0
