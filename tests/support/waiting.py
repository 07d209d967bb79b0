"""Commands in a process of their own that wait at a chosen point, for signals and for second processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "e2e" / "stopped_run.py"


class Waiting:
    """A command in a process of its own, which waits at a point."""

    def __init__(self, process: subprocess.Popen[str], gate: Path) -> None:
        self.process, self._gate = process, gate

    def until(self, line: str) -> None:
        """Wait for a line on stderr."""
        assert self.process.stderr is not None
        found = ""
        for found in self.process.stderr:
            if found.strip() == line:
                return
        raise AssertionError(f"{line!r} was never said; the last line was {found!r}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def go_on(self) -> None:
        self._gate.touch()

    def end(self) -> tuple[int, str, list[str]]:
        """Exit code, stdout, and the lines on stderr that are left."""
        stdout, stderr = self.process.communicate(timeout=60)
        assert "Traceback" not in stderr
        return self.process.returncode, stdout, stderr.splitlines()


@contextmanager
def waiting(toml: str, folder: Path, point: str, *options: str) -> Iterator[Waiting]:
    """`securefl run` of a study, waiting at a point."""
    file, gate = folder / "study.toml", folder / "gate"
    file.write_text(toml)
    command = [sys.executable, SCRIPT, point, gate, "run", file, "--out", folder / "out", *options]
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        begun = Waiting(process, gate)
        begun.until("At hand.")
        yield begun
    finally:
        process.kill()
        process.communicate()
