"""`securefl features`: what it writes, what it keeps, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from torch import Tensor, nn

from securefl.commands.features import _parts, features
from securefl.core.errors import ConfigError, DataError
from securefl.data import Dataset, Split
from securefl.data.networks import network_of
from securefl.training.pretrained import ABOUT


class Means(nn.Module):
    """The mean of each colour."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def colours(n: int) -> Dataset:
    rng = np.random.default_rng(n)
    return Dataset(
        name="cifar10", x=rng.random((n, 3, 4, 4), dtype=np.float32), y=rng.integers(10, size=n), classes=10
    )


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Split:
    split = Split(train=colours(40), test=colours(9))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("securefl.data.load", lambda *_: split)
    monkeypatch.setattr("securefl.training.pretrained.efficientnet_lite0", Means)
    return split


def call(*arguments: str) -> Any:
    return CliRunner().invoke(features, arguments)


def test_it_writes_features_and_labels_of_both_parts(small: Split, tmp_path: Path) -> None:
    done = call("cifar10", "--out", str(tmp_path / "f.npz"))
    assert done.exit_code == 0
    assert "were computed by EfficientNet-Lite0" in done.stderr
    assert "its training data are outside epsilon" in done.stderr
    assert done.stdout.split() == [str(tmp_path / "f.npz"), str(tmp_path / "f-test.npz")]
    for name, part in (("f", small.train), ("f-test", small.test)):
        with np.load(tmp_path / f"{name}.npz", allow_pickle=False) as file:
            assert np.allclose(file["x"], part.x.mean((2, 3)))
            assert file["x"].dtype == np.float32
            assert np.array_equal(file["y"], part.y)
            assert file["securefl"] == "securefl 8 features"
        assert network_of(tmp_path / f"{name}.npz") == ABOUT


def test_the_first_records_alone(small: Split, tmp_path: Path) -> None:
    call("cifar10", "--out", str(tmp_path / "f.npz"), "--records", "5")
    with np.load(tmp_path / "f.npz", allow_pickle=False) as file:
        assert len(file["x"]) == 5


def test_what_was_computed_is_not_computed_again(
    small: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("cifar10", "--out", str(tmp_path / "f.npz"))

    def refuse(self: Means, x: Tensor) -> Tensor:
        assert len(x) == 1, "computed again"  # one record of zeros shows that the network reads such records
        return x.mean((2, 3))

    monkeypatch.setattr(Means, "forward", refuse)
    assert call("cifar10", "--out", str(tmp_path / "g.npz")).exit_code == 0
    assert (tmp_path / "g.npz").read_bytes() == (tmp_path / "f.npz").read_bytes()


def test_another_ending_and_other_records_are_refused(
    small: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(call("cifar10", "--out", str(tmp_path / "f.csv")).exception, ConfigError)
    grey = Dataset(name="mnist", x=np.zeros((3, 1, 8, 8), np.float32), y=np.zeros(3, np.int64), classes=10)
    monkeypatch.setattr("securefl.data.load", lambda *_: Split(train=grey, test=grey))
    monkeypatch.setattr("securefl.training.pretrained.efficientnet_lite0", lambda: nn.Conv2d(3, 4, 3))
    refused = str(call("mnist", "--out", str(tmp_path / "f.npz")).exception)
    assert "Expected records that efficientnet_lite0 reads, got some of shape (1, 8, 8)" in refused
    assert not list(tmp_path.glob("*.npz"))


def test_a_table_of_texts_is_read_as_it_is_written_and_the_guess_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table with semicolons was refused, though a study can declare them."""
    pytest.importorskip("wordllama")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table, made = tmp_path / "texts.csv", {}
    ways = {"odd": (";", "cp1252"), "plain": (",", "utf-8")}
    for name, (sign, encoding) in ways.items():
        table.write_bytes(f"text{sign}topic\nGrüße an alle{sign}1\nja{sign}0\n".encode(encoding))
        out = tmp_path / f"{name}.npz"
        done = call(str(table), "--text", "text", "--target", "topic", "--out", str(out))
        assert done.exit_code == 0, done.exception
        guess = "csv = {'delimiter': ';', 'encoding': 'cp1252'}. A guess from the file's text"
        assert (guess in done.stderr) == (name == "odd")
        with np.load(out, allow_pickle=False) as file:
            made[name] = file["x"].tobytes(), file["y"].tolist()
    assert made["odd"] == made["plain"]
    assert made["odd"][1] == [1, 0]


def read_from(folder: Path, content: str) -> tuple[list[str], list[int]]:
    """The texts and targets of a table of these columns."""
    path = folder / "texts.csv"
    path.write_text(content)
    (part,) = _parts(str(path), "review, in words" if "words" in content else "text", "topic", 112)
    assert part.y is not None
    return list(part.records), part.y.tolist()


def test_a_sign_in_the_name_of_a_column_is_said_and_the_remedies_work(tmp_path: Path) -> None:
    lines, said = "good;1\nbad, really;0\n", r"line 2: expected 2 cells, got 1.*suggests the sign ','.*quotes"
    with pytest.raises(DataError, match=said):
        read_from(tmp_path, f"review, in words;topic\n{lines}")
    expected = ["good", "bad, really"], [1, 0]
    assert read_from(tmp_path, f'"review, in words";topic\n{lines}') == expected
    assert read_from(tmp_path, f"text;topic\n{lines}") == expected


def test_a_sign_for_no_number_is_a_text_in_a_column_of_texts(tmp_path: Path) -> None:
    found = read_from(tmp_path, "stars,text,topic\n5,?,1\n?,ja,0\n3,nein,1\n4,?,1\n")
    assert found == (["?", "ja", "nein", "?"], [1, 0, 1, 1])
