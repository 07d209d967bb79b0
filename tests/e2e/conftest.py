"""What several end-to-end tests need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short name: a system takes no socket deep in a folder of the length of `tmp_path`."""
    with TemporaryDirectory(prefix="e2e-") as folder:
        yield Path(folder)
