"""LG-FedAvg: the last layers are averaged, and each body stays with its client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.every import every
from support.tiny_study import spied
from support.trained_bodies import context, study, world

from securefl.core.errors import ConfigError
from securefl.protocols.contributions import Sampling
from securefl.protocols.personal import SharedLayers
from securefl.study.composition import composition

LG = 'name = "LG"\nprotocol = "lg_fedavg"'


@every("layers", [1, 2])
def test_lg_fedavg_averages_the_last_layers_alone(layers: int, tmp_path: Path) -> None:
    of = study(LG + f"\nlayers = {layers}", rounds=3, hidden="[48, 32]")
    here = world("[48, 32]")
    spy, finished = spied(of, tmp_path, here)
    shared = 33 * 10 + (49 * 32 if layers == 2 else 0)
    assert spy.states[-1].broadcast.shape == (shared,)
    np.testing.assert_array_equal(spy.states[0].broadcast, here.problem.initial[-shared:])
    assert finished.records[-1]["accuracy"] > 0.8, "two classes a client: 0.5 is chance"
    statistic = 10 * 4 * shared
    assert statistic < finished.records[0]["bytes_up"] < statistic + 10 * 200


def test_lg_fedavg_keeps_each_body_and_takes_the_shared_layers() -> None:
    here = world()
    part = SharedLayers(here.problem, side="head")
    x, y = here.records[0]
    shared = np.arange(330, dtype=np.float32) / 1000
    (update,) = part.contributions(Sampling())
    value = update.compute(context(here, x, y, shared))
    assert value.new_state is not None
    trained = value.new_state["model"]
    np.testing.assert_allclose(value.clear, trained[-330:].astype(np.float64) - shared)
    assert not np.array_equal(trained[:-330], here.problem.initial[:-330])
    put = part.model(0, shared, value.new_state)
    np.testing.assert_array_equal(put, np.concatenate([trained[:-330], shared]))


def test_lg_fedavg_refuses_layers_there_are_not() -> None:
    with pytest.raises(ConfigError, match="at least 5 dense layers"):
        composition(study(LG + "\nlayers = 5"), study(LG + "\nlayers = 5").arms[0], world())


@every(
    ("hidden", "options", "said"),
    [
        ("[48, 32]", "layers = 2\nshorter = 0.5", r"equal shapes .* got \(32, 48\), .* and \(32, 64\), "),
        ("[48, 32]", "layers = 3\nshorter = 0.5", "at least 3 dense layers, got 2"),
        ("[8]", "shorter = 0.5", "`hidden` with at least two layers"),
    ],
)
def test_shared_layers_of_unlike_shapes_are_refused_before_a_run(
    hidden: str, options: str, said: str
) -> None:
    """Clients cannot average layers of other shapes. The run stopped at its first test."""
    of = study(f"{LG}\n{options}", hidden=hidden)
    with pytest.raises(ConfigError, match=said):
        composition(of, of.arms[0], world(hidden))


def test_shared_layers_of_equal_shapes_go_with_bodies_of_two_lengths(tmp_path: Path) -> None:
    of = study(f"{LG}\nlayers = 2\nshorter = 0.5", rounds=1, hidden="[32, 32, 32]")
    _, finished = spied(of, tmp_path, world("[32, 32, 32]"))
    assert not finished.records[0]["abstained"]
