"""A reader who follows one value opens few files (`tools/files_touched.py`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "files_touched.py"
SPEC = importlib.util.spec_from_file_location("files_touched", TOOL)
assert SPEC is not None
assert SPEC.loader is not None
files_touched = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(files_touched)


# A score passes the client's training and statistic, its ledger and release, the wire, the server's machine
# and the key holder's, and the room of linear queries; one file more since a model may be on a GPU
# (`training.devices`), one since the server's numbers are not copied with every message
# (`core.append_map`), and one since a client compares the bounds of a query with its own (`core.hiding`).
@pytest.mark.parametrize(("way", "most"), [("profile to score", 24), ("phi to eta", 14)])
def test_a_value_touches_few_files(way: str, most: int) -> None:
    found = files_touched.touched(*files_touched.WAYS[way])
    assert "securefl/mechanisms/protecting.py" in found, "the trace saw nothing"
    assert "securefl/core/wire/coding.py" in found
    assert len(found) <= most, "\n".join(found)


def test_a_word_of_the_plan_is_read_in_few_files() -> None:
    """From TOML to the checks of the least cohort."""
    found = files_touched.named(files_touched.WORD)
    assert "securefl/algorithm/weighing.py" in found, "the check of an order was not found"
    assert "securefl/study/privacy.py" in found
    assert len(found) <= 9, "\n".join(found)


def test_an_encrypted_sum_lives_in_one_folder() -> None:
    """No module outside knows its machines, its messages or its arithmetic."""
    root = Path(__file__).parents[2]
    home = root / "securefl" / "sums" / "encrypted"
    inside = {path.stem for path in home.glob("*.py")} - {"__init__"}
    outside = [
        p for room in ("securefl", "protocols") for p in (root / room).rglob("*.py") if home not in p.parents
    ]
    assert len(inside) >= 7
    for path in outside:
        said = path.read_text(encoding="utf-8")
        assert not any(f"sums.encrypted.{name}" in said for name in inside), path
