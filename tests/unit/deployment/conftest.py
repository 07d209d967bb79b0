"""Runs here leave out what takes most of their time, but where a module looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.cheap_runs import blank_pictures, brief_observer, coarse_figures

__all__ = ["blank_pictures", "brief_observer", "coarse_figures"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can pass. pytest's own are closed to others."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)
