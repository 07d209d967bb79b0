"""Processes of a federation, their logs, and how all of them end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent
PATIENCE = 900.0
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass
class Federation:
    """Processes, their logs and the folder that all of it is in."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        # Flower finds the programs that it starts by the path.
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        own = {"FLWR_HOME": str(self.folder / "flwr"), "PYTHONUNBUFFERED": "1", "PATH": path}
        return {**os.environ, **OFFLINE, **own}

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def start(self, name: str, *command: str | Path) -> None:
        """Start a process in a group of its own; its output goes to its log."""
        self.log(name).parent.mkdir(exist_ok=True)
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                list(map(str, command)),
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def again(self, name: str) -> None:
        """Start a process that ended, by its command."""
        self.start(name, *self.processes[name].args)

    def run(self, *command: str | Path) -> str:
        """Run a command to its end, and return what it printed."""
        done = subprocess.run(list(map(str, command)), env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until a process is ready. Exits with its log if it ends before, or never is."""
        end = time.monotonic() + PATIENCE
        while not ready():
            code = self.processes[name].poll()
            if code is not None or time.monotonic() > end:
                how = "is not ready" if code is None else f"ended with exit code {code}"
                sys.exit(f"{name} {how}:\n{self.said(name)[-4000:]}")
            time.sleep(0.1)

    def said(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")

    def kill(self, name: str) -> None:
        """Kill a process and all that it started, without a word."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, signal.SIGKILL)

    def end(self) -> None:
        """End all processes: first by asking, so that they end what they started, then by force."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + 10
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        for name, process in self.processes.items():
            self.kill(name)
            process.wait()


def new_folder(out: Path) -> Path:
    """Make the folder of a federation. Exits if it is there and has files: two runs would mix in it."""
    folder = out.resolve()
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"Expected a new folder, got {folder}, which has files. Remove it, or name another: --out.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def federation(folder: Path) -> Iterator[Federation]:
    """A federation whose processes are ended on the way out, be it by SIGTERM or Ctrl-C."""
    own = Federation(folder)
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield own
    finally:
        # A second Ctrl-C would leave behind what the first has not ended yet.
        for number in old:
            signal.signal(number, signal.SIG_IGN)
        own.end()
        for number, handler in old.items():
            signal.signal(number, handler)
