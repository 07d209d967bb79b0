"""tutorials/flower-app.md: the app learns with its five lines what it learns without them.

`test_pages.py` runs the page's commands. Here its app runs, with all messages delivered in this process.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from e2e.pages import ROOT, blocks
from flwr.app import Context, Message, RecordDict
from flwr.common.config import flatten_dict
from support.flower_apps import PlainGrid

pytestmark = pytest.mark.docs

FILES = {
    block.title: block.body
    for block in blocks((ROOT / "docs" / "tutorials/flower-app.md").read_text("utf-8"))
    if block.title
}
CLIENTS = 10


def written(folder: Path, *, secured: bool) -> Path:
    """The app in a folder of its own, as it is before or after the page."""
    for name, body in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(body, encoding="utf-8")
    if secured:
        subprocess.run(["patch", "-s", "-p1", "-i", "five.diff"], cwd=folder, check=True)
        path = folder / "pyproject.toml"
        path.write_text(path.read_text().replace('terms = "noised"', 'terms = "securefl.toml"'))
        path.write_text(path.read_text().replace(', evaluation = "accuracy"', ""))
    return folder


def learnt(
    app: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **config: str
) -> dict[int, dict[str, float]]:
    """The metrics of each round that the server prints."""
    patch.chdir(app)
    patch.syspath_prepend(str(app))
    for name in [own for own in sys.modules if own.split(".")[0] == "digits_app"]:
        patch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    server, client = (importlib.import_module(f"digits_app.{name}") for name in ("server", "client"))
    terms: dict[str, Any] = tomllib.loads((app / "pyproject.toml").read_text())
    run = {**flatten_dict(terms["tool"]["flwr"]["app"]["config"]), **config}

    def node(number: int, message: Message) -> Message:
        place: dict[str, Any] = {"partition-id": number, "num-partitions": CLIENTS}
        return client.app(message, Context(1, number + 10, place, RecordDict(), run))  # type: ignore[no-any-return]

    grid = PlainGrid({10 + k: partial(node, k) for k in range(CLIENTS)})
    capsys.readouterr()
    server.app(grid, Context(1, 1, {}, RecordDict(), run))
    found: dict[int, dict[str, float]] = ast.literal_eval(capsys.readouterr().out.splitlines()[-1])
    return found


def test_five_lines_leave_what_the_app_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = learnt(written(tmp_path / "plain", secured=False), monkeypatch, capsys)
    secured = written(tmp_path / "secured", secured=True)
    hidden = learnt(secured, monkeypatch, capsys, **{"securefl.parties": str(tmp_path / "parties")})
    assert sorted(plain) == sorted(hidden) == [1, 2, 3]
    for number in plain:
        assert hidden[number]["accuracy"] == pytest.approx(plain[number]["accuracy"], abs=2e-3)
    assert hidden[3]["accuracy"] > 0.85


ALONE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--map-root-user")


@pytest.mark.slow
@pytest.mark.skipif(
    subprocess.run(["unshare", "--net", "--map-root-user", "true"], check=False).returncode != 0,
    reason="Ray needs a network of its own",
)
def test_the_line_of_section_5_learns_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorials/flower-app.md").read_text("utf-8")
    (line,) = re.findall(r"^`(\S+ flwr run .*)`$", page, re.MULTILINE)
    (told,) = re.findall(r"an accuracy of (\S+) after three rounds", page)
    app = written(tmp_path / "secured", secured=True)
    done = subprocess.run(
        [*ALONE, "sh", "-c", f"ip link set lo up; {line}"],
        cwd=app,
        env={
            **os.environ,
            "FLWR_HOME": str(tmp_path / "flwr"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    (last,) = re.findall(r"^\{1: .*$", done.stdout + done.stderr, re.MULTILINE)
    assert ast.literal_eval(last)[3]["accuracy"] == pytest.approx(float(told), abs=0.01), done.stderr
