"""A tuned table that kills itself: `python killed_table.py ROUND FOLDER`.

It reproduces a table of seconds, with a system that keeps models at its clients. Before the ROUND-th finished
round is told it sends itself SIGKILL; 0 kills nobody.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from typing import Any

import pytest
from support import tiny_table
from support.tiny_study import FEDAVG

from securefl.commands.main import main
from securefl.published import runs

PERSONAL = '[[arm]]\nname = "FedAvg"\nprotocol = "pfedme"\nfraction = 0.5\nlamda = 2.0\neta = 0.4\n'


def install(patch: pytest.MonkeyPatch, fatal: int) -> None:
    part = tiny_table.part(rounds=3)
    part = replace(part, text=part.text.replace(FEDAVG, PERSONAL))
    patch.setattr(tiny_table, "TABLE", tiny_table.table(part))
    tiny_table.install(patch, digits="TABLE")
    patch.setattr(runs, "MANY", (0.5, 1.0, 2.0))  # the best one is likely at an edge
    patch.setattr(runs, "SIZE", 3)
    told, tell = 0, runs.Bar.tell

    def deadly(*given: Any) -> None:
        nonlocal told
        told += 1
        if told == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        tell(*given)

    patch.setattr(runs.Bar, "tell", deadly)


if __name__ == "__main__":
    install(pytest.MonkeyPatch(), int(sys.argv[1]))
    sys.argv = ["securefl", "reproduce", "digits", "--tuned", "--out", sys.argv[2], "--workers", "1"]
    main()
