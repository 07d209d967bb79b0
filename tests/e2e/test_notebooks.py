"""Every notebook runs from a clean kernel and is committed as it ran; a foreign loop changes in few lines.

So does the loop of docs/how-to/own-loop.md.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from securefl.accounting.ledger import Ledger
from securefl.algorithm.queries import CohortQuery, Sum
from securefl.core.errors import BudgetExceeded
from securefl.engine.aggregator import SecureAggregator

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NAMES = ("encrypted_matching", "foreign_loop", "privacy_utility", "private_heads")
LONG = ("privacy_utility",)
"""What the fast suite leaves out: its commands, studies and figures have tests of their own."""
SECONDS = 600
"""The longest that one cell may take, on a busy machine too."""
FOREIGN = ("/work", "/root", "/home", "/tmp", "/Users", "Traceback", "Warning")


def notebook(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(of: Any) -> list[Any]:
    return [cell for cell in of.cells if cell.cell_type == "code"]


def texts(of: Any) -> list[str]:
    """Whatever a reader sees below the cells, pictures aside."""
    outputs = [output for cell in code(of) for output in cell.outputs]
    return [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs]


def run(of: Any, folder: Path) -> Any:
    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(of, timeout=SECONDS, kernel_name="python3", resources=resources).execute()


def quiet(of: Any) -> bool:
    return not any(output.get("name") == "stderr" for cell in code(of) for output in cell.outputs)


def changed(before: str, after: str) -> list[str]:
    """Lines of the second text that are not in the first; empty ones and imports do not count."""
    lines = [
        [line for line in text.splitlines() if line.strip() and not line.startswith(("import ", "from "))]
        for text in (before, after)
    ]
    return [line for line in difflib.ndiff(*lines) if line.startswith("+ ")]


def test_all_notebooks_are_known() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter's own
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in NAMES],
)
def test_runs_in_an_empty_folder_and_leaves_it_so(name: str, tmp_path: Path) -> None:
    assert quiet(run(notebook(name), tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_is_committed_as_it_ran(name: str) -> None:
    of = notebook(name)
    nbformat.validate(of)
    assert [cell.execution_count for cell in code(of)] == list(range(1, len(code(of)) + 1))
    assert quiet(of)
    assert sum("image/png" in output.get("data", {}) for cell in code(of) for output in cell.outputs) >= 1
    assert not [text for text in texts(of) if any(word in text for word in FOREIGN)]
    assert not any(output.output_type == "error" for cell in code(of) for output in cell.outputs)


@pytest.mark.parametrize("name", NAMES)
def test_says_first_how_long_it_takes_and_what_it_needs(name: str) -> None:
    first = notebook(name).cells[0].source
    assert re.search(r"^\*.*\bminutes?\b.*\bneeds\b.*\*$", first, flags=re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_is_small(name: str) -> None:
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 200_000


@pytest.mark.parametrize("name", NAMES)
def test_has_claims_of_its_own(name: str) -> None:
    """A notebook without an assertion would pass whatever its figures are."""
    claims = [line for cell in code(notebook(name)) for line in cell.source.splitlines() if "assert " in line]
    assert len(claims) >= 2


def test_a_match_of_ones_own_takes_ten_lines() -> None:
    (cell,) = (
        own for own in code(notebook("encrypted_matching")) if "ten lines" in own.metadata.get("tags", ())
    )
    lines = [line for line in cell.source.splitlines() if line.strip()]
    assert len(lines) <= 10
    assert [line for line in lines if "import" in line] == ["import securefl"]


def test_the_foreign_loop_changes_in_about_thirty_lines() -> None:
    cells = {
        tag: cell.source for cell in code(notebook("foreign_loop")) for tag in cell.metadata.get("tags", ())
    }
    new = changed(cells["before"], cells["after"])
    assert 20 <= len(new) <= 36, "\n".join(new)
    assert "securefl" not in cells["before"]
    assert "protocols" not in cells["before"]


def test_the_own_loop_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In at most sixteen lines, one of them on what clients check. An eleventh ask is refused, as it says."""
    page = (ROOT / "docs" / "how-to" / "own-loop.md").read_text(encoding="utf-8")
    source, *_ = re.findall(r"^```py\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len([line for line in source.splitlines() if line.strip()]) <= 16
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(source, "own-loop.md", "exec"), names)
    assert abs(names["w"] - 2).max() < 0.3
    with Ledger("ledger.sqlite", names["plan"].terms()) as ledger:
        assert 1.99 < ledger.worst("server") <= 2.0
        assert ledger.worst("key-holder") == 0
    with SecureAggregator(
        names["plan"], [names["own"]], names["clients"], ledger="ledger.sqlite"
    ) as aggregator:
        eleventh = CohortQuery(cohort=(0, 1, 2, 3, 4), broadcast=names["w"], sums=(Sum(names["STEP"], 2),))
        with pytest.raises(BudgetExceeded, match=r"All 5 clients refused.*0 rounds like it remain"):
            aggregator.query(eleventh)
    with pytest.raises(BudgetExceeded, match=r"All 5 clients refused.*0 rounds like it remain"):
        exec(compile(source, "own-loop.md", "exec"), {})
