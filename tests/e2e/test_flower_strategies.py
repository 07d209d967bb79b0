"""FedProf and FedLog as Flower strategies: their own rounds over a Grid, from enrolled folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message
from support.every import every
from support.grid_double import GridDouble
from support.tiny_study import text, with_privacy

from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.deployment import folder, keys, pinning
from securefl.deployment.party import PartySession
from securefl.deployment.party_setup import PartyStudy
from securefl.deployment.roster import line_of, parse
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


def enrol(root: Path, study: str) -> list[str]:
    """Folders of all parties below `root`, pinned to one roster."""
    found = config.parse(study)
    made = PartyStudy.of(found, found.arms[0], found.study.seeds[0])
    names = [*map(client_name, range(CLIENTS)), *made.names]
    for name in names:
        part = folder.PartyOptions(
            name=name, arm=made.arm, seed=made.world.seed, counter=root / "counters" / name
        )
        folder.init(root / name, made, part)
    roster = "\n".join(line_of(keys.read(root / name, name).member()) for name in names)
    for name in names:
        pinning.pin(root / name, parse(roster), roster)
    return names


def _node(name: str, resident: PartySession, message: Message) -> Message:
    return relay(message, name, resident.answer)


@contextmanager
def grid_of(root: Path, names: list[str]) -> Iterator[GridDouble]:
    with ExitStack() as stack:
        residents = {
            name: stack.enter_context(folder.opened(root / name)).session()
            for name in names
            if name != SERVER
        }
        nodes = {10 + at: partial(_node, *own) for at, own in enumerate(residents.items())}
        yield GridDouble(nodes)


@pytest.mark.slow
@pytest.mark.parametrize("arm", [FEDPROF, FEDLOG], ids=["fedprof", "fedlog"])
def test_a_study_s_rounds_are_a_strategy(arm: str, tmp_path: Path) -> None:
    names = enrol(tmp_path, masked(arm))
    with grid_of(tmp_path, names) as grid:
        strategy = StudyStrategy(tmp_path / SERVER, tmp_path / "run", deadline=60.0, patience=1.0)
        result = strategy.start(grid)
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
