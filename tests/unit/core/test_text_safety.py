"""What a person sees: names without tricks, and tables that no spreadsheet runs."""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.every import every

from securefl.core.errors import ConfigError
from securefl.core.text_safety import (
    cell,
    comment,
    excerpt,
    is_legible,
    require_distinct,
    require_legible,
    uncell,
)
from securefl.report.tables import write_csv

UNSEEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}


def test_no_character_that_cannot_be_seen_is_legible() -> None:
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        if unicodedata.category(letter) in UNSEEN:
            assert not is_legible(f"a{letter}b"), hex(code)


@every("name", ["client-0001", "Ärzte & Söhne", "東京", "FedProf (α = 10)", "a/b_c.d", "é"])
def test_names_of_people_are_legible(name: str) -> None:
    assert is_legible(name)
    require_legible(name, "a name")


@every(
    "name",
    [
        "a\nb",
        "\x1b[31mred",
        "\u202egnp.exe",
        "\ufeffx",
        "\ud800",
        "a\u200bb",
        "FedAvg\u3164",
        "a\ufe0f",
        "\u115f",
    ],
)
def test_a_name_that_deceives_is_refused_and_shown_without_its_trick(name: str) -> None:
    with pytest.raises(ConfigError, match="printable letters") as refused:
        require_legible(name, "a holder")
    assert str(refused.value).isprintable()


@every(
    "text",
    [
        "=1+1",
        "+1+cmd",
        "-1+1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "\uff1d1",
        "-",
        "=",
        "-x",
        " =1",
        "\u00a0=1",
        "-1;=cmd",
        "--1",
        "'=1",
        "''@x",
    ],
)
def test_text_that_would_run_is_quoted(text: str) -> None:
    assert cell(text) == "'" + text
    assert uncell(cell(text)) == text


@every(
    "value",
    [
        -0.5,
        -3,
        np.float64(-0.5),
        None,
        True,
        "FedAvg",
        "a=b",
        "",
        "'1",
        "it's",
        "-0.5",
        "+1e-3",
        "-inf",
        "1-2",
    ],
)
def test_numbers_and_other_text_stay(value: object) -> None:
    assert cell(value) is value
    assert uncell(value) is value


@given(st.text(alphabet="'=+-@\t\r\n 1ax,;", max_size=6) | st.text(max_size=6))
def test_each_text_has_a_cell_of_its_own(text: str) -> None:
    assert uncell(cell(text)) == text
    assert cell(text) == text or str(cell(text)).startswith("'")


@every(
    ("line", "said"),
    [
        ("Table 3, of FedProf, -1 and =x", "Table 3, of FedProf, '-1 and =x"),
        ("difference: a,=cmd|' /C calc'!A0", "difference: a,'=cmd|' /C calc'!A0"),
        ("a;@SUM(A1)\n=1", "a;'@SUM(A1) =1"),
        ("a\t=1", "a =1"),
    ],
)
def test_a_comment_that_becomes_a_row_runs_nothing(line: str, said: str) -> None:
    assert comment(line) == said


def test_an_excerpt_is_legible_and_short() -> None:
    for text in ("x" * 201, "\x1b[2J", "a\nb", "\ufeff"):
        assert excerpt(text) == f"a text of {len(text)} characters"
    for text in ("x" * 200, "", "ward 3"):
        assert excerpt(text) == text


def test_a_comment_above_a_table_runs_nothing(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", pd.DataFrame({"a": [1]}), ["x,=HYPERLINK(1)"])
    assert (tmp_path / "t.csv").read_text() == "# x,'=HYPERLINK(1)\na\n1\n"


def test_a_table_is_written_with_its_numbers_as_they_are(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "arm": ["=HYPERLINK(1)", "FedAvg"],
            "@loss": [-0.5, 1e-300],
            "round": [-1, 2],
            "mixed": ["-x", -2],
            "kind": pd.Categorical(["+1+1", "a"]),
        }
    )
    write_csv(tmp_path / "t.csv", table)
    assert (tmp_path / "t.csv").read_text() == (
        "arm,'@loss,round,mixed,kind\n'=HYPERLINK(1),-0.5,-1,'-x,'+1+1\nFedAvg,1e-300,2,-2,a\n"
    )
    assert table["arm"][0] == "=HYPERLINK(1)", "the table itself is as it was"


TWINS = [
    ("ann", "Ann"),
    ("straße", "STRASSE"),
    ("ſam", "sam"),
    ("ＡＮＮ", "ann"),
    ("é", "e\u0301"),
    ("İ", "i̇"),
]


@every(("one", "other"), TWINS)
def test_names_that_differ_by_case_or_form_alone_are_refused_with_both(one: str, other: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        require_distinct(["bob", one, "eve", other], "names")
    assert repr(one) in str(refusal.value)
    assert repr(other) in str(refusal.value)


def test_other_names_are_distinct_and_one_name_may_come_again() -> None:
    require_distinct(["ann", "anne", "bob", "ann", "client-0001", "client-0010", "东京", "東京"], "names")
