"""Tiny runs without what takes most of their time: pictures, observed models, and the start of workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import pytest

from securefl.accounting import composition
from securefl.report.pages import Picture
from securefl.storage.processes import Name, Supervisor
from securefl.study import observed, run_report
from securefl.sweep import run as cells
from securefl.sweep import tradeoff_plots


class _Copying(Supervisor[Name]):
    def __init__(self, method: Literal["fork", "spawn"]) -> None:
        super().__init__("fork")


@contextmanager
def undrawn() -> Iterator[None]:
    """Reports have their files, titles and captions, and a blank figure of half an inch for each picture.

    Drawing takes three quarters of the time of a tiny run.
    """
    from matplotlib.figure import Figure

    made = run_report.figures

    def figures(*args: Any) -> list[Picture]:
        return [replace(own, draw=lambda: Figure(figsize=(0.5, 0.5))) for own in made(*args)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "figures", figures)
        yield


@pytest.fixture(scope="module", autouse=True)
def blank_pictures() -> Iterator[None]:
    """For the conftest of a folder. A module that looks at pictures has a fixture of this name of its own."""
    with undrawn():
        yield


@contextmanager
def unplotted() -> Iterator[None]:
    """A sweep's plots have their names and captions, and are blank."""
    from matplotlib.figure import Figure

    made = tradeoff_plots.pictures

    def pictures(*args: Any, **more: Any) -> list[Picture]:
        return [replace(own, draw=lambda: Figure(figsize=(0.5, 0.5))) for own in made(*args, **more)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tradeoff_plots, "pictures", pictures)
        yield


@pytest.fixture(scope="module")
def blank_plots() -> Iterator[None]:
    """For modules that look at no plot."""
    with unplotted():
        yield


@pytest.fixture(scope="module", autouse=True)
def copied_workers() -> Iterator[None]:
    """Workers of a sweep are copies of this process. A new one imports for four seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "Supervisor", _Copying)
        yield


@pytest.fixture(scope="module", autouse=True)
def brief_observer() -> Iterator[None]:
    """The observer's own models train for one pass, in place of five or more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observed, "MOST_STEPS", 1)
        yield


@pytest.fixture(scope="module", autouse=True)
def coarse_figures() -> Iterator[None]:
    """Epsilon is told at the discretisation of running studies: 0.02 % more, in a fifth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composition, "FINE", composition.COARSE)
        yield
