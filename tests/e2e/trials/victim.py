"""The command line in a child process that can be killed at any SQL statement, or at any time.

    child = Child("run", "tiny.toml", "--out", "there", fatal=40)     # SIGKILL before its 40th SQL statement
    child.wait(after=0.2)                                             # or after so many seconds

Import this module before `securefl`: it seeds what parties draw, so that two runs end bit for bit alike. As a
script it runs the command line itself, for sweeps, whose workers import it again: SECUREFL_FATAL is then the
statement at which each worker dies.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import signal
import sqlite3
import struct
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

FATAL = "SECUREFL_FATAL"
HUNG = 124
TRACEBACK = 70
_LONGEST = 300.0
_entropy = os.urandom


def _seeded(count: int | None = None) -> bytes:
    """Sessions, and secrets of a party in a round, are the same in every run; names of files are not.

    The former are 32 bytes. Whose they are stands in the caller's `party` and `number`, where it has them:
    parties with one key could mask nothing.
    """
    if count not in (None, 32):
        return _entropy(count)
    caller = sys._getframe(1).f_locals
    return hashlib.sha256(repr((caller.get("party"), caller.get("number"))).encode()).digest()


if "securefl" in sys.modules:
    raise ImportError("Import e2e.trials.victim before securefl: it has bound the system's entropy already.")
os.urandom = secrets.token_bytes = _seeded  # type: ignore[assignment]
secrets.token_hex = lambda nbytes=None: _seeded(nbytes).hex()

from sklearn.datasets import load_digits  # noqa: E402

from securefl.commands.exit_codes import ExitCode  # noqa: E402
from securefl.commands.main import main  # noqa: E402


def prepare() -> None:
    """Import what commands import and read what studies read, once for all forks."""
    for group in ("securefl.commands", "securefl.protocols"):
        for point in entry_points(group=group):
            point.load()
    load_digits()


def die_at(fatal: int, tally: mmap.mmap) -> None:
    """Count the SQL statements of this process in `tally`, and send it SIGKILL before that of this number."""

    def statement(_: str) -> None:
        (count,) = struct.unpack("q", tally[:8])
        tally[:8] = struct.pack("q", count + 1)
        if count + 1 == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect(*arguments: Any, **named: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = real(*arguments, **named)
        db.set_trace_callback(statement)
        return db

    real = sqlite3.connect
    sqlite3.connect = connect  # type: ignore[assignment]


@dataclass(frozen=True)
class Outcome:
    """How a command ended. code: its exit code, TRACEBACK, HUNG, or the signal that ended it, negative."""

    code: int
    out: str
    err: str
    statements: int
    seconds: float

    @property
    def explained(self) -> bool:
        """Whether it was refused with a sentence of ours, and nothing of Python's."""
        lines = self.err.strip().splitlines()
        return self.code == 1 and bool(lines) and lines[-1].startswith("securefl: ") and not self.raw

    @property
    def raw(self) -> bool:
        """Whether a traceback, or an error that names no file, came through."""
        return any(word in self.err for word in ("Traceback", "no file named", "Error:"))

    @property
    def told(self) -> str:
        """The last line of what it said, or the last of its traceback."""
        lines = self.err.strip().splitlines() or ["(nothing)"]
        return f"exit {self.code}: {lines[-1][:300]}"


class Child:
    """A fork of this process, which has paid for the imports, that runs one command."""

    def __init__(self, *words: str | Path, fatal: int = 0) -> None:
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115, `wait` closes
        self._tally = mmap.mmap(-1, 8)
        self._began = time.perf_counter()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(self._out.fileno(), 1)
                os.dup2(self._err.fileno(), 2)
                die_at(fatal, self._tally)
                code = _command([str(word) for word in words])
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:  # nothing of the child may go on as its parent
                code = TRACEBACK
            os._exit(code)

    def wait(self, after: float = _LONGEST) -> Outcome:
        """How it ended; it is killed after so many seconds."""
        status, killed = None, False
        while status is None:
            pid, found = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                status = found
            elif not killed and time.perf_counter() - self._began > after:
                os.kill(self.pid, signal.SIGKILL)
                killed = True
            else:
                time.sleep(0.002)
        code = HUNG if killed and after == _LONGEST else os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - self._began
        (statements,) = struct.unpack("q", self._tally[:8])
        return Outcome(code, _text(self._out), _text(self._err), statements, seconds)


def must(outcome: Outcome) -> None:
    """A command without which there is no trial."""
    if outcome.code:
        raise RuntimeError(f"Undisturbed: {outcome.told}")


def call(*words: str | Path) -> Outcome:
    """Run one command to its end."""
    return Child(*words).wait()


def _text(file: Any) -> str:
    file.seek(0)
    found: str = file.read().decode(errors="replace")
    file.close()
    return found


def _command(words: list[str]) -> int:
    if words[0] in ("run", "report"):
        _without_plots()
    sys.argv = ["securefl", *words]
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
        return (
            0 if code == ExitCode.UNLEARNT else code
        )  # a tiny study may learn nothing: it ended all the same
    except BaseException:  # a trial counts every traceback
        traceback.print_exc()
        return TRACEBACK
    return 0


def _without_plots() -> None:
    """Drawing is most of a tiny study's time, and reads no database."""
    from matplotlib.figure import Figure

    Figure.savefig = lambda *_, **__: None  # type: ignore[method-assign]


if os.environ.get(FATAL) and __name__ == "__mp_main__":  # a worker's, which imports its sweep's script anew
    die_at(int(os.environ[FATAL]), mmap.mmap(-1, 8))

if __name__ == "__main__":
    sys.exit(_command(sys.argv[1:]))
