"""Three machines, and one that lost its disk: a folder for each machine, a process for each party.

Between the folders are `scp` and `socat`. A block `console` with `title="on NAME"` is run in the folder of
the machine NAME, which the page calls /srv/ward.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from e2e.pages import ROOT, blocks, commands, differs, shell

from securefl.commands.main import cli

HOME = "/srv/ward"
"""The folder of each machine, as the page names it."""
RELAYED = re.compile(r"UNIX-LISTEN:(\S+),fork,mode=600 EXEC:ssh relay@(\w+)")
RELAY_KEY = re.compile(r'restrict,command="socat -t 3600 - UNIX:(\S+)"')
"""The one command that the hub's key runs at a hospital."""
_RELAY = {"relay": str(os.getuid())}
"""The relay's user, which is the test's own."""


class Machines:
    """The machines of a page. A party that serves is a process. `socat` leads a machine to its socket."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._serving: dict[Path, subprocess.Popen[str]] = {}
        self._forwarded: list[socket.socket] = []

    def run(self, page: str) -> list[str]:
        """Run every block of the page. Returns what differs, with its line."""
        found = []
        for name in re.findall(r'title="on (\w+)"', page):
            (self.root / name).mkdir(exist_ok=True)
        for block in blocks(page):
            machine = self.root / block.title.removeprefix("on ")
            if block.language == "console":
                with contextlib.chdir(machine):
                    for command, output in commands(block.body):
                        if said := differs(self._printed(command).replace(str(machine), HOME), output):
                            found.append(f"line {block.line}: $ {command}\n{said}")
            elif block.title:
                (self.root / block.title).write_text(block.body, encoding="utf-8")
        return found

    def stop(self) -> None:
        """End the parties as Ctrl-C does, and the forwarding."""
        for listener in self._forwarded:
            listener.shutdown(socket.SHUT_RDWR)
        for machine in list(self._serving):
            self._end(machine)

    def _printed(self, command: str) -> str:
        words = shlex.split(command)
        if words[0] == "scp":
            shutil.copy(self._path(words[1]), self._path(words[2]))
            return ""
        if words[0] == "socat":
            here, host = RELAYED.fullmatch(" ".join(words[3:-1])).groups()  # type: ignore[union-attr]
            self._forward(self._path(here), self._path(f"{host}:{RELAY_KEY.search(DEPLOYMENT)[1]}"))  # type: ignore[index]
            return ""
        if words[0] == "pkill":
            self._end(Path.cwd())
            return ""
        if words[:3] == ["securefl", "party", "serve"]:
            return self._serve(words[1:])
        if words[0] == "securefl" and words[-2] == ">":
            done = CliRunner().invoke(cli, words[1:-2], catch_exceptions=False)
            self._path(words[-1]).write_text(done.stdout, encoding="utf-8")
            return done.stderr
        if words[0] == "python":  # here, since a start takes seconds
            runpy.run_path(words[1], run_name="__main__")
            return ""
        return shell(command)

    def _path(self, operand: str) -> Path:
        """A path as scp names it: on this machine, or HOST:PATH."""
        host, colon, path = operand.rpartition(":")
        home = self.root / host if colon else Path.cwd()
        return home / (path.removeprefix(HOME).lstrip("/") if path.startswith(HOME) else path)

    def _serve(self, words: list[str]) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "securefl", *(_RELAY.get(word, word) for word in words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if " serves on " in line:
                self._serving[Path.cwd()] = process
                return printed
        process.communicate()  # it was refused
        return printed

    def _end(self, machine: Path) -> None:
        """End the machine's party, and wait until it has."""
        process = self._serving.pop(machine)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    def _forward(self, here: Path, there: Path) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(here))
        here.chmod(0o600)
        listener.listen()
        self._forwarded.append(listener)
        threading.Thread(target=_accept, args=(listener, there), daemon=True).start()


def _accept(listener: socket.socket, there: Path) -> None:
    with listener, contextlib.suppress(OSError):  # shut down
        while True:
            near, _ = listener.accept()
            threading.Thread(target=_carry, args=(near, there), daemon=True).start()


def _carry(near: socket.socket, there: Path) -> None:
    with contextlib.suppress(OSError), near, socket.socket(socket.AF_UNIX) as far:  # nobody serves there
        far.connect(str(there))
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


# The tests --------------------------------------------------------------------------------

pytestmark = pytest.mark.docs

DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The lines of a section of the page, on the lines where they stand there."""
    before, _, after = DEPLOYMENT.partition(f"\n## {title}\n")
    return "\n" * (before.count("\n") + 2) + after.partition("\n## ")[0] + "\n"


PAGE, LOST = section("Three machines"), section("A lost disk")


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    own = Machines(tmp_path)
    yield own
    own.stop()


def test_no_block_is_left_out() -> None:
    run = [*blocks(PAGE), *blocks(LOST)]
    assert [block for block in run if not block.title] == []
    assert [block for block in blocks(DEPLOYMENT) if block.language in ("console", "py")] == [
        block for block in run if block.language in ("console", "py")
    ]


def test_each_command_prints_what_the_page_shows(machines: Machines) -> None:
    assert machines.run(PAGE) == []
    assert (machines.root / "hub" / "run" / "report.html").is_file()


@pytest.mark.slow
def test_a_lost_disk_costs_what_the_page_says(machines: Machines) -> None:
    assert machines.run(PAGE) == []
    assert machines.run(LOST) == []
