"""FedProf and FedLog as Flower strategies: their own rounds over a Grid, from enrolled folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from support.coordinated import federation
from support.every import every
from support.grid_double import GridDouble
from support.party_folders import enrolled
from support.tiny_study import text, with_privacy

from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.release import SERVER
from securefl.flower.exchange import relay
from securefl.flower.study_strategy import StudyStrategy
from securefl.study import config
from securefl.study.export import taken
from securefl.study.session import run_study

CLIENTS = 4
FEDPROF = '[[arm]]\nname = "x"\nprotocol = "fedprof"\nfraction = 1.0\n'
FEDLOG = '[[arm]]\nname = "x"\nprotocol = "fedlog"\n'


def masked(arm: str) -> str:
    said = text(arm, clients=CLIENTS, rounds=2, **({"non_private": '["statistic"]'} if arm == FEDLOG else {}))
    said = said.replace("batch_size = 48", "batch_size = 1000")
    return with_privacy(said, {"sum": '"masked"', "dropout": "0.25", "corrupt": "0.0"})


@pytest.mark.slow
@pytest.mark.parametrize("arm", [FEDPROF, FEDLOG], ids=["fedprof", "fedlog"])
def test_a_study_s_rounds_are_a_strategy(arm: str, tmp_path: Path) -> None:
    enrolled(tmp_path, masked(arm))
    with federation(tmp_path, masked(arm)) as own:
        nodes = {
            10 + at: lambda message, name=name: relay(message, name, own.up[name])
            for at, name in enumerate(own.names)
        }
        strategy = StudyStrategy(tmp_path / SERVER, tmp_path / "run", deadline=60.0, patience=1.0)
        result = strategy.start(GridDouble(nodes))
    assert set(result.evaluate_metrics_serverapp) == {1, 2}
    assert 0 <= float(result.evaluate_metrics_serverapp[2]["accuracy"]) <= 1  # type: ignore[arg-type]
    # A deployed client draws its mini-batches by itself. Each has all records here: their order differs.
    study = config.parse(masked(arm))
    run_study(study, tmp_path / "here", lambda arm, seed, record: None)
    expected = taken(study, tmp_path / "here", "x").learnt.tensors()
    assert set(result.arrays) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), values, rtol=0, atol=1e-5)


@every("given", [{"initial_arrays": ArrayRecord()}, {"num_rounds": 3}, {"timeout": 1.0}])
def test_what_the_parties_did_not_agree_to_is_refused(given: Any) -> None:
    strategy = StudyStrategy(Path("server"), Path("run"))
    with pytest.raises(ConfigError, match=next(iter(given))):
        strategy.start(GridDouble({}), **given)


def test_it_has_none_of_flowers_steps() -> None:
    strategy = StudyStrategy(Path("server"), Path("run"))
    for step in (strategy.aggregate_train, strategy.aggregate_evaluate):
        with pytest.raises(LocalProtocolError, match="own rounds"):
            step(1, [])
