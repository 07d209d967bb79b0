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


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No environment is made. 3.13 is not here, and the check fails under 3.12."""

    def run(*command: object, cwd: Path = tmp_path) -> str:
        words = [str(word) for word in command]
        if "build" in words:
            (Path(words[words.index("--out-dir") + 1]) / "a.whl").touch()
        if ("find" in words and "3.13" in words) or ("check" in words and "3.12" in cwd.name):
            raise newest.subprocess.CalledProcessError(1, "check", "an old numpy")
        return f"{words[-1]} in {cwd.name}"

    monkeypatch.setattr(newest, "run", run)


def test_all_are_checked_though_one_fails_and_one_is_missing(
    doubles: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        newest.main()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "Python 3.11: check in 3.11; check[flower] in 3.11" in said
    assert "an old numpy" in said
    assert "Python 3.12 FAILED" in said
    assert "Python 3.13 is not on this machine: not checked." in said


def test_the_versions_that_are_named_are_checked_alone(
    doubles: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        newest.main("3.12", "3.13")
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "Python 3.13 is not on this machine" in said
    assert "Python 3.12 FAILED" in said
    assert "Python 3.11" not in said
