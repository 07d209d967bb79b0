"""Three machines, and one that lost its disk: a folder for each machine, a process for each party."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.machines import Machines
from support.pages import ROOT, blocks

pytestmark = pytest.mark.docs

PAGE = (ROOT / "docs" / "tutorials/three-machines.md").read_text(encoding="utf-8")
LOST = (ROOT / "docs" / "how-to/lost-disk.md").read_text(encoding="utf-8")


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    own = Machines(tmp_path)
    yield own
    own.stop()


@pytest.mark.parametrize("page", [PAGE, LOST], ids=["three-machines", "lost-disk"])
def test_no_block_is_left_out(page: str) -> None:
    assert [block for block in blocks(page) if not block.title] == []


def test_each_command_prints_what_the_page_shows(machines: Machines) -> None:
    assert machines.run(PAGE) == []
    assert (machines.root / "hub" / "run" / "report.html").is_file()


@pytest.mark.slow
def test_a_lost_disk_costs_what_the_page_says(machines: Machines) -> None:
    assert machines.run(PAGE) == []
    assert machines.run(LOST) == []
