"""The public surface: a dozen names, each imported when it is used, with an example that runs."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import securefl


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All examples run in one folder, where a finished run is not run again."""
    return tmp_path_factory.mktemp("examples")


def test_no_name_is_a_rooms() -> None:
    rooms = {path.stem for path in Path(securefl.__file__).parent.iterdir()}
    assert not rooms & set(securefl.__all__)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        securefl.fit  # noqa: B018
    assert not hasattr(securefl, "fit")


@pytest.mark.docs
@pytest.mark.parametrize("name", securefl.__all__)
def test_its_example_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = getattr(securefl, name)
    assert inspect.getdoc(found)
    (example,) = [one for one in doctest.DocTestFinder(recurse=False).find(found, name, globs={}) if one]
    assert example.examples, f"{name} has no example"
    told: list[str] = []
    failures, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
        example, out=told.append
    )
    assert not failures, "".join(told)
