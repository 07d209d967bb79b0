"""LG-FedAvg: the last layers are averaged, and each body stays with its client."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.every import every
from support.tiny_study import spied
from support.trained_bodies import study, world

from securefl.core.errors import ConfigError
from securefl.study.composition import composition

LG = 'name = "LG"\nprotocol = "lg_fedavg"'


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
