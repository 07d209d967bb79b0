"""An exported model whose card a stranger wrote, with the right digest: refused before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.exported_cards import CARD, MODEL, RECORDS, values

from securefl.core.errors import ConfigError, DataError
from securefl.training.exported import save
from securefl.training.trained import load

X = np.random.default_rng(0).normal(size=(5, 6))


def write(path: Path, card: dict[str, Any]) -> Path:
    save(path / "m", values(), card)
    return path / "m"


@every(
    "told",
    [
        {"shape": [-1]},
        {"shape": [float("inf")]},
        {"shape": [10**30]},
        {"shape": "6"},
        {"outputs": float("inf")},
        {"outputs": 3.9},
        {"outputs": "3"},
        {"kind": "x" * 100_000},
        {"kind": ["mlp"]},
        {"task": "x"},
        {"reads_text": "no"},
        {"changes": "x"},
        {"options": []},
        {"code": 3},
        {"records": {}},
        {"features": []},
        {"features": {"kind": "x", "bound": 1.0}},
        {"features": {"kind": "clip-l2", "bound": "x"}},
        {"features": {"kind": "clip-l2", "bound": float("nan")}},
        {"features": {"kind": "clip-l2", "bound": -1.0}},
        {"features": {"projection": {"kind": "evil", "features": 4, "width": 4, "seed": 0}}},
        {"features": {"projection": {"kind": "random", "features": 4.0, "width": 4, "seed": 0}}},
        {"features": {"projection": {"kind": "random", "features": 10**5, "width": 10**5, "seed": 0}}},
        {"features": {"projection": {"kind": "random", "features": 4, "width": 4, "seed": -1}}},
    ],
)
def test_a_card_of_a_strangers_making_is_refused_shortly(told: dict[str, Any], tmp_path: Path) -> None:
    """The attack: a file with a right digest whose card says what no export says."""
    told = (
        {"features": {"kind": "unit-l2", **told["features"]}}
        if isinstance(told.get("features"), dict)
        else told
    )
    file = write(tmp_path, {**CARD, "model": {**MODEL, **told}})
    with pytest.raises(DataError, match="the whole card of a model") as refused:
        load(file)
    assert len(str(refused.value)) < 700


@every(
    "told",
    [
        {"columns": [{"name": f"f{place}", "range": [1, 0]} for place in range(6)]},
        {"columns": [{"name": "f", "categories": list("abcdea")}]},
        {"columns": [{"name": "f"}] * 6},
        {"shape": [5]},
        {"labels": ["no", "yes"]},
        {"labels": ["no", "yes", "no"]},
        {"labels": ["\x1b[2J"] * 3},
        {"features": {"word": "net:Net", "name": "a\nb", "about": ""}},
        {"network": 3},
        {"strange": 1},
    ],
)
def test_records_that_no_export_describes_are_refused(told: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path, {**CARD, "records": {**RECORDS, **told}})
    with pytest.raises(DataError, match="the whole card of a model") as refused:
        load(file)
    assert len(str(refused.value)) < 700


def test_an_edited_card_is_noticed(tmp_path: Path) -> None:
    """A digest binds card and values: one letter of a category is enough."""
    columns = [{"name": "f", "categories": list("abcdef")}]
    file = write(tmp_path, {**CARD, "records": {**RECORDS, "columns": columns}})
    load(file)
    raw = file.read_bytes()
    assert raw.count(b'\\"e\\"') == 1
    file.write_bytes(raw.replace(b'\\"e\\"', b'\\"x\\"'))
    with pytest.raises(DataError, match="other values or another"):
        load(file)


@every(
    "told",
    [{"arm": "\x1b[2J"}, {"seed": "x"}, {"client": "../x"}, {"part": ["x"]}, {"model": None}, {"model": {}}],
)
def test_a_card_writes_nothing_odd_on_a_terminal(told: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path, {**CARD, **told})
    with pytest.raises(DataError, match="the whole card of a model"):
        load(file)


@every("path", [None, 3, b"m", "a\0b"])
def test_something_else_than_a_path_is_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match="path of an exported model"):
        load(path)


def test_masked_and_complex_records_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, CARD)
    for odd in (np.ma.masked_equal(X, X[0, 0]), X.astype(complex)):
        with pytest.raises(DataError, match="a masked or complex array"):
            load(file).predict(odd)
