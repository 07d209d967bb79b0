"""A finished matching, and copies of it to spoil."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import copy as copied_from
from itertools import count
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
def fresh(made: Place, tmp_path: Path) -> Callable[[], Place]:
    """Makes a copy, another one at each call."""
    numbers = count()

    def copied() -> Place:
        copy = copied_from(made)
        copy.root = tmp_path / f"m{next(numbers)}"
        shutil.copytree(made.root, copy.root)
        return copy

    return copied


@pytest.fixture
def place(fresh: Callable[[], Place]) -> Place:
    return fresh()
