"""`make check-newest`: it covers the Pythons that the package names, and tells which are missing."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from types import SimpleNamespace

import newest
import pytest


def test_the_package_names_the_pythons_that_are_checked() -> None:
    project = tomllib.loads((newest.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [line.removeprefix("Programming Language :: Python :: ") for line in project["classifiers"]]
    assert tuple(word for word in named if word.startswith("3.")) == newest.VERSIONS


def test_all_are_checked_though_one_fails_and_one_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No environment is made. 3.13 is not here, and both checks fail under 3.12."""

    def run(*command: object, cwd: object = None) -> bool:
        if "build" in command:
            Path(str(command[command.index("--out-dir") + 1]), "a.whl").touch()
        return "python3.12" in command

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(newest, "run", run)
    monkeypatch.setattr(newest.shutil, "which", lambda name: None if name == "python3.13" else name)
    monkeypatch.setattr("mutants.Copy", lambda root: SimpleNamespace(root=root))
    assert newest.main() == 2
    told = capsys.readouterr().out
    assert "Python 3.11: 0 of" in told
    assert "Python 3.12: 2 of" in told
    assert "Python 3.13 is not on this machine" in told
    assert newest.main("3.11", "3.13") == 0
    assert "Python 3.12" not in capsys.readouterr().out
