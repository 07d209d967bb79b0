"""Processes that start at once: they fork from one which has imported the package (`forker.py`)."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import count
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

_ends = ExitStack()


@cache
def forks() -> ForkServerContext:
    """Processes of one process that forks, for all tests of this one.

    It looks for modules where this one does. A forkserver before Python 3.11.9 is not told where that is,
    and says nothing of a module that it does not find: each process would then import all for itself.
    """
    found = get_context("forkserver")
    found.set_forkserver_preload(["support.forker"])
    with patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}):
        ensure_running()
    return found


@cache
def _outputs() -> Path:
    """The folder of what the processes say."""
    return Path(_ends.enter_context(TemporaryDirectory(prefix="started-")))


_numbers = count()
end = _ends.close
"""End what still runs, and remove what the others said: after all tests."""


def _go_on(words: Sequence[str], folder: str, environment: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Go on as `python WORDS...` would, in a session of its own. outputs: the files of stdout and stderr."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    # A shell that puts the tests in the background has its children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 1
    try:
        _run(*words)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take apart all that was imported would cost more than most commands


def _run(first: str, *rest: str) -> None:
    """What `python FIRST REST...` does."""
    if first == "-m":
        sys.argv = [*rest]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv = [first, *rest]
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")


class Started:
    """`python WORDS...` in a process and a session of its own."""

    def __init__(self, *words: object, env: Mapping[str, str] | None = None) -> None:
        number = next(_numbers)
        self._outputs = [_outputs() / f"{number}.{name}" for name in ("stdout", "stderr")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self._process = forks().Process(
            target=_go_on,
            args=(list(map(str, words)), os.getcwd(), environment, list(map(str, self._outputs))),
        )
        self._process.start()
        _ends.callback(self.kill)
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

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
        return self._process.exitcode

    def wait(self, timeout: float = 120) -> int:
        self._process.join(timeout)
        assert self.returncode is not None, f"it still runs; it said: {self.stderr}"
        return self.returncode

    def until(self, said: str) -> None:
        """Wait until it says this on either output."""
        while True:
            ended = self.returncode is not None
            if said in self.stdout + self.stderr:
                return
            assert not ended, f"{said!r} was never said; it said: {self.stderr}"
            time.sleep(0.01)

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process, if it runs, and wait for it."""
        self.send_signal(signal.SIGKILL)
        self.wait()
