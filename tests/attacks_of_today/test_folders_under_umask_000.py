"""Folders that others can write under umask 000.

threat-model, "Code that a study names": "Files and folders that securefl makes are writable by their
owner alone, whatever the umask." `Path.mkdir(parents=True, mode=...)` gives its mode to the last folder
alone: the folder of a local deployment's parties (with all their keys' folders in it), the way to a
socket and that of fetched data sets are 0777, so another user renames what is in them.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.hidden_plans import hidden

from securefl.algorithm.plan import Plan
from securefl.data import fetching
from securefl.data.digests import PINNED
from securefl.deployment import LocalDeployment, Updates
from securefl.deployment.server import listening


@contextmanager
def umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def loose(root: Path) -> list[str]:
    found = [path for path in root.rglob("*") if stat.S_IMODE(path.lstat().st_mode) & 0o022]
    return [str(path.relative_to(root)) for path in found if not path.is_symlink()]


def test_the_folders_of_a_local_deployment(tmp_path: Path) -> None:
    plan = hidden(Plan(delta=1e-5, max_rounds=1, non_private=("update",)), 3)
    with umask(), LocalDeployment(plan, Updates(), clients=3, folder=tmp_path / "a" / "parties"):
        found = loose(tmp_path)
    assert [one for one in found if not one.endswith(".sock")] == []


def test_the_way_to_a_socket(tmp_path: Path) -> None:
    with umask(), listening(tmp_path / "a" / "b" / "party.sock"):
        found = loose(tmp_path)
    assert [one for one in found if not one.endswith(".sock")] == []


def test_fetched_data(tmp_path: Path) -> None:
    name = next(name for name, files in PINNED.items() if files[0].member is not None)
    with umask(), suppress(Exception):
        fetching.fetch(name, folder=tmp_path / "a" / "data", opener=lambda url: io.BytesIO(b"x"))
    assert loose(tmp_path) == []
