"""Commands in a process of their own that wait at a chosen point, for signals and for second processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.started import Started

SCRIPT = Path(__file__).parents[1] / "e2e" / "stopped_run.py"


class Waiting:
    """A command in a process of its own, which waits at a point."""

    def __init__(self, process: Started, gate: Path) -> None:
        self.process, self._gate = process, gate
        self.until = process.until

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def go_on(self) -> None:
        self._gate.touch()

    def end(self) -> tuple[int, str, list[str]]:
        """Exit code, stdout, and the lines on stderr."""
        code = self.process.wait(60)
        assert "Traceback" not in self.process.stderr
        return code, self.process.stdout, self.process.stderr.splitlines()


@contextmanager
def waiting(toml: str, folder: Path, point: str, *options: str) -> Iterator[Waiting]:
    """`securefl run` of a study, waiting at a point."""
    file, gate = folder / "study.toml", folder / "gate"
    file.write_text(toml)
    process = Started(SCRIPT, point, gate, "run", file, "--out", folder / "out", *options)
    try:
        begun = Waiting(process, gate)
        begun.until("At hand.")
        yield begun
    finally:
        process.kill()
