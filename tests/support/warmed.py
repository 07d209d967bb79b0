"""Runs a study when it is imported: all that one imports on its way is then there for forked processes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from securefl.study.session import run_study
from support.cheap_runs import undrawn
from support.tiny_study import FEDPROF, study

with undrawn(), TemporaryDirectory() as folder:
    run_study(study(FEDPROF, rounds=1), Path(folder), lambda *_: None)
