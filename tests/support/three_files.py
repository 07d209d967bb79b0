"""Run folders as an earlier version began them: ledger, journal and checkpoint in a file each."""

from __future__ import annotations

from pathlib import Path

from securefl.storage.journal import Journal
from securefl.study.arm import made_folder
from securefl.study.config import Study


def begin(of: Study, folder: Path, seed: int = 3) -> None:
    """Begin the first arm of a study under a seed. The journal is the first file: nobody took part yet."""
    Journal(made_folder(folder, of.arms[0], seed) / "acts.sqlite").close()
