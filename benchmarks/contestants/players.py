"""The contestants' processes as `benchmarks/peers.py` drives them, and the order in which they play."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).parents[1]
PLAIN = "plain loop"
SHARED = "securefl, a process a core"
Key = TypeVar("Key")


@dataclass(frozen=True)
class Contestant:
    """name: for people. module: in `contestants`. python: its interpreter."""

    name: str
    module: str
    python: str


def contestants() -> tuple[Contestant, ...]:
    def python(variable: str) -> str:
        # Absolute: a contestant starts in another folder. Not resolved: links make a virtual environment.
        return str(Path(os.environ.get(variable, sys.executable)).absolute())

    return (
        Contestant(PLAIN, "plain", sys.executable),
        Contestant("securefl", "ours", sys.executable),
        Contestant(SHARED, "ours_shared", sys.executable),
        Contestant("pfl-research", "pfl", python("PFL_PYTHON")),
        Contestant("Flower on Ray", "flower", python("FLOWER_PYTHON")),
    )


@dataclass(frozen=True)
class Times:
    """Seconds of one round."""

    cpu: float
    wall: float


class Player:
    """A contestant's process: each line to it is answered by one."""

    def __init__(self, contestant: Contestant, log: Path) -> None:
        self.name, self._log = contestant.name, log
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        with log.open("w") as said:
            self._process = subprocess.Popen(
                [contestant.python, "-m", "contestants", contestant.module],
                cwd=HERE,
                env=os.environ | quiet | threads,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        found = self._answer()
        if why := found.get("missing"):
            self.close()
            raise ImportError(why)
        self.versions: dict[str, str] = found["versions"]

    def query(self, **what: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return self._answer()

    def round(self) -> Times:
        return Times(**self.query(round=True))

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return dict(json.loads(line))
        raise RuntimeError(
            f"Expected an answer of {self.name}, but it ended:\n{self._log.read_text()[-2000:]}"
        )


def rotated(players: Sequence[Key], rounds: int) -> Iterator[tuple[int, Key]]:
    """Everybody plays in each round, and everybody begins as often as the others."""
    for number in range(rounds):
        first = number % len(players)
        for player in (*players[first:], *players[:first]):
            yield number, player


def facts(players: Sequence[Player]) -> list[str]:
    """What the figures hang on: the day, the machine and everybody's versions."""
    versions = (f"{player.name}: {', '.join(map(' '.join, player.versions.items()))}" for player in players)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return [f"{date.today().isoformat()}, {machine}", "; ".join(versions)]


def joined(folder: Path) -> list[Player]:
    """The contestants that can play. The others are named."""
    players = []
    for contestant in contestants():
        try:
            players.append(Player(contestant, folder / f"{contestant.module}.log"))
        except (OSError, ImportError) as why:
            print(f"{contestant.name} is left out: {why} ({contestant.python}).", file=sys.stderr)
    return players
