"""The exit codes of every command, each with its meaning."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """The exit codes. A command ends with no other."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    REFUSED = 3
    UNLEARNT = 4
    TOO_FEW = 5
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: Final[dict[ExitCode, str]] = {
    ExitCode.DONE: "The command did what was asked.",
    ExitCode.ERROR: "An error that the message on stderr explains, in words also under --json. `audit`: a "
    "mechanism reveals more than it claims. `reveal`: a file was refused, and the other scores are printed.",
    ExitCode.USAGE: "The words of the command are wrong: an option that does not exist, a missing argument. "
    "`match`: every profile was refused, and no file of scores is written.",
    ExitCode.REFUSED: "A part was refused by name, and the rest was done. `match`: some profiles. "
    "`flower check`: a run of the app would refuse what it lists.",
    ExitCode.UNLEARNT: "All rounds are finished, and nothing was learnt: no arm is better than one constant "
    "answer, an arm's model is diverged at the end, or nobody answered in its second half. Over "
    "records of one's own under a finite epsilon it follows from no accuracy. `run`, `demo`, `report`, "
    "`sweep`, `reproduce` and `party coordinate` have it.",
    ExitCode.TOO_FEW: "`party coordinate`: too few parties were present in time for a round. It does not "
    "count. The same command goes on when they are back.",
    ExitCode.HUNG_UP: "The terminal was closed. What is finished is kept, and the same command goes on.",
    ExitCode.INTERRUPTED: "Ctrl-C. The first one lets a round finish, and the second one stops at once. The "
    "same command goes on.",
    ExitCode.TERMINATED: "SIGTERM. As for Ctrl-C.",
}
