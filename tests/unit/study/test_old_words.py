"""An older word of a configuration is an error that names the new one, and a run that began with one goes "
"on."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from support.every import every

from securefl import Plan
from securefl.accounting.store import Terms, written
from securefl.core.errors import ConfigError
from securefl.core.renamed import first_words, renamed
from securefl.study.config import _SECTIONS, parse, read
from securefl.study.data_section import DataSection
from securefl.study.older_words import KINDS
from securefl.study.privacy import PrivacySection
from securefl.study.session import reopen, run_study

FOLDERS = Path(__file__).parents[2] / "vectors" / "folders"
OLD = (FOLDERS / "study.toml").read_text(encoding="utf-8")
PLAIN = Plan(delta=1e-5, max_rounds=1)


def test_a_reader_of_finished_runs_knows_every_older_word() -> None:
    for name, kind in _SECTIONS.items():
        known = renamed(KINDS[name]).items() if name in KINDS else ()
        assert renamed(kind).items() <= set(known), name


def modern(text: str) -> str:
    for old, new in renamed(PrivacySection).items():
        text = text.replace(f"\n{old} = ", f"\n{new} = ")
    return text


@every(("old", "new"), sorted(renamed(PrivacySection).items()))
def test_an_older_word_of_privacy_is_refused_with_the_new_one(old: str, new: str) -> None:
    text = modern(OLD).replace("[privacy]\n", f"[privacy]\n{old} = 1\n")
    with pytest.raises(ConfigError, match=rf"\[privacy\] The word `{old}` has a new name: write `{new}`"):
        parse(text)


@pytest.mark.parametrize(("old", "new"), sorted(renamed(DataSection).items()))
def test_an_older_word_of_data_is_refused_with_the_new_one(old: str, new: str) -> None:
    text = modern(OLD).replace("[data]\n", f"[data]\n{old} = 1\n")
    with pytest.raises(ConfigError, match=rf"\[data\] The word `{old}` has a new name: write `{new}`"):
        parse(text)


@every(("old", "new"), sorted(renamed(Plan).items()))
def test_an_older_word_of_a_plan_is_refused_with_the_new_one(old: str, new: str) -> None:
    words: dict[str, object] = {"delta": 1e-5, "max_rounds": 1, old: 1}
    with pytest.raises(ConfigError, match=rf"The word `{old}` has a new name: write `{new}`"):
        Plan(**words)  # type: ignore[arg-type]


def test_digests_and_files_keep_the_first_words() -> None:
    # It came later, and is among the words only where it is set: digests of before stay.
    assert list(PLAIN.words()) == [word for word in first_words(Plan) if word != "encrypted_baseline"]
    assert sorted(written(PLAIN.terms())) == sorted(first_words(Terms))


def begun(folder: Path) -> Path:
    """A run folder that began with older words: one round, and a copy of its study."""
    with tarfile.open(FOLDERS / "begun_at_aa4d2a0.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    (folder / "study.toml").write_text(OLD, encoding="utf-8")
    return folder


def test_a_run_that_began_with_older_words_goes_on_under_the_new_ones(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    with pytest.raises(ConfigError, match="has a new name"):
        parse(OLD)
    study = parse(modern(OLD))
    told: list[int] = []
    run_study(study, folder, lambda arm, seed, record: told.append(record["round"]))
    assert told == list(range(1, study.study.rounds + 1))
    assert (folder / "study.toml").read_text(encoding="utf-8") == OLD, "its digest is in files beside it"
    reopen(folder)
    assert read(folder / "study.toml").privacy == study.privacy


def test_another_study_in_older_words_is_another_one(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    other = parse(modern(OLD) + "\n[cost]\nreal_bytes = false\n")
    with pytest.raises(ConfigError, match="another configuration"):
        run_study(other, folder, lambda *_: None)
