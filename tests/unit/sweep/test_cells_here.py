"""Cells that run in the caller's process, since only it has the caller's objects."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from securefl.sweep import run, session


def test_a_plain_error_fails_its_cell_alone_as_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KeyError of the caller's own data ended the sweep, and the cells behind it never ran."""

    def broken(study: Any, *_: Any, **__: Any) -> None:
        if study == "wrong":
            raise KeyError("age")

    monkeypatch.setattr(run, "run_cell", broken)
    monkeypatch.setattr(session, "share_key", lambda *_: None)
    cells = [SimpleNamespace(name=name, study=name) for name in ("wrong", "right")]
    ended: list[tuple[str, str | None]] = []
    watch: Any = SimpleNamespace(
        begun=lambda *_: None,
        round=lambda *_: None,
        ended=lambda cell, _, error: ended.append((cell.name, error)),
    )
    of: Any = SimpleNamespace(cells=cells, home=lambda out, cell: out / cell.name)
    stop: Any = None
    session._run_here(of, tmp_path, watch=watch, stop=stop)
    (wrong, why), right = ended
    assert (wrong, right) == ("wrong", ("right", None))
    assert "KeyError: 'age' (the traceback is in" in str(why)
