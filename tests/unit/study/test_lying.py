"""Clients that lie about their updates in a simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.every import every
from support.tiny_study import FEDAVG, spied, study, world

from securefl.core.errors import ConfigError
from securefl.data.corruptions import Corruption, flipped
from securefl.data.dataset import Dataset
from securefl.study.config import parse

FULL = FEDAVG.replace("fraction = 0.5", 'fraction = 1.0\naggregation = "partial"')


def step(tmp_path: Path, extra: str, arm: str = FULL) -> np.ndarray:
    """The first step of the model over all clients."""
    spy, _ = spied(study(arm, rounds=1, clients=4, extra=extra), tmp_path)
    return np.asarray(spy.states[1].broadcast - spy.states[0].broadcast, np.float64)


def test_a_reversed_client_sends_the_other_sign_and_a_scaled_one_more(tmp_path: Path) -> None:
    honest = step(tmp_path / "a", "")
    assert step(tmp_path / "b", "[corruption]\nreversed = 1.0\n") == pytest.approx(-honest, abs=1e-5)
    scaled = step(tmp_path / "c", "[corruption]\nscaled = 1.0\nscale_factor = 3.0\n")
    assert scaled == pytest.approx(3 * honest, abs=1e-4)
    assert step(tmp_path / "d", "[corruption]\ntwo_faced = 1.0\n") == pytest.approx(-honest, abs=1e-5)


def test_a_scaled_client_keeps_to_the_bound_and_an_oversized_one_breaks_it(tmp_path: Path) -> None:
    """What a client may lie about is its training; breaking the bound needs other software."""
    bounded = study(FULL, rounds=1, clients=4).text.replace("epochs = 2", "epochs = 1\nupdate_bound = 0.01")
    found = {}
    for word in ("scaled", "oversized"):
        of = parse(f"{bounded}\n[corruption]\n{word} = 1.0\n")
        spy, _ = spied(of, tmp_path / word)
        found[word] = float(np.linalg.norm(spy.states[1].broadcast - spy.states[0].broadcast))
    assert found["scaled"] <= 0.01 * (1 + 1e-3)
    assert found["oversized"] > 0.02


def test_lies_change_no_charge_and_no_record_of_who_took_part(tmp_path: Path) -> None:
    of = study(FULL, rounds=1, clients=4, extra="[corruption]\nreversed = 0.5\n")
    assert sorted(world(of).quality) == ["clean", "clean", "reversed", "reversed"]
    _, finished = spied(of, tmp_path)
    assert sorted(finished.records[0]["answered"]) == [0, 1, 2, 3]


def test_flipped_labels_are_those_of_the_other_end() -> None:
    data = Dataset(name="toy", x=np.zeros((3, 1, 2, 2), np.float32), y=np.array([0, 3, 9]), classes=10)
    assert flipped(data).y.tolist() == [9, 6, 0]
    assert Corruption(flipped=1.0).apply(data, "flipped", np.random.default_rng(0)).y.tolist() == [9, 6, 0]
    with pytest.raises(ConfigError, match="flipped"):
        flipped(Dataset(name="toy", x=data.x, y=data.y.astype(np.float32)[:, None], classes=0))


@every("changes", [{"two_faced": 1.5}, {"scale_factor": 0.0}, {"reversed": 0.6, "scaled": 0.6}])
def test_shares_and_factors_out_of_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Corruption(**changes)
