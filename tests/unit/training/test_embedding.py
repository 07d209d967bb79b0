"""Features by a public network are computed once, by content; damaged or foreign ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securefl.core.errors import ConfigError, DataError
from securefl.training import embedding
from securefl.training.embedding import embedded


class Counted(nn.Module):
    """Two features of a record; counts how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return torch.stack([x.sum((1, 2)), x.amax((1, 2))], dim=1)


def images(n: int = 70) -> Any:
    return np.random.default_rng(0).random((n, 3, 4), dtype=np.float32)


def test_features_are_computed_once_and_go_on_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "PART", 32)
    model, x, done = Counted(), images(), []
    first = embedded(x[:64], model, network="a", folder=tmp_path, tell=done.append)
    assert done == [32, 64]
    ran = model.runs
    whole = embedded(x, model, network="a", folder=tmp_path)
    assert model.runs == ran + (ran // 2), "the third part alone"
    assert np.array_equal(whole[:64], first)
    assert np.allclose(whole[:, 0], x.sum((1, 2)))
    assert whole.dtype == np.float32


def test_a_record_s_features_do_not_depend_on_those_beside_it(tmp_path: Path) -> None:
    x = images()
    whole = embedded(x, Counted(), network="a", folder=tmp_path)
    alone = embedded(x[3:4], Counted(), network="a", folder=tmp_path)
    assert np.array_equal(whole[3], alone[0])


def test_another_network_shares_nothing(tmp_path: Path) -> None:
    model = Counted()
    embedded(images(), model, network="a", folder=tmp_path)
    ran = model.runs
    embedded(images(), model, network="b", folder=tmp_path)
    assert model.runs == 2 * ran


def test_kept_features_of_another_network_are_refused(tmp_path: Path) -> None:
    for network in "ab":
        embedded(images(), Counted(), network=network, folder=tmp_path / network)
    (mine,), (other,) = ((tmp_path / network).iterdir() for network in "ab")
    mine.write_bytes(other.read_bytes())
    with pytest.raises(DataError, match=r"by a at .* Remove it"):
        embedded(images(), Counted(), network="a", folder=tmp_path / "a")


@pytest.mark.parametrize("damage", ["cut", "changed", "pickle", "empty"])
def test_damaged_features_are_refused(damage: str, tmp_path: Path) -> None:
    embedded(images(), Counted(), network="a", folder=tmp_path)
    (path,) = tmp_path.iterdir()
    with np.load(path) as file:
        arrays = dict(file)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        features = arrays["features"].copy()
        features[0, 0] += 1
        arrays["features"] = features if damage == "changed" else np.array([{"a": 1}], dtype=object)
        with path.open("wb") as target:
            np.savez(target, **arrays)
    with pytest.raises(DataError, match="Remove it"):
        embedded(images(), Counted(), network="a", folder=tmp_path)


def test_records_whose_features_are_not_finite_are_refused(tmp_path: Path) -> None:
    x = images()
    x[5] = np.nan
    with pytest.raises(DataError, match="finite features"):
        embedded(x, Counted(), network="a", folder=tmp_path)
    with pytest.raises(DataError, match="at least one record"):
        embedded(x[:0], Counted(), network="a", folder=tmp_path)


def test_a_network_that_mixes_records_is_refused(tmp_path: Path) -> None:
    class Mixing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean(0)).flatten(1)

    with pytest.raises(ConfigError, match="each row of a chunk on its own"):
        embedded(images(), Mixing(), network="a", folder=tmp_path)


def test_nowhere_to_keep_them_is_no_error(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    assert len(embedded(images(), Counted(), network="a", folder=place)) == 70
