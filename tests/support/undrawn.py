"""Reports with blank pictures: drawing them takes three quarters of the time of a tiny run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from securefl.report.pages import Picture
from securefl.study import run_report


@contextmanager
def undrawn() -> Iterator[None]:
    """Reports have their files, titles and captions, and a blank figure of half an inch for each picture."""
    from matplotlib.figure import Figure

    made = run_report.figures

    def figures(*args: Any) -> list[Picture]:
        return [replace(own, draw=lambda width: Figure(figsize=(0.5, 0.5))) for own in made(*args)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "figures", figures)
        yield


@pytest.fixture(scope="module", autouse=True)
def blank_pictures() -> Iterator[None]:
    """For the conftest of a folder. A module that looks at pictures has a fixture of this name of its own."""
    with undrawn():
        yield
