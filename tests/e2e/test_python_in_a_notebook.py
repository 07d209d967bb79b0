"""`securefl.run` in a cell of a notebook: what is shown there, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from support.tiny_study import FEDAVG, text

CELL = """
import securefl

securefl.run("tiny.toml", out="run")
"""


@pytest.mark.slow  # `test_notebooks` executes notebooks in the fast suite
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter's own
def test_a_cell_shows_progress_and_a_table_and_no_warning(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(text(FEDAVG))
    of = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    resources = {"metadata": {"path": str(tmp_path)}}
    done: Any = NotebookClient(of, timeout=300, kernel_name="python3", resources=resources).execute()
    outputs = done.cells[0].outputs
    assert not [output for output in outputs if output.get("name") == "stderr"]
    shown = "".join(str(output.get("data", {})) + output.get("text", "") for output in outputs)
    assert "round    2" in shown or "2/2" in shown, "progress"
    assert "<b>tiny</b>" in shown, "the table of the run"
