"""Runs a transcript of shell commands from a page, and says what each of them prints.

A block of a page begins with "```console". A line that begins with "$ " is a command; the lines below it are
its output. A line "(in another terminal, after round 2: COMMAND)" stands in the output where the person runs
another command meanwhile. Of the shell, a transcript uses `for`, `>`, `>>`, `&` and `|`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

_MEANWHILE = re.compile(r"\(in another terminal, after round (\d+): (.*)\)")
_LOOP = re.compile(r"for (\w+) in ([^;]*); do (.*?);? done")


@dataclass
class Step:
    """A command of a transcript and its output. meanwhile: the command that is run after a round."""

    command: str
    output: list[str] = field(default_factory=list)
    meanwhile: dict[int, str] = field(default_factory=dict)


class Machine(Protocol):
    """Where the commands of a transcript run."""

    folder: Path

    def securefl(self, words: list[str], meanwhile: dict[int, list[str]]) -> tuple[str, str, int]:
        """Run a command of ours. Returns its stdout, both of its outputs as they came, and its exit code."""
        ...

    def serve(self, name: str) -> None: ...

    def kill(self, names: list[str]) -> None: ...


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


def played(step: Step, machine: Machine, before: list[int]) -> list[str]:
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


def _run(command: str, step: Step, machine: Machine) -> tuple[str, int]:
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
    text = re.sub(r"^(fedavg +)0\.\d{3}( +)0\.\d{3}", r"\1(accuracy)\2(best)", text, flags=re.MULTILINE)
    text = re.sub(r"[\d.]+ MB +[\d.]+ s", "(bytes) (seconds)", text)
    return re.sub(r"^\(\d+ s\)$", "(seconds)", text, flags=re.MULTILINE)
