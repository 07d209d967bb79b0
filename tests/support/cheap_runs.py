"""Tiny runs without what takes most of their time: pictures, observed models, and the start of workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from securefl.accounting import composition
from securefl.report.pages import Picture
from securefl.storage.processes import Name, Supervisor
from securefl.study import observed, run_report, session
from securefl.sweep import run as cells
from securefl.sweep import tradeoff_plots


class _Copying(Supervisor[Name]):
    def __init__(self, method: Literal["fork", "spawn"]) -> None:
        super().__init__("fork")


@contextmanager
def _blank(module: Any, function: str) -> Iterator[None]:
    """The pictures that this function makes have their files, titles and captions, and are blank.

    Drawing takes three quarters of the time of a tiny run.
    """
    from matplotlib.figure import Figure

    made = getattr(module, function)

    def pictures(*args: Any, **more: Any) -> list[Picture]:
        return [replace(own, draw=lambda: Figure(figsize=(0.5, 0.5))) for own in made(*args, **more)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, function, pictures)
        yield


undrawn = partial(_blank, run_report, "figures")
unplotted = partial(_blank, tradeoff_plots, "pictures")


@contextmanager
def unreported() -> Iterator[None]:
    """No report is written: it takes longer than all rounds of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_written", lambda *_: (None, Path()))
        yield


@pytest.fixture(scope="module", autouse=True)
def blank_pictures() -> Iterator[None]:
    """For the conftest of a folder. A module that looks at pictures has a fixture of this name of its own."""
    with undrawn():
        yield


@pytest.fixture(scope="module")
def blank_plots() -> Iterator[None]:
    """Of sweeps, for modules that look at no plot."""
    with unplotted():
        yield


def _changed(module: Any, name: str, value: object) -> Any:
    """A fixture for the conftest of a folder: there a name of a module has this value."""

    @pytest.fixture(scope="module", autouse=True)
    def changed() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, value)
            yield

    return changed


copied_workers = _changed(cells, "Supervisor", _Copying)
"""Workers of a sweep are copies of this process. A new one imports for four seconds."""
brief_observer = _changed(observed, "MOST_STEPS", 1)
"""The observer's own models train for one pass, in place of five or more."""
coarse_figures = _changed(composition, "FINE", composition.COARSE)
"""Epsilon is told at the discretisation of running studies: 0.02 % more, in a fifth of the time."""
