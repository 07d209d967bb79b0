"""A command that waits at a chosen point: `python stopped_run.py POINT GATE ARGUMENTS...` runs `securefl`.

POINT is "sign:N" (in round N, after the first signatures are in the journal), "keys" (before keys for
encrypted scores are made) or "report" (before the report is written). There the process prints "At hand." on
stderr, and waits until the file GATE exists.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

from securefl.commands.main import main
from securefl.core.acts import RecordAct
from securefl.he.keys import KeyPair
from securefl.storage.journal import Journal
from securefl.study import run_report


def wait(gate: Path) -> None:
    print("At hand.", file=sys.__stderr__, flush=True)
    while not gate.exists():
        time.sleep(0.02)


def wait_before(owner: Any, name: str, gate: Path) -> None:
    own = getattr(owner, name)

    def waiting(*args: Any, **named: Any) -> Any:
        wait(gate)
        return own(*args, **named)

    setattr(owner, name, waiting)


def wait_after_signing(number: int, gate: Path) -> None:
    record = Journal.record

    def waiting(self: Journal, acts: Any) -> Any:
        answers = record(self, acts)
        signs = (
            isinstance(act, RecordAct) and act.act == "sign" and act.header.round == number for act in acts
        )
        if any(signs):
            wait(gate)
        return answers

    Journal.record = waiting


if __name__ == "__main__":
    # A shell that puts the tests in the background has its children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    point, gate, *arguments = sys.argv[1:]
    run_report.figures = lambda *_: []  # pictures take longer than the run, and nobody looks at them
    if point == "keys":
        wait_before(KeyPair, "generate", Path(gate))
    elif point == "report":
        wait_before(run_report, "write", Path(gate))
    else:
        wait_after_signing(int(point.removeprefix("sign:")), Path(gate))
    sys.argv[1:] = arguments
    main()
