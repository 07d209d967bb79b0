"""`--trust-code` of a folder lets code through that was never in it, if the way is another user's link.

`owned.read` opens the file, and then asks where the path leads *now*. Mallory's link in a sticky folder
leads to her code while it is opened, and to the trusted folder a moment later. threat-model: "`--trust-code
PATH` lets what is at or below PATH pass"; storage/owned.py, `read`: "What is checked is what was opened."
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from securefl.core.errors import ConfigError
from securefl.storage import owned

MALLORY = 54340


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play another user")
def test_what_was_opened_is_what_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted, theirs, shared = tmp_path / "trusted", tmp_path / "theirs", tmp_path / "shared"
    for folder in (trusted, theirs, shared):
        folder.mkdir()
        (folder / "net.py").write_text(f"# {folder.name}")
    shared.chmod(0o1777)
    link = shared / "study"
    link.symlink_to(theirs)
    os.lchown(link, MALLORY, MALLORY)
    for one in (theirs, theirs / "net.py"):
        os.chown(one, MALLORY, MALLORY)
    reason: Callable[..., str] = owned.reason

    def meanwhile(*given: object) -> str:
        link.unlink()
        link.symlink_to(trusted)
        os.lchown(link, MALLORY, MALLORY)
        return reason(*given)

    monkeypatch.setattr(owned, "reason", meanwhile)
    try:
        found = owned.read(link / "net.py", [trusted])
    except ConfigError:
        return
    assert found == b"# trusted"
