"""Files as other programs write them: signs between cells, decimal commas, encodings, codes of a site."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.every import every
from support.own_records import filed, table

from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import convert
from securefl.data.columns import Column
from securefl.data.describe import lines, proposal
from securefl.data.layout import Dialect, Layout
from securefl.data.schema import Schema
from securefl.data.tables import read_records, read_table
from securefl.study.data_section import DataSection

GERMAN = "größe;klinik;krank\n1,5;süd;ja\n-;nord;nein\n2,25;süd;nein\n3;nord;ja\n"
WRITTEN = Dialect(delimiter=";", decimal=",", encoding="cp1252", empty=("-",))
LAYOUT = Layout(
    target=("krank",),
    classes=("nein", "ja"),
    client_column="klinik",
    columns={"größe": Column(missing=-1.0)},
    csv=WRITTEN,
)


def written(path: Path, text: str = GERMAN, encoding: str = "cp1252") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def columns(path: Path, dialect: Dialect, *, lenient: bool = False) -> list[str]:
    found: Any = read_table(path, None, dialect, lenient=lenient)
    return list(found)


def sizes(made: Any) -> list[float]:
    return sorted(float(one) for part in (made.split.train, made.split.test) for one in part.x[:, 0])


@every("claimed", [False, True])
def test_a_file_is_read_as_it_is_declared(claimed: bool, tmp_path: Path) -> None:
    layout = replace(LAYOUT, clients=("nord", "süd")) if claimed else LAYOUT
    # Four records may leave a part empty. Here only their values count.
    found = read_table(written(tmp_path / "a.csv"), None, WRITTEN, lenient=claimed)
    assert found.values.tolist() == [  # type: ignore[union-attr]
        ["1,5", "süd", "ja"],
        ["", "nord", "nein"],
        ["2,25", "süd", "nein"],
        ["3", "nord", "ja"],
    ]
    many = written(tmp_path / "b.csv", GERMAN + 20 * GERMAN.split("\n", 1)[1])
    made = filed(many, layout, claimed=claimed)
    assert made.clients == ("nord", "süd")
    assert sizes(made) == sorted(21 * [1.5, -1.0, 2.25, 3.0])
    assert made.schema.csv == WRITTEN


def test_a_point_between_thousands_is_no_fraction(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", GERMAN.replace("2,25", "1.500"))
    with pytest.raises(DataError, match=r"a\.csv, row 3, column 'größe': .*got '1\.500'"):
        filed(path, LAYOUT)
    made = filed(path, replace(LAYOUT, clients=("nord", "süd")), claimed=True)
    assert sizes(made) == [-1.0, 1.5, 3.0] or 1500.0 not in sizes(made)
    assert 1.5 in sizes(made)
    # Both signs are no number at all.
    with pytest.raises(DataError, match=r"row 3, column 'größe'.*'1\.500,5'"):
        filed(written(tmp_path / "b.csv", GERMAN.replace("2,25", "1.500,5")), LAYOUT)


@every(
    ("dialect", "declared"),
    [
        (Dialect(), 'csv = { encoding = "cp1252" }'),
        (Dialect(encoding="cp1252"), 'csv = { delimiter = ";" }'),
        (replace(WRITTEN, delimiter="\t"), 'csv = { delimiter = ";" }'),
    ],
)
def test_a_refusal_shows_the_declaration_that_helps(dialect: Dialect, declared: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv")
    with pytest.raises(DataError) as refused:
        read_table(path, None, dialect)
    assert declared in str(refused.value)
    said = convert(Dialect, vars(dialect) | tomllib.loads(declared)["csv"], "data.csv")
    if said.delimiter == ";":
        assert list(columns(path, said)) == ["größe", "klinik", "krank"]


@every("encoding", ["utf-16", "utf-7", "cp037", "no such", "hex", "utf-32"])
def test_an_encoding_whose_line_breaks_are_other_bytes_is_refused(encoding: str) -> None:
    with pytest.raises(ValueError, match="Save the file as UTF-8"):
        Dialect(encoding=encoding).require()


def test_a_card_of_an_unknown_encoding_is_refused() -> None:
    card = {**Schema(columns=None, shape=(2,)).words(), "csv": {"encoding": "hex"}}
    with pytest.raises(ConfigError, match=r"\[records\] Expected `encoding`"):
        Schema.parse(card)


def test_a_mark_before_utf_8_is_no_letter_of_the_first_column(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", encoding="utf-8-sig")
    for lenient in (False, True):
        assert columns(path, replace(WRITTEN, encoding="UTF8"), lenient=lenient)[0] == "größe"


def test_no_file_is_a_csv(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.array([0, 1, 0, 1]))
    with pytest.raises(ConfigError, match=r"no `csv` for .*a\.npz"):
        filed(tmp_path / "a.npz", Layout(classes=2, csv=WRITTEN))


def test_a_card_says_how_later_files_are_written(tmp_path: Path) -> None:
    made = filed(written(tmp_path / "a.csv", GERMAN + 9 * GERMAN.split("\n", 1)[1]), LAYOUT)
    again = Schema.parse(made.schema.words())
    assert again == made.schema
    found = read_records(written(tmp_path / "new.csv"), again.csv)
    assert again.encode(found, "new.csv")[:, 0].tolist() == [1.5, -1.0, 2.25, 3.0]  # type: ignore[arg-type]
    plain = made.schema.words()
    del plain["csv"]
    assert Schema.parse(plain).csv == Dialect(), "cards of before have no such key"


@every(("encoding", "said"), [("utf-8", {}), ("cp1252", {"encoding": "cp1252"})])
def test_describe_guesses_how_a_file_is_written(encoding: str, said: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", GERMAN, encoding)
    section, notes = proposal(path, target=("krank",), client_column="klinik")
    assert section["csv"] == {"delimiter": ";", "decimal": ",", "empty": ("-",)} | said
    assert "guess" in notes[0]
    assert section["columns"]["größe"]["range"] == [1.5, 3.0]
    read = convert(DataSection, tomllib.loads("\n".join(lines(section)))["data"], "data")
    assert read.layout.csv == Dialect(**section["csv"])


def test_words_dates_and_names_may_have_points(tmp_path: Path) -> None:
    text = "größe;klinik;krank;form;id\n" + "1,5;7.0;ja;1,5;1.5\n2,5;8;nein;2.5;01.02\n" * 9
    layout = replace(
        LAYOUT, ignore=("id",), columns={"form": Column(categories=("1,5", "2.5")), **LAYOUT.columns}
    )
    made = filed(written(tmp_path / "a.csv", text), layout)
    assert made.clients == ("7", "8")
    assert {tuple(row) for row in made.split.train.x} == {(1.5, 1, 0), (2.5, 0, 1)}


@every(
    ("text", "said"),
    [
        ("a;b;ill\n1,5;x;0\nNA;y;1\n2,5;x;1\n3,25;y;0\n", {"delimiter": ";", "decimal": ","}),
        (
            "a;b\n1,5;1\n?;2\n-;3\n2;4\n2,5;1\n",
            {"delimiter": ";", "decimal": ",", "empty": ("-", "?")},
        ),
        ("pos;x\n1,2;0.5\n3,4;1.5\n", {"delimiter": ";"}),  # the commas may stand between thousands
        ("a\tb\nx\t1\ny\t2\n", {"delimiter": "\t"}),
        ("when;dose\n01.02;1,5\n02.02;2,5\n", {"delimiter": ";"}),
        ('name,dose\na;b,1.5\nc,2\n"d, e",3\n', None),
    ],
)
def test_describe_guesses_no_more_than_the_text_shows(text: str, said: Any, tmp_path: Path) -> None:
    section, _ = proposal(written(tmp_path / "a.csv", text))
    assert section.get("csv") == said


def test_describe_proposes_what_a_study_takes(tmp_path: Path) -> None:
    text = "x,y,z\n1e308,1,0.5\n-1e308,2,1e39\n0,3,2\n"
    section, notes = proposal(written(tmp_path / "a.csv", text), target=("z",))
    assert section["ignore"] == ["x"]
    assert "z" not in section["columns"]
    assert any("32 bits" in note for note in notes)
    with pytest.raises(DataError, match=r"expected '7' as before, got '7\.0'"):
        proposal(written(tmp_path / "b.csv", "c,x,y\n7,1,1\n7.0,2,0\n"), target=("y",), client_column="c")
    other = written(tmp_path / "c.csv", "x,y\n\u010d,1\n\u0159\u0164,0\n", "cp1250")
    assert proposal(other)[0]["csv"]["encoding"] in ("cp1252", "latin-1")


def test_utf_16_is_named(tmp_path: Path) -> None:
    for lenient in (False, True):
        with pytest.raises(DataError, match="got UTF-16"):
            read_table(written(tmp_path / "a.csv", GERMAN, "utf-16"), None, WRITTEN, lenient=lenient)


# Codes of a site ---------------------------------------------------------------------------------------

CODES = {"south.csv": {"1": "no", "2": "yes"}}
BY_FILE = Layout(target=("ill",), classes=("no", "yes"), label_map=CODES)


def sites(home: Path, south: str = "dose,ill\n1,1\n2,2\n3,2\n4,1\n5,2\n6,1\n") -> Path:
    written(home / "sites" / "north.csv", "dose,ill\n11,no\n12,yes\n13,yes\n14,no\n15,yes\n16,no\n")
    written(home / "sites" / "south.csv", south)
    return home / "sites"


def labels(made: Any) -> dict[float, int]:
    return {
        float(x): int(y)
        for part in (made.split.train, made.split.test)
        for x, y in zip(part.x[:, 0], part.y, strict=True)
    }


def test_a_site_has_codes_of_its_own(tmp_path: Path) -> None:
    test = written(tmp_path / "test.csv", "dose,ill\n21,yes\n22,no\n")
    found = labels(filed(sites(tmp_path), BY_FILE, test))
    of_six = [0, 1, 1, 0, 1, 0]
    assert [found[dose] for dose in (*range(1, 7), *range(11, 17), 21, 22)] == [*of_six, *of_six, 1, 0]
    of_server = replace(BY_FILE, label_map=CODES | {"test.csv": {"7": "yes", "8": "no"}})
    written(test, "dose,ill\n21,7\n22,8\n")
    assert labels(filed(sites(tmp_path), of_server, test))[21.0] == 1


@every("south", ["no", "yes", "3", ""])
def test_what_is_no_code_of_the_site_is_refused(south: str, tmp_path: Path) -> None:
    """A label that other sites write is none of this site."""
    home = sites(tmp_path, f"dose,ill\n1,1\n2,2\n3,{south}\n4,1\n5,2\n6,1\n")
    match = r"south\.csv, row 3, column 'ill': expected a code of 'south\.csv', '1', '2', got .*`label_map`"
    with pytest.raises(DataError, match=match):
        filed(home, BY_FILE)
    claimed = filed(home, BY_FILE, claimed=True)
    assert sum(part.usable.sum() for part in (claimed.split.train, claimed.split.test)) == 11


def test_clients_of_a_column_have_codes_of_their_own(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "dose": range(8),
            "site": 4 * ["north", "south"],
            "ill": ["yes", "2", "no", "1", "yes", "1", "no", "2"],
        }
    )
    layout = Layout(
        target=("ill",), classes=("no", "yes"), client_column="site", label_map={"south": CODES["south.csv"]}
    )
    made = table(frame, layout, share=0.2)
    assert labels(made) == dict(enumerate([1, 1, 0, 0, 1, 0, 0, 1]))
    with pytest.raises(ConfigError, match=r"'north', 'south', got 'sout' .did you mean"):
        table(frame, replace(layout, label_map={"sout": CODES["south.csv"]}))


def test_the_servers_records_of_a_client_have_its_codes(tmp_path: Path) -> None:
    rows = [f"{dose},{('north', 'south')[dose % 2]},{('no', '2')[dose % 2]}" for dose in range(10)]
    train = written(tmp_path / "train.csv", "\n".join(["dose,site,ill", *rows, "10,north,yes", "11,south,1"]))
    test = written(tmp_path / "test.csv", "dose,site,ill\n20,south,1\n21,south,2\n22,north,yes\n")
    layout = replace(BY_FILE, client_column="site", label_map={"south": CODES["south.csv"]})
    found = labels(filed(train, layout, test))
    assert [found[dose] for dose in (20, 21, 22)] == [0, 1, 1]
    bare = written(tmp_path / "bare.csv", "dose,ill\n20,8\n21,9\n")
    of_file = replace(layout, label_map=layout.label_map | {"bare.csv": {"8": "yes", "9": "no"}})
    found = labels(filed(train, of_file, bare))
    assert [found[dose] for dose in (20, 21)] == [1, 0]


def test_a_file_without_such_a_site_is_told_before_its_labels(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`label_map` for one of 'north\.csv', 'south\.csv', got 'suoth"):
        filed(sites(tmp_path), replace(BY_FILE, label_map={"suoth.csv": CODES["south.csv"]}))


@every(
    ("codes", "match"),
    [
        ({"1": "yes", "2": "yes"}, "another one of the labels"),  # a class twice
        ({"1": "yes", "2": "maybe"}, "another one of the labels"),
        ({}, "another one of the labels"),
        ({"1": "yes", "1.0": "no"}, "each code once"),
    ],
)
def test_a_map_of_labels_is_checked_before_a_record_is_read(codes: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=rf"label_map\.a: .*{match}"):
        convert(
            DataSection,
            {"source": "a.csv", "target": "ill", "classes": ["no", "yes"], "label_map": {"a": codes}},
            "data",
        )


def test_a_bad_label_of_the_servers_records_is_in_the_servers_file(tmp_path: Path) -> None:
    test = written(tmp_path / "held-out.csv", "dose,ill\n21,yes\n22,perhaps\n")
    with pytest.raises(DataError, match=r"^held-out\.csv, row 2, column 'ill'"):
        filed(sites(tmp_path), BY_FILE, test)


def test_classes_that_a_site_lacks_are_told(tmp_path: Path) -> None:
    test = written(tmp_path / "test.csv", "dose,ill\n21,yes\n22,no\n")
    made = filed(sites(tmp_path, "dose,ill\n1,1\n2,1\n3,1\n"), BY_FILE, test)
    assert any("1 of 2 clients, such as 'south.csv' of 'yes'" in note for note in made.notes)
    assert not any("some class" in note for note in filed(sites(tmp_path), BY_FILE, test).notes)


# Names of clients --------------------------------------------------------------------------------------


def of_sites(names: list[Any], **options: Any) -> Any:
    frame = pd.DataFrame({"dose": range(len(names)), "site": pd.Series(names, dtype=object)})
    frame["ill"] = np.where(np.arange(len(names)) % 2, "no", "yes")
    layout = Layout(target=("ill",), classes=("no", "yes"), client_column="site", **options)
    return table(frame, layout, share=0.2, claimed=bool(options))


def test_two_ways_to_write_a_site_do_not_merge_silently() -> None:
    with pytest.raises(DataError, match=r"row 3, column 'site': expected '7' as before, got '7\.0'"):
        of_sites(["7", "8", "7.0", "8"] * 5)
    assert of_sites([" 7", "8", "7", "8"] * 5).clients == ("7", "8")
    assert of_sites([7, 8, 7.0, 8] * 5).clients == ("7", "8"), "equal numbers are one client"


def test_a_declared_site_may_be_written_as_a_float() -> None:
    made = of_sites(["7", "8", "7.0", "8"] * 5, clients=("7", "8"))
    assert made.clients == ("7", "8")
    assert len(made.split.train) + len(made.split.test) == 20


def test_ids_beyond_floats_are_compared_exactly() -> None:
    first, second = 2**53, 2**53 + 1
    for kind in (int, str):
        assert of_sites([kind(first), kind(second)] * 10).clients == (str(first), str(second))
    for small, kind in ((first, float), (2**24, np.float32)):
        with pytest.raises(DataError, match="A float rounds so large a number"):
            of_sites([kind(small), kind(small + 1)] * 10)


def test_describe_tells_several_labels_from_several_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "x,a,b,n\n1,0,1,10\n2,1,0,250\n3,0,0,31\n")
    section, _ = proposal(path, target=("a", "b"))
    assert (section["target"], section["classes"]) == (["a", "b"], [0, 1])
    section, _ = proposal(path, target=("a", "n"))
    assert section["classes"] == 0
    assert section["columns"]["a"] == {"range": [0.0, 1.0]}
    assert section["columns"]["n"]["range"][1] >= 250
    several = (([[0, 1], [1, 1]], 2), ([[0, 3], [1, 1]], 0), ([[0], [4]], 5), ([[0.5], [1]], 0))
    for y, classes in (*several, ([0, 0], 0), ([-1, 1], 0)):
        np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=np.array(y))
        section, notes = proposal(tmp_path / "a.npz")
        assert section["classes"] == classes
    assert "it is a regression, unless you number its classes so" in " ".join(notes)


UNLIKE = "age,cough,job,one\n31,no,miner,no\n46,yes,nurse,no\n52,no,cook,no\n"


@every(
    ("target", "said"),
    [
        (("cough", "cough"), "targets that differ.*got cough, cough. Name each once"),
        (("cough", "age"), "the same two classes, or of numbers, got others in cough, age. Take one of them"),
        (("cough", "job"), "the same two classes, or of numbers, got others in cough, job. Take one of them"),
        (("one",), "a target of two values or more, got 1 in one. Take another target"),
        (("cough", "one"), "a target of two values or more, got 1 in one. Take another target"),
    ],
)
def test_targets_that_no_study_takes_are_not_proposed(
    target: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "a.csv", UNLIKE)
    with pytest.raises(ConfigError, match=said):
        proposal(path, target=target)
    with pytest.raises(ConfigError, match="none that names the clients"):
        proposal(path, target=("job",), client_column="job")
    assert proposal(path, target=("cough",))[0]["classes"] == ["no", "yes"]
