"""The example of Flower's own FedAvg on masked sums: in this process, and, slowly, over real processes."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from support.flower_apps import PlainGrid

APP = Path(__file__).parents[2] / "examples" / "flower_secure_grid"
SOURCES = ("grid_app/client.py", "grid_app/server.py", "pyproject.toml")
ADDED = 5
"""The lines that make a Flower app secure: an import and a wrap on each side, and one of its run config."""
DEPENDENCY = 'dependencies = ["securefl[flower]"]'
"""The line that is changed: it has `flwr[simulation]` in a plain app."""


def lines_of_securefl(text: str) -> list[str]:
    """The lines of a file of the app that are there for this package."""
    word = re.compile(r"^\s*from securefl|^(\s*\w+ = )secure|^securefl = ")
    return [line for line in text.splitlines() if word.match(line)]


def plain_app(folder: Path) -> Path:
    """The app without these lines: what its author had before."""
    package = folder / "plain" / "grid_app"
    package.mkdir(parents=True)
    for path in (APP / "grid_app").glob("*.py"):
        gone = lines_of_securefl(path.read_text())
        kept = [line for line in path.read_text().splitlines() if line not in gone]
        (package / path.name).write_text("\n".join(kept) + "\n")
    return package.parent


def modules(app: Path, patch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The app's modules, from this folder and not from that of another test."""
    patch.syspath_prepend(str(app))
    for name in [own for own in sys.modules if own.split(".")[0] == "grid_app"]:
        patch.delitem(sys.modules, name)
    return {name: importlib.import_module(f"grid_app.{name}") for name in ("client", "server", "task")}


def here(app: Path, folder: Path, rounds: int, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the server learns of the app, with all messages delivered in this process."""
    own = modules(app, patch)
    clients = own["task"].CLIENTS
    folder.mkdir(mode=0o700, exist_ok=True)
    config = {"out": str(folder / "result.json"), "rounds": rounds, "securefl.parties": str(folder / "all")}
    if app == APP:
        config["securefl.terms"] = "securefl.toml"

    def node(number: int, message: Message) -> Message:
        place = {"partition-id": number, "num-partitions": clients}
        return own["client"].app(message, Context(1, number + 10, place, RecordDict(), config))  # type: ignore[no-any-return]

    grid = PlainGrid({10 + k: partial(node, k) for k in range(clients)})
    own["server"].app(grid, Context(1, 1, {}, RecordDict(), config))
    said: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return said


def test_five_lines_make_the_app_secure_and_it_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    added = [line for name in SOURCES for line in lines_of_securefl((APP / name).read_text())]
    assert added == [
        "from securefl.flower import secure",
        "app = secure(app)",
        "from securefl.flower import secure_strategy",
        "    strategy = secure_strategy(strategy, context)",
        'securefl = { terms = "securefl.toml", server = "", parties = "", deadline = 60.0, patience = 300 }',
    ]
    assert DEPENDENCY in (APP / "pyproject.toml").read_text()
    assert len(added) == ADDED
    plain = here(plain_app(tmp_path), tmp_path / "plain_out", 2, monkeypatch)
    with caplog.at_level("INFO"):
        secured = here(APP, tmp_path / "out", 2, monkeypatch)
    assert "round 2: 5 of 5 answered" in " ".join(caplog.messages)
    for number in ("1", "2"):
        # The loss before a round's training is that of the model after the round before.
        assert secured["train"][number] == pytest.approx(plain["train"][number], abs=1e-6)
        # In an evaluation all clients weigh the same by these terms: they hold 89 or 90 records for it.
        assert secured["evaluate"][number] == pytest.approx(plain["evaluate"][number], abs=5e-4)
    assert secured["evaluate"]["2"]["accuracy"] > 0.85


def test_the_page_shows_the_lines_that_the_example_has() -> None:
    page = (APP.parents[1] / "docs" / "flower-strategies.md").read_text()
    shown = [line[1:].strip() for line in page.splitlines() if line.startswith("+")]
    for name in ("grid_app/client.py", "grid_app/server.py"):
        for line in lines_of_securefl((APP / name).read_text()):
            assert line.strip() in shown
    assert len(shown) == ADDED
    assert not [
        line for line in page.splitlines() if line.startswith("-") and not line.startswith(("- ", "--"))
    ]


def namespaces() -> bool:
    return subprocess.run(["unshare", "--net", "--map-root-user", "true"], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("how", ["", "--installed", "--simulation"], ids=["stock", "installed", "simulated"])
def test_real_processes_end_in_the_same_model(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "--simulation" and not namespaces():
        pytest.skip("no network namespaces here, and Ray listens on all interfaces without one")
    out = tmp_path / "f"
    command = [sys.executable, str(APP / "federation.py"), "--out", str(out), "--rounds", "2", *how.split()]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((out / "result.json").read_text()) == here(APP, tmp_path / "h", 2, monkeypatch)
