"""The words of fields in digests and files: each comes back as its field, and none stands for two."""

from __future__ import annotations

from pathlib import Path

import pytest

from securefl import Plan
from securefl.accounting.store import Terms, written
from securefl.core.errors import ConfigError
from securefl.core.file_words import by_field, file_words
from securefl.deployment import plan_file
from securefl.deployment.plan_file import HolderTerms, PlanFile

PLAN = Plan(delta=1e-5, max_rounds=1, encrypted_baseline=True, accepts_kept_state=True)


def test_every_field_comes_back() -> None:
    assert by_field(Plan, PLAN.words()).keys() == file_words(Plan).keys()
    assert Plan(**by_field(Plan, PLAN.words())) == PLAN
    assert by_field(Terms, written(PLAN.terms())).keys() == file_words(Terms).keys()
    for kind in (Plan, Terms):
        assert len(set(file_words(kind).values())) == len(file_words(kind))


def test_a_field_under_two_names_in_a_file_is_refused(tmp_path: Path) -> None:
    own = PlanFile(
        name="server", arm="A", seed=0, counter="", terms=HolderTerms.of(PLAN), plan=PLAN, clients=2
    )
    plan_file.write(tmp_path, own)
    assert plan_file.read(tmp_path) == own
    path = tmp_path / plan_file.NAME
    text = path.read_text(encoding="utf-8")
    for first, second in (("spare = 0", "max_retries = 9"), ("schedule = 1", "max_rounds = 9")):
        path.write_text(text.replace(first, f"{first}\n{second}"), encoding="utf-8")
        with pytest.raises(ConfigError, match=first.partition(" ")[0]):
            plan_file.read(tmp_path)
