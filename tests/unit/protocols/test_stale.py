"""SAFA's cache: the model is the weighted mean of all clients' last models, by arithmetic of its own here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.tiny_problem import client_context
from support.tiny_study import composed, run, study, world

from securefl.core.errors import ConfigError
from securefl.protocols.parts import Update
from securefl.protocols.stale import Cached
from securefl.study.arm import arm_folder, opened
from securefl.study.config import parse

ARM = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 0.5\naggregation = "full"\nstale = true\n'


def test_the_model_is_the_mean_of_all_last_models(tmp_path: Path) -> None:
    of = study(ARM, rounds=4, clients=6)
    here = world(of)
    run(of, tmp_path, here=here)
    _, plan = composed(of, here)
    with opened(of, of.arms[0], here, plan, arm_folder(tmp_path, of.arms[0], here.seed)) as saved:
        assert saved.state is not None
        model, kept = saved.state.broadcast, saved.checkpoint.kept()
    sizes = here.sizes / here.sizes.sum()
    own = [kept.get(k, {}).get("model", here.problem.initial) for k in range(6)]
    expected = sum(share * last.astype(np.float64) for share, last in zip(sizes, own, strict=True))
    assert sum(k in kept for k in range(6)) >= 3
    # A sum's grid step, four times: 4 x 2^-21.
    np.testing.assert_allclose(model, expected, atol=4e-6)


def test_under_a_bound_a_client_keeps_what_the_sum_has() -> None:
    of = study(ARM)
    problem = world(of).problem
    bounded = replace(problem, local=replace(problem.local, update_bound=0.5))
    change = Update(Cached(bounded))
    rng = np.random.default_rng(0)
    far = (problem.initial + rng.normal(size=len(problem.initial))).astype(np.float32)
    context = client_context(
        np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64), broadcast=problem.initial, rng=rng
    )
    value = change.value(context, far)
    assert value.integers is not None
    sent = value.integers * change.spec.grid.step
    assert np.linalg.norm(sent) <= 0.5
    assert value.new_state is not None
    np.testing.assert_allclose(value.new_state["model"], problem.initial + sent, atol=1e-6)


@pytest.mark.parametrize("protocol", ["fedavg", "fedprof"])
def test_partial_aggregation_has_no_cache(protocol: str) -> None:
    with pytest.raises(ConfigError, match='"full" beside stale'):
        study(ARM.replace("fedavg", protocol).replace('"full"', '"partial"'))


def test_clients_are_tested_on_what_they_hold_out_as_without_a_cache(tmp_path: Path) -> None:
    of = parse(study(ARM).text.replace('"digits"', '"digits"\nholdout = 0.3'))
    assert "local accuracy" in run(of, tmp_path).records[-1]["figures"]
