"""Which tables there are, what they need, and how theirs differ from the papers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny_table
from support.tiny_table import ELSEWHERE, TABLE, install, part, table

from securefl.core.errors import ConfigError, DataError
from securefl.published import table as catalogue
from securefl.published.runs import run_table
from securefl.published.table import differences, tasks


def test_a_table_whose_protocols_are_missing_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, digits="TABLE", lacking="LACKING")
    assert catalogue.tables() == {"digits": TABLE}
    assert catalogue.table_named("digits") is TABLE
    with pytest.raises(ConfigError, match=r"lacking .* fedcorr"):
        catalogue.table_named("lacking")


def test_an_unknown_table_is_told_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, digits="TABLE", other="OTHER")
    with pytest.raises(ConfigError, match=r"got 'digts' .*`digits`"):
        catalogue.table_named("digts")


def test_missing_data_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the last part too: hours of the first must not be lost to it."""
    monkeypatch.setenv("SECUREFL_DATA", str(tmp_path / "nothing"))
    assert ELSEWHERE.data == ("digits", "mnist")
    why = catalogue.missing(("digits", "mnist"))
    assert set(why) == {"mnist"}
    assert "mnist/train-images-idx3-ubyte.gz" in why["mnist"]
    assert "securefl data fetch mnist" in why["mnist"]
    with pytest.raises(DataError, match="securefl data fetch mnist"):
        run_table(ELSEWHERE, tmp_path / "out", lambda *_: None)
    assert not (tmp_path / "out").exists()


def test_differences_are_found_and_said() -> None:
    assert differences(TABLE) == (
        "study.rounds = 2; published is 500.",
        "data.partition.kind = iid; published is shards.",
        "Seeds: 2; published are 5.",
        "Ours: alpha = 10; published is 25.",
        "Ours: scheme = not set; published is II.",
        "Digits in place of everything.",
    )


def test_parts_that_differ_alike_share_a_sentence() -> None:
    two = table(part("one"), replace(part("two", rounds=3), seeds=None))
    found = differences(two)
    assert "one: study.rounds = 2; published is 500." in found
    assert "two: study.rounds = 3; published is 500." in found
    assert "data.partition.kind = iid; published is shards." in found
    assert "one: Seeds: 2; published are 5." in found
    assert "two: Seeds: 2; the paper does not say how many it ran." in found


def test_a_twin_of_another_task_has_its_words_beside_the_published_ones() -> None:
    """Seeds and partitions may differ: then the figures are of one task. After fewer rounds they are not."""
    alike = {key: value for key, value in TABLE.parts[0].setting.items() if key != "study.rounds"}
    assert tasks(table(replace(part(), setting=alike))) is None
    assert tasks(table(part())) == ("500 rounds", "2 rounds")
    setting = {**alike, "data.source": "mnist", "study.target": 0.9}
    own = replace(part(), setting=setting)
    assert tasks(table(own)) == ("mnist, to 0.9", "digits, to 0.2")
    other = replace(part("two"), setting={**setting, "study.target": 0.8})
    assert tasks(table(own, other)) == ("mnist, to 0.9 (one), to 0.8 (two)", "digits, to 0.2")
    assert tasks(table(replace(own, setting={**setting, "local.epochs": 5}))) == (
        "mnist, 5 epochs, to 0.9",
        "digits, 2 epochs, to 0.2",
    )
    assert tasks(table(replace(own, setting={"local.epochs": 1}))) == ("1 epoch", "2 epochs")


def test_what_is_no_table() -> None:
    with pytest.raises(ValueError, match="got 'FedProof'"):
        replace(part(), ours="FedProof")
    with pytest.raises(ValueError, match="different folders"):
        table(part("C 0.1"), part("c-0 1"))


def test_versions_are_those_of_the_studies() -> None:
    assert TABLE.version == replace(TABLE, title="Other", minutes=9, differences=()).version
    assert TABLE.version != tiny_table.OTHER.version
