"""The table of kinds that people bring, played again."""

from __future__ import annotations

from pathlib import Path

import brought_kinds
import pytest
from kept import read


def test_a_kind_of_each_outcome_is_told_apart(tmp_path: Path) -> None:
    kinds = {(own.name, own.training): own for own in brought_kinds.models()}
    assert brought_kinds.outcome(kinds["LoRA on a frozen layer", "client"], tmp_path) == ("trained", "")
    done, words = brought_kinds.outcome(kinds["a lazy layer", ""], tmp_path)
    assert (done, words) == ("refused", "Set its size.")
    broken = brought_kinds.Kind(name="broken", made=lambda: brought_kinds.Net(brought_kinds.nn.Linear(3, 2)))
    done, words = brought_kinds.outcome(broken, tmp_path)
    assert done == "missing"
    assert "RuntimeError" in words


def test_the_table_has_forty_kinds_and_each_outcome_but_for_what_is_missing_is_a_word_to_act_on() -> None:
    kept = read("brought_kinds.csv")
    assert len(kept) >= 40
    assert set(kept["outcome"]) <= {"trained", "refused", "missing"}
    assert kept.loc[kept["outcome"] != "trained", "words"].str.len().min() > 5


@pytest.mark.slow
def test_the_kinds_end_as_the_table_says() -> None:
    found, kept = brought_kinds.table(), read("brought_kinds.csv")
    assert found.fillna("").to_dict("records") == kept.fillna("").to_dict("records")
