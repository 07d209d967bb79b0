"""Run folders of this version, whose study says what is gone, are refused and stay as they are.

Folders of older versions are refused before that (`tests/vectors/test_older_files.py`).
"""

from __future__ import annotations

from pathlib import Path

from support import tiny_study
from support.command_line import said
from support.every import every
from support.read_only import content

from securefl.core.errors import ConfigError
from securefl.storage.private_folder import RUN, note_format, private_folder

FORMER = {
    "batches": ('scores = "clear"', 'scores = "batches"'),
    "dealt-pads": ('scores = "clear"', 'scores = "dealt-pads"'),
    "unprotected": ("non_private", "unprotected"),
}


def refused(file: Path, word: str, *typed: str) -> None:
    """The command ends as an error of the user that names the file, the word and another release."""
    before = content(file.parent)
    ended = said(*typed).exception
    assert isinstance(ended, ConfigError), ended
    assert all(part in str(ended) for part in (str(file), word, "another release")), ended
    assert content(file.parent) == before


@every("word", FORMER)
def test_a_run_folder_of_a_former_state_is_refused_by_each_command(word: str, tmp_path: Path) -> None:
    text = tiny_study.text()
    assert FORMER[word][0] in text
    note_format(tmp_path, RUN)
    (private_folder(tmp_path) / "arms").mkdir()
    config = tmp_path / "study.toml"
    config.write_text(text.replace(*FORMER[word]))
    refused(config, word, "report", str(tmp_path))
    refused(config, word, "export", str(tmp_path), "-o", str(tmp_path / "m.safetensors"))
    refused(config, word, "run", str(config), "--out", str(tmp_path))


def test_a_study_that_a_person_wrote_is_no_folder_of_another_release(tmp_path: Path) -> None:
    """Beside a folder `private` of its author's, a study has its own errors alone."""
    (tmp_path / "private").mkdir()
    config = tmp_path / "study.toml"
    config.write_text(tiny_study.text().replace(*FORMER["batches"]))
    ended = said("run", config, "--out", tmp_path / "run").exception
    assert isinstance(ended, ConfigError)
    assert "batches" in str(ended)
    assert "release" not in str(ended)
