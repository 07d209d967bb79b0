"""The work of supervised processes, where a spawned one can import it."""

from __future__ import annotations

import os
import time
from typing import Any

from securefl.storage.processes import SIGNALS, Line


def echo(line: Line, *given: Any) -> None:
    """Tell what was given, and every order; end at the order to do so."""
    line.tell(given)
    for order in line.orders():
        if order == "end":
            return
        line.tell(order)


def wait(line: Line, code: int = 0) -> int:
    """Wait to be asked to stop."""
    line.tell("here")
    while not line.stopping():
        time.sleep(0.01)
    return code


def fail(line: Line) -> None:
    raise ValueError("for this test")


def hear_signals(line: Line) -> None:
    for number in SIGNALS:
        os.kill(os.getpid(), number)
    line.tell("alive")
