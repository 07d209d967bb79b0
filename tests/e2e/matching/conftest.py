"""A finished matching, and copies of it to spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.matching_place import Place


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished matching; copied before it is spoilt."""
    place = Place(tmp_path_factory.mktemp("matching"))
    place.match()
    return place


@pytest.fixture
def place(made: Place, tmp_path: Path) -> Place:
    shutil.copytree(made.root, tmp_path / "m")
    copy = object.__new__(Place)
    copy.root, copy.options = tmp_path / "m", ()
    return copy
