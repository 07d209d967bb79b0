"""The page tutorials/three-machines.md: a folder for each machine, a process and a socket for each party."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.machines import Machines
from support.pages import ROOT, blocks

PAGE = (ROOT / "docs" / "tutorials/three-machines.md").read_text(encoding="utf-8")


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    own = Machines(tmp_path)
    yield own
    own.stop()


def test_each_command_prints_what_the_page_shows(machines: Machines) -> None:
    assert [block for block in blocks(PAGE) if not block.title] == []
    assert machines.run(PAGE) == []
    assert (machines.root / "hub" / "run" / "report.html").is_file()
