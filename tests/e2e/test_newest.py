"""`make check-newest`: it covers the Pythons that the package names, and tells which are missing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import newest
import pytest


def test_the_package_names_the_pythons_that_are_checked() -> None:
    project = tomllib.loads((newest.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [line.removeprefix("Programming Language :: Python :: ") for line in project["classifiers"]]
    assert tuple(word for word in named if word.startswith("3.")) == newest.VERSIONS


def test_a_missing_python_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(newest, "built", lambda folder: folder / "a.whl")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert newest.main() == 1
    assert capsys.readouterr().out.count("is not on this machine: not checked.") == len(newest.VERSIONS)


def test_all_are_checked_though_one_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(python: Path, *words: object, cwd: Path) -> str:
        if "3.12" in python.name:
            raise newest.subprocess.CalledProcessError(1, "check", b"an old numpy")
        return f"{words[-1]} of {python.name} in {cwd.name}\n"

    monkeypatch.setattr(newest, "built", lambda folder: folder / "a.whl")
    monkeypatch.setattr(newest, "found", lambda version: Path(f"python{version}"))
    monkeypatch.setattr(newest, "pythons", lambda version, python, wheel: (python, python))
    monkeypatch.setattr(newest, "run", run)
    assert newest.main() == 1
    said = capsys.readouterr().out
    assert "Python 3.11: check of python3.11 in 3.11; check_flower of" in said
    assert "Python 3.12: an old numpy; FAILED" in said
    assert "Python 3.13: check of" in said
