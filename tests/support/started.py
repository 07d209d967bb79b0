"""Commands of Python in processes of their own, which start at once: `forker.py` has imported the package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_ends = ExitStack()


@cache
def _forker() -> subprocess.Popen[str]:
    """The process that forks, one for all tests of this one."""
    forker = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("forker.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    _ends.callback(forker.communicate)
    return forker


@cache
def _outputs() -> Path:
    """The folder of what the processes say."""
    return Path(_ends.enter_context(TemporaryDirectory(prefix="started-")))


_numbers = count()
end = _ends.close
"""End the process that forks, and remove what the others said: after all tests."""


def _answer(request: object) -> Any:
    forker = _forker()
    assert forker.stdin is not None
    assert forker.stdout is not None
    forker.stdin.write(json.dumps(request) + "\n")
    forker.stdin.flush()
    return json.loads(forker.stdout.readline())


class Started:
    """`python WORDS...` in a process and a session of its own."""

    def __init__(self, *words: object, env: Mapping[str, str] | None = None) -> None:
        number = next(_numbers)
        self._outputs = [_outputs() / f"{number}.{name}" for name in ("stdout", "stderr")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self.pid: int = _answer([list(map(str, words)), os.getcwd(), environment, *map(str, self._outputs)])
        self.returncode: int | None = None

    @property
    def stdout(self) -> str:
        return self._said(0)

    @property
    def stderr(self) -> str:
        return self._said(1)

    def _said(self, which: int) -> str:
        path = self._outputs[which]
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def poll(self) -> int | None:
        if self.returncode is None and (status := _answer(self.pid)) is not None:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = 120) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < end, f"it still runs; it said: {self.stderr}"
            time.sleep(0.01)
        return code

    def until(self, said: str) -> None:
        """Wait until it says this on either output."""
        while True:
            ended = self.poll() is not None
            if said in self.stdout + self.stderr:
                return
            assert not ended, f"{said!r} was never said; it said: {self.stderr}"
            time.sleep(0.01)

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process, if it runs, and wait for it."""
        self.send_signal(signal.SIGKILL)
        self.wait()
