"""Files that a study names in the folder of data sets, and declarations of its columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.every import every
from support.tiny_study import FEDAVG, text

from securefl.core.errors import ConfigError, DataError
from securefl.study import world
from securefl.study.config import Study, parse
from securefl.study.data_section import DataSection

SOURCE = 'source = "$SECUREFL_DATA/cifar10-features.npz"\ntest = "$SECUREFL_DATA/cifar10-features-test.npz"'


def named(source: str = SOURCE) -> Study:
    return parse(text(FEDAVG).replace('source = "digits"', f"{source}\nclasses = 2"))


def features(path: Path, count: int) -> None:
    np.savez(path, x=np.eye(count, dtype=np.float32), y=np.arange(count) % 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own = tmp_path / "data of mine"
    own.mkdir()
    monkeypatch.setenv("SECUREFL_DATA", str(own))
    return own


def test_they_are_found_from_a_study_without_a_folder(folder: Path) -> None:
    features(folder / "cifar10-features.npz", 30)
    features(folder / "cifar10-features-test.npz", 30)
    made = world.build(named(), 1)
    assert sum(len(x) for x, _ in made.records) == len(made.problem.server_x) == 30


@pytest.mark.parametrize("there", ["cifar10-features.npz", "cifar10-features-test.npz", "other.npz"])
def test_missing_features_of_a_data_set_are_told_with_the_command_that_makes_them(
    there: str, folder: Path
) -> None:
    features(folder / there, 30)
    of = named()  # a study is read without its data, like one on mnist
    with pytest.raises(DataError, match=r"test part.*: securefl ") as e:
        world.build(of, 1)
    assert f"features cifar10 --out '{folder}/cifar10-features.npz'" in str(e.value)


@pytest.mark.parametrize("name", ["mine.npz", "mine-features.npz", "../cifar10-features.npz.npz"])
def test_another_file_that_is_missing_is_no_features(name: str, folder: Path) -> None:
    with pytest.raises(DataError, match="Check the path"):
        world.build(named(f'source = "$SECUREFL_DATA/{name}"'), 1)


@every("source", ["$SECUREFL_DATA", "$HOME/x.npz", "SECUREFL_DATA/x.npz"])
def test_other_words_are_paths(source: str) -> None:
    with pytest.raises(ConfigError, match=r"absolute path|source"):
        named(f'source = "{source}"')


@every("missing", [0, 3])
def test_a_target_has_no_rule_for_empty_cells(missing: int) -> None:
    with pytest.raises(ValueError, match="`range` at most"):
        DataSection(source="a.csv", target="price", classes=0, columns={"price": {"missing": missing}})
