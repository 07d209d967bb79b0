"""The transcript parties_by_hand.md: a study through kills, restarts, a fifth party, removal, rotation.

By default its parties are in this process: a party serves as in its own, and is killed by being dropped. The
slow test has a process for each command.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.coordinated import Federation
from support.party_folders import build_once, made

from securefl.commands.main import cli
from securefl.core.errors import SecureFLError
from securefl.deployment import coordinator, sockets

# Running a transcript -----------------------------------------------------------------------------

# Runs a transcript of shell commands from a page, and says what each of them prints.
#
# A block of a page begins with "```console". A line that begins with "$ " is a command; the lines below it
# are its output. A line "(in another terminal, after round 2: COMMAND)" stands in the output where the person
# runs another command meanwhile. Of the shell, a transcript uses `for`, `>`, `>>`, `&` and `|`.


_MEANWHILE = re.compile(r"\(in another terminal, after round (\d+): (.*)\)")
_LOOP = re.compile(r"for (\w+) in ([^;]*); do (.*?);? done")


@dataclass
class Step:
    """A command of a transcript and its output. meanwhile: the command that is run after a round."""

    command: str
    output: list[str] = field(default_factory=list)
    meanwhile: dict[int, str] = field(default_factory=dict)


def steps(page: str) -> list[Step]:
    """The steps of all blocks of a page."""
    found: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Step(line.removeprefix("$ ")))
            elif (mark := _MEANWHILE.fullmatch(line)) is not None:
                found[-1].meanwhile[int(mark[1])] = mark[2]
                found[-1].output.append(line)
            else:
                found[-1].output.append(line)
    return found


def played(step: Step, machine: Here | Processes, before: list[int]) -> list[str]:
    """The lines that a step prints, masked. before: the exit code of the step before; it is replaced."""
    shown: list[str] = []
    for command in _expanded(step.command):
        if command == "echo $?":
            return [str(before[0])]
        text, before[0] = _run(command, step, machine)
        shown += text.splitlines()
    shown = masked("\n".join(shown), machine.folder).splitlines()
    # Where the person ran another command, the page says so behind the line of the round.
    for number, said in step.meanwhile.items():
        at = max(k for k, line in enumerate(shown) if line.startswith(f"round {number}: "))
        shown.insert(at + 1, f"(in another terminal, after round {number}: {said})")
    return shown


def _expanded(command: str) -> Iterator[str]:
    loop = _LOOP.fullmatch(command)
    if loop is None:
        yield command
        return
    for word in loop[2].split():
        yield loop[3].replace(f"${loop[1]}", word)


def _run(command: str, step: Step, machine: Here | Processes) -> tuple[str, int]:
    if command.startswith("kill "):
        machine.kill(_killed(command))
        return "", 0
    if command.endswith(" &"):
        *_, name = shlex.split(command.removesuffix(" &"))
        machine.serve(name)
        return "", 0
    if not command.startswith("securefl "):
        done = subprocess.run(
            ["bash", "-c", command], cwd=machine.folder, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr, done.returncode
    command, _, pattern = command.partition(" | grep ")
    command, joined, _ = command.partition(" 2>&1")
    command, arrow, file = command.partition(" >")
    meanwhile = {number: _killed(said) for number, said in step.meanwhile.items()}
    out, both, code = machine.securefl(shlex.split(command)[1:], meanwhile)
    if arrow:
        path = machine.folder / file.lstrip("> ").strip()
        with path.open("a" if file.startswith(">") else "w") as target:
            target.write(out)
        return "", code
    if pattern:
        lines = (both if joined else out).splitlines()
        return "\n".join(line for line in lines if pattern in line), code
    return both, code


def _killed(command: str) -> list[str]:
    """The parties whose processes `kill %?NAME ...` ends."""
    return [word.removeprefix("%?") for word in command.split() if word.startswith("%?")]


def masked(text: str, folder: Path) -> str:
    """The text without what no two runs share: keys, draws, digests, times, and this machine's folder."""
    text = text.replace(str(folder), "/srv")
    text = re.sub(r"\b([0-9a-f]{4} ){7}[0-9a-f]{4}\b", "(fingerprint)", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "(digest)", text)
    text = re.sub(r"\b[0-9a-f]{16}\b", "(session)", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:+.]+", "(time)", text)
    text = re.sub(r"(?<=acc )0\.\d{3}|(?<=accuracy of )0\.\d{3}", "(accuracy)", text)
    text = re.sub(r"^(fedavg +)0\.\d{3}( +)0\.\d+", r"\1(accuracy)\2(MB)", text, flags=re.MULTILINE)
    text = re.sub(r"[\d.]+ MB +[\d.]+ s", "(bytes) (seconds)", text)
    return re.sub(r"^\(\d+ s\)$", "(seconds)", text, flags=re.MULTILINE)


# The tests ----------------------------------------------------------------------------------------


pytestmark = pytest.mark.docs

PAGE = Path(__file__).with_name("parties_by_hand.md").read_text(encoding="utf-8")
STUDY = re.search(r"^```toml\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def write_files(folder: Path, *, epochs: int = 1) -> None:
    """The study, and the records of five hospitals."""
    assert STUDY is not None
    (folder / "study4.toml").write_text(STUDY[1].replace("epochs = 1", f"epochs = {epochs}"))
    records = made(STUDY[1]).world.records
    for k, (x, y) in enumerate([*records, records[0]]):
        np.savez(folder / f"own-{k}.npz", x=x[k:], y=y[k:])


class Here:
    """Commands and parties in this process. A party that is killed loses what is not on its disk."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch
        self.own = Federation(folder)

    def serve(self, name: str) -> None:
        self.own.start(name)

    def kill(self, names: list[str]) -> None:
        self.own.stop(*names)

    def securefl(self, words: list[str], meanwhile: dict[int, list[str]]) -> tuple[str, str, int]:
        run = coordinator.run_deployed

        def watched(*args: Any, **options: Any) -> Any:
            def then(arm: Any, seed: int, record: Mapping[str, Any]) -> None:
                if record["round"] in meanwhile:
                    self.kill(meanwhile[record["round"]])

            return run(*args, fresh=then, **options)

        with self._patch.context() as patch:
            patch.setattr(coordinator, "run_deployed", watched)
            patch.setattr(sockets, "SocketExchange", lambda paths, **_: self.own.exchange)
            done = CliRunner().invoke(cli, words)
        if isinstance(done.exception, SecureFLError):  # as `main` prints it
            return done.stdout, done.output + f"securefl: {done.exception}\n", 1
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.stdout, done.output, done.exit_code


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    build_once(monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    machine = Here(tmp_path, monkeypatch)
    yield machine
    machine.own.stop()


def test_each_command_prints_what_the_page_shows(here: Here) -> None:
    code = [0]
    for step in steps(PAGE):
        assert played(step, here, code) == step.output, step.command


# In processes of their own ---------------------------------------------------------------------------------


class Processes:
    """Each command in a process of its own, as a person runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._serving: dict[str, subprocess.Popen[str]] = {}

    def _start(self, words: list[str], stderr: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "securefl", *words],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )

    def serve(self, name: str) -> None:
        self._serving[name] = process = self._start(["party", "serve", name], subprocess.STDOUT)
        assert process.stdout is not None
        # After a kill it first says that it takes its folder over.
        assert any(f"{name} serves on" in line for line in process.stdout)

    def kill(self, names: list[str]) -> None:
        for name in names or list(self._serving):
            process = self._serving.pop(name)
            process.send_signal(signal.SIGKILL)
            process.communicate()

    def securefl(self, words: list[str], meanwhile: dict[int, list[str]]) -> tuple[str, str, int]:
        separate = words[:2] in (["party", "enrol"], ["party", "rotate"])
        process = self._start(words, subprocess.PIPE if separate else subprocess.STDOUT)
        if separate:
            out, error = process.communicate()
            return out, out + error, process.returncode
        lines = []
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                for number, names in meanwhile.items():
                    if line.startswith(f"round {number}: "):
                        self.kill(names)
        return "".join(lines), "".join(lines), process.returncode


def loose(step: Step, lines: list[str]) -> list[str]:
    """Lines without numbers and repetitions: nobody knows in which round a kill arrives."""
    kept = [re.sub(r"\d+(\.\d+)?", "N", line) for line in lines]
    if step.meanwhile:
        kept = [line for line in kept if not line.startswith("round N: ")]
    # A line on every tenth round and the last, warnings of rounds in whose middle a party was killed, and
    # notices that a killed process left the lock of its folder.
    kept = [line for line in kept if not line.startswith(("fedavg  ", "Warning", "Taking over "))]
    return [line for at, line in enumerate(kept) if at == 0 or kept[at - 1] != line]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_page_in_processes(tmp_path: Path) -> None:
    write_files(tmp_path, epochs=300)  # a round takes longer than a kill takes to arrive
    machine, code = Processes(tmp_path), [0]
    try:
        for step in steps(PAGE):
            shown = played(step, machine, code)
            assert loose(step, shown) == loose(step, step.output), step.command
    finally:
        machine.kill([])
