"""Supervision of worker processes: start, messages, stop, and exit codes.

A `Supervisor` starts worker processes, receives their messages, and ends them when its own work ends, also
after an error. A terminal or a service manager signals all processes of a group. The workers ignore such
signals: the parent process receives them too, and tells its workers to stop.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Literal, NoReturn, TypeVar

MOST_WORKERS = 1024
FAILED = 4
"""The exit code of a process whose work raised an error."""
_BEAT = 0.1
"""The most seconds that the supervisor waits for a message before it looks for signals and ended workers."""
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C, the signal of service managers, and that of a closed terminal. They ask a study to stop."""


def processors() -> int:
    """The number of processors that this process may use."""
    # A container, or taskset, may allow fewer processors than the machine has.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether this system lets a process fork safely: the copy continues with the same memory."""
    # macOS has fork, but its own libraries, the one of linear algebra among them, may crash in the copy.
    return hasattr(os, "fork") and sys.platform != "darwin"


@contextmanager
def unheard() -> Iterator[None]:
    """Block SIGNALS inside the context. A signal that arrives inside is delivered at the end.

    A process that is started inside inherits the block and never receives these signals. Its parent receives
    them and tells it to stop.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def for_workers() -> AbstractContextManager[None]:
    """Give each process that is started inside the context one thread for linear algebra."""
    return _environment("OMP_NUM_THREADS", "1")


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment for the processes that are started inside the context."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def scriptless() -> Iterator[None]:
    """Hide the main module's file from `multiprocessing`, which would import it in every worker.

    A worker needs nothing from that module. A script that calls a sweep at its top level would begin another
    sweep in each worker.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)
    }
    main.__spec__ = None
    try:
        yield
    finally:
        del main.__spec__
        vars(main).update(hidden)


@contextmanager
def _forking() -> Iterator[None]:
    with warnings.catch_warnings():
        # Python 3.12 warns if a process with several threads forks: another thread may hold a lock, which
        # stays locked in the copy. Here the other threads draw progress bars. The copies never print, and end
        # by `os._exit`, so they never wait for that lock.
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        yield


@dataclass(frozen=True)
class Line:
    """A worker's connection to its parent process."""

    _ours: Connection
    _stop: Connection

    def tell(self, news: Any) -> None:
        """Send the parent a message that JSON can hold."""
        self._ours.send_bytes(json.dumps(news).encode())

    def orders(self) -> Iterator[Any]:
        """Yield the parent's orders, until the parent ends."""
        while True:
            yield json.loads(self._ours.recv_bytes())

    def stopping(self) -> bool:
        """Whether the parent asked all its workers to stop."""
        return self._stop.poll()


@dataclass(frozen=True)
class Ended:
    """The event that a worker ended.

    code: its exit code. None if the program that launched the parent ignores SIGCHLD: the system then keeps
    no exit codes.
    """

    code: int | None


Name = TypeVar("Name")
Work = Callable[..., int | None]
"""The function that a worker runs. It takes the worker's `Line` and further arguments, and returns the exit
code, or None for 0."""


class Supervisor(Generic[Name]):
    """A context for named workers. When it ends, also after an error, it kills all of them and waits.

    Args:
        method: "fork" for copies of this process, which inherit its memory and print nothing. "spawn" for new
            processes.
    """

    def __init__(self, method: Literal["fork", "spawn"]) -> None:
        self._context: Any = multiprocessing.get_context(method)
        self._forks = method == "fork"
        # No worker reads from this pipe. Each one polls it, so one message reaches all of them. Unlike an
        # `Event` it has no lock that a killed worker could leave locked.
        self._hears, self._tells = self._context.Pipe(duplex=False)
        self._lines: dict[Connection, tuple[BaseProcess, Name]] = {}
        self._stopped = False

    def __enter__(self) -> Supervisor[Name]:
        return self

    def __exit__(self, *_: object) -> None:
        for line, (process, _name) in self._lines.items():
            process.kill()
            process.join()
            process.close()
            line.close()
        self._lines.clear()
        self._hears.close()
        self._tells.close()

    @property
    def running(self) -> list[Name]:
        """The names of the workers that have not ended."""
        return [name for _, name in self._lines.values()]

    def start(self, name: Name, work: Work, *given: Any) -> bool:
        """Start a worker that calls `work` with its `Line` and the `given` arguments.

        Returns False if the system starts no further process.
        """
        line, theirs = self._context.Pipe()
        inside = Line(theirs, self._hears)
        process = self._context.Process(target=_inside, args=(self._forks, work, inside, given))
        # A spawned worker is `python -c`. Before it takes over the path of its parent, it would import from
        # the working folder, which may be another user's, such as /tmp.
        with unheard(), _forking(), _environment("PYTHONSAFEPATH", "1"):
            try:
                process.start()
            except OSError:
                line.close()
                theirs.close()
                return False
            self._lines[line] = process, name
        # Only the worker keeps this end open. So when the worker ends, `hear` reads the end of the stream.
        theirs.close()
        return True

    def order(self, name: Name, what: Any) -> None:
        """Send a worker an order that JSON can hold. If it has ended, `hear` reports that."""
        line = next(line for line, (_, known) in self._lines.items() if known == name)
        with suppress(OSError):
            line.send_bytes(json.dumps(what).encode())

    def stop(self) -> None:
        """Ask all workers to stop. A second call does nothing."""
        if not self._stopped:
            self._tells.send_bytes(b"stop")
            self._stopped = True

    def hear(self) -> Iterator[tuple[Name, Any]]:
        """Yield messages, and `Ended` for each worker that has ended. Wait a tenth of a second at most."""
        for line in connection.wait(list(self._lines), timeout=_BEAT):
            assert isinstance(line, Connection)
            process, name = self._lines[line]
            try:
                news = json.loads(line.recv_bytes())
            except (EOFError, OSError):
                process.join()
                del self._lines[line]
                line.close()
                code = process.exitcode
                if code is not None:
                    process.close()
                yield name, Ended(code)
            else:
                yield name, news


def _inside(forked: bool, work: Work, line: Line, given: tuple[Any, ...]) -> NoReturn:
    """Run `work` in a worker process, and end the process."""
    if forked:
        # The copy inherits open databases of the parent. If garbage collection closed one here, SQLite would
        # delete its log, which the parent still needs.
        gc.freeze()
        # The parent's progress bars replaced these files by a writer with a lock. In the forked copy that
        # lock may be held for ever, and a warning would wait for it.
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to the process's end
    else:
        # A forked worker inherits the block of `unheard`. A spawned one does not inherit all of it.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    # Otherwise a worker of a killed study would still write into a folder that the next process resumes.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = FAILED
    try:
        code = work(line, *given) or 0
    finally:
        # By `os._exit`, which runs no exit handlers and prints no buffered text: both belong to the parent. A
        # thread of the parent may have held the terminal's lock at the fork, and printing would wait for it.
        os._exit(code)


def _end_with_parent() -> None:
    """End this process at once when its parent has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def ending(code: int) -> str:
    """An exit code in words. As in `subprocess` and `multiprocessing`, a signal's number is negative."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was ended by signal {-code}"
