"""Stops a run on a signal: after the first one the current round finishes, the second one stops at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from securefl.core.logs import to_stderr
from securefl.storage.processes import SIGNALS

_ONE_REQUEST = 0.1
"""Seconds in which a second signal counts as the first: timeout(1) signals a process and then its group."""
_SOON = 1.0
"""Seconds that a stop waits for its line to be printed. The reader of a pipe may not read it."""


class Interrupted(KeyboardInterrupt):
    """Raised if a signal of this number stopped the run. Finished rounds are kept."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code by the convention of shells: 128 and the signal's number."""
        return 128 + self.number


class Stop(Protocol):
    """An object that a run asks whether to stop."""

    def finishing(self, what: str) -> AbstractContextManager[None]:
        """A context. After a first request to stop, the work within still finishes."""

    def check(self) -> None:
        """Raises Interrupted if a request to stop came."""


class Interruption:
    """A context that handles signals, and restores the old handlers at its end.

    It handles signals only in the main thread, and only while the context is entered. A signal that the
    process ignores (nohup, a shell's background job) stays ignored.

    Args:
        say: prints a line for a person at once. It is called in a thread of its own, since the handler may
            have interrupted another print.
    """

    def __init__(self, say: Callable[[str], None] = to_stderr) -> None:
        self._say = say
        self._at_hand = ""
        self._heard: tuple[int, float] | None = None
        self._old: dict[int, Any] = {}
        self._saying: threading.Thread | None = None

    @property
    def asked(self) -> bool:
        """Whether a request to stop came."""
        return self._heard is not None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # None: a handler that was not set from Python. It could not be restored.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._old[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        while self._old:
            signal.signal(*self._old.popitem())

    @contextmanager
    def finishing(self, what: str) -> Iterator[None]:
        """A context: after a first signal the work within finishes. Outside, a first signal stops at once."""
        self._at_hand = what
        try:
            yield
        finally:
            self._at_hand = ""

    def check(self) -> None:
        """Raises Interrupted if a signal came."""
        if self._heard is not None:
            if self._saying is not None:
                self._saying.join(_SOON)  # so that this line is printed before those on the end
            raise Interrupted(self._heard[0])

    def _hear(self, number: int, _: object) -> None:
        now = time.monotonic()
        if self._heard is not None and now - self._heard[1] < _ONE_REQUEST:
            return
        first, self._heard = self._heard is None, (number, now)
        if first and self._at_hand:
            line = f"Stopping after {self._at_hand}; once more to stop at once."
            self._saying = threading.Thread(target=self._say, args=(line,), daemon=True)
            self._saying.start()
            return
        # Clean-up may hang in code that is not ours. The next signal then ends the process.
        for each in self._old:
            signal.signal(each, signal.SIG_DFL)
        raise Interrupted(number)


@dataclass(frozen=True)
class Told:
    """A `Stop` for a worker process. It handles no signals, and asks the process that started it."""

    asked: Callable[[], bool]

    def finishing(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def check(self) -> None:
        if self.asked():
            raise Interrupted(signal.SIGTERM)
