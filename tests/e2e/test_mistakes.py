"""Typical mistakes: the message says what was expected, what came and what to do, and no file changes."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from support.command_line import securefl
from support.offenders import offenders

from securefl.storage.folder_lock import locked

LIST = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8"))
STUDY, ALL = LIST["study"], LIST["mistake"]


def contents(mistake: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of the folder in which a mistake is made."""
    texts = mistake.get("files", {})
    if "old" in mistake:
        assert mistake["old"] in STUDY
        texts = {**texts, "study.toml": STUDY.replace(mistake["old"], mistake["new"])}
    found = {name: text.replace("{study}", STUDY).encode() for name, text in texts.items()}
    return found | {name: text.encode("latin-1") for name, text in mistake.get("latin", {}).items()}


def files_of(folder: Path) -> dict[str, bytes | None]:
    """The content of each file, and None for each folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_mistake_gets_its_message_and_changes_no_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(mistake: Mapping[str, Any]) -> None:
        here = Path(mkdtemp(dir=tmp_path))
        monkeypatch.chdir(here)
        for name, content in contents(mistake).items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_bytes(content)
        before = files_of(here)
        code, out, err = securefl(capfd, *shlex.split(mistake["typed"]))
        assert (code, out) == (mistake.get("code", 1), "")
        assert err.startswith("securefl: " if code == 1 else "Usage: "), "nothing comes before a refusal"
        assert files_of(here) == before
        told = mistake["said"].replace("{here}", str(here))
        begins = told.removesuffix(" ...")
        assert begins in err if begins != told else err.rstrip("\n").endswith(told)

    assert offenders(ALL, check) == []


def test_there_are_many() -> None:
    assert len(ALL) >= 60
    made = [repr({**own, "said": ""}) for own in ALL]
    assert len(set(made)) == len(made), "each is another mistake"


def test_two_commands_in_one_folder(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "study.toml").write_text(STUDY)
    with locked(here / "out"):
        before = files_of(here)
        code, out, err = securefl(capfd, "run", "study.toml", "--out", "out")
        assert (code, out) == (1, "")
        assert "Expected a folder that no process uses" in err
        assert files_of(here) == before
