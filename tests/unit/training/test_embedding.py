"""Features by a public network are computed once, by content; damaged or foreign ones are refused."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.every import every
from torch import Tensor, nn

from securefl.core.errors import ConfigError, DataError
from securefl.core.formats import prefix
from securefl.training import networks
from securefl.training.chunks import per_record_outputs
from securefl.training.networks import Network


class Two(nn.Module):
    """Two features of a record."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x.sum((1, 2)), x.amax((1, 2))], dim=1)


def embedded(x: Any, module: nn.Module, *, network: str, folder: Path, tell: Any = lambda done: None) -> Any:
    return Network(module=module, name=network, about="").features(x, folder, tell)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of records that features are computed of, as that goes on."""
    found: list[int] = []

    def noting(model: nn.Module, what: str, read: Any, x: Tensor, *, rows: int) -> Tensor:
        found.append(len(x))
        return per_record_outputs(model, what, read, x, rows=rows)

    monkeypatch.setattr(networks, "per_record_outputs", noting)
    return found


def images(n: int = 70) -> Any:
    return np.random.default_rng(0).random((n, 3, 4), dtype=np.float32)


def test_features_are_computed_once_and_go_on_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "PART", 32)
    model, x, done, computed = Two(), images(), [], counted(monkeypatch)
    first = embedded(x[:64], model, network="a", folder=tmp_path, tell=done.append)
    assert done == [32, 64]
    assert computed == [32, 32]
    whole = embedded(x, model, network="a", folder=tmp_path)
    assert computed == [32, 32, 6], "the third part alone"
    assert np.array_equal(whole[:64], first)
    assert np.allclose(whole[:, 0], x.sum((1, 2)))
    assert whole.dtype == np.float32


def test_a_record_s_features_do_not_depend_on_those_beside_it(tmp_path: Path) -> None:
    x = images()
    whole = embedded(x, Two(), network="a", folder=tmp_path)
    alone = embedded(x[3:4], Two(), network="a", folder=tmp_path)
    assert np.array_equal(whole[3], alone[0])


def test_another_network_shares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, computed = Two(), counted(monkeypatch)
    embedded(images(), model, network="a", folder=tmp_path)
    embedded(images(), model, network="b", folder=tmp_path)
    assert computed == [70, 70]


def test_what_another_version_kept_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = counted(monkeypatch)
    for before in (b"", b"securefl/9|features|"):
        with monkeypatch.context() as other:
            other.setattr(networks, "prefix", lambda _, before=before: before)
            embedded(images(), Two(), network="a", folder=tmp_path)
    for _ in range(2):
        embedded(images(), Two(), network="a", folder=tmp_path)
    assert computed == [70, 70, 70]


def test_a_cache_confirms_no_guess_of_the_records(tmp_path: Path) -> None:
    """Whoever lists the folder, or has a copy of its names, can try digests of guessed records."""
    x, before = images(), os.umask(0)
    try:
        for place in ("one", "two"):
            embedded(x, Two(), network="a", folder=tmp_path / place / "features")
    finally:
        os.umask(before)
    head = prefix("features") + f"a|{x.dtype.str}|{x.shape}|".encode()
    guesses = {hashlib.sha256(data).hexdigest() for data in (head + x.tobytes(), x.tobytes())}
    names = [path.stem for path in tmp_path.rglob("*.npz")]
    assert len(set(names)) == 2, "each cache has a key of its own"
    assert not guesses & set(names)
    for path in tmp_path.rglob("features/*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("features")} == {0o700}


@every("spoilt", ["key for others", "short key", "link", "folder for others", "a file"])
def test_a_cache_that_others_could_read_or_write_is_mended_or_not_used(spoilt: str, tmp_path: Path) -> None:
    folder = tmp_path / "features"
    embedded(images(), Two(), network="a", folder=folder)
    (key,), (kept,) = folder.glob("*.key"), folder.glob("*.npz")
    kept.unlink()
    match spoilt:
        case "key for others":
            key.chmod(0o640)
        case "short key":
            key.write_bytes(b"short")
        case "link":
            key.rename(tmp_path / "key")
            key.symlink_to(tmp_path / "key")
        case "folder for others":
            folder.chmod(0o777)
        case _:
            shutil.rmtree(folder)
            folder.touch()
    with pytest.MonkeyPatch.context() as patch:
        computed = counted(patch)
        for _ in range(2):
            embedded(images(), Two(), network="a", folder=folder)
    assert computed == [70, 70]
    assert list(tmp_path.rglob("*.npz")) == []


def test_a_cache_that_others_could_only_read_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    folder.mkdir(mode=0o755)
    embedded(images(), Two(), network="a", folder=folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_kept_features_of_another_network_are_refused(tmp_path: Path) -> None:
    for network in "ab":
        embedded(images(), Two(), network=network, folder=tmp_path / network)
    (mine,), (other,) = ((tmp_path / network).glob("*.npz") for network in "ab")
    mine.write_bytes(other.read_bytes())
    with pytest.raises(DataError, match=r"by a at .* Remove it"):
        embedded(images(), Two(), network="a", folder=tmp_path / "a")


@every("damage", ["cut", "changed", "pickle", "empty"])
def test_damaged_features_are_refused(damage: str, tmp_path: Path) -> None:
    embedded(images(), Two(), network="a", folder=tmp_path)
    (path,) = tmp_path.glob("*.npz")
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
        embedded(images(), Two(), network="a", folder=tmp_path)


def test_records_whose_features_are_not_finite_are_refused(tmp_path: Path) -> None:
    x = images()
    x[5] = np.nan
    with pytest.raises(DataError, match="finite features"):
        embedded(x, Two(), network="a", folder=tmp_path)
    assert embedded(x[:0], Two(), network="a", folder=tmp_path).shape == (0, 2)


def test_a_network_that_mixes_records_is_refused(tmp_path: Path) -> None:
    class Mixing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean(0)).flatten(1)

    with pytest.raises(ConfigError, match="got Mixing"):
        embedded(images(), Mixing(), network="a", folder=tmp_path)


def test_nowhere_to_keep_them_is_no_error(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    assert len(embedded(images(), Two(), network="a", folder=place)) == 70
