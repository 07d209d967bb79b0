"""Every notebook runs from a clean kernel without an error or a warning on its standard error."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter's own
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "commit it with outputs"
    NotebookClient(notebook, timeout=180, kernel_name="python3").execute()
    loud = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.get("name") == "stderr"
    ]
    assert not loud
