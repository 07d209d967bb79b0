"""What several end-to-end tests need."""

from __future__ import annotations

from typing import Any

import pytest
from support.cheap_runs import blank_plots

from securefl.storage.processes import Name, Supervisor
from securefl.study import observed, run_report

__all__ = ["blank_plots"]


@pytest.fixture(autouse=True)
def small_reports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report draws one picture, and its observer trains for one pass: all takes longer than the run.

    Fixtures of a wider scope have all of it, and so have the tests that are slow or of documents.
    """
    if not any(map(request.node.get_closest_marker, ("docs", "slow"))):
        figures = run_report.figures
        monkeypatch.setattr(run_report, "figures", lambda *given: [*figures(*given)][:1])
        monkeypatch.setattr(observed, "MOST_STEPS", 1)


class _Forks(Supervisor[Name]):
    def __init__(self, method: str) -> None:
        assert method == "spawn"
        super().__init__("fork")


@pytest.fixture(scope="session")
def forks() -> type[Supervisor[Any]]:
    """Workers of a sweep that are copies of this process: a start of their own takes seconds."""
    return _Forks


@pytest.fixture
def forked_cells(monkeypatch: pytest.MonkeyPatch, forks: type[Supervisor[Any]]) -> None:
    monkeypatch.setattr("securefl.sweep.run.Supervisor", forks)
