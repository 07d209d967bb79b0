"""Why a client abstains: every reason there is, and what its silence tells.

Silence is a message. Whoever sees it learns its reason's class:

public    follows from the order, the plan, the schedule, the broadcast or public charges. It tells nothing.
charged   follows from a value whose noise was charged. It is post-processing, and tells nothing more.
holder    follows from what the holder of the records did to its files. No neighbouring data set does that.
records   follows from the records. It is no reason where any party that sees it is promised a finite epsilon:
          the client answers there as it would without records.

An error without a reason counts as one of the records.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from securefl.core.errors import DataError

Told = Literal["public", "charged", "holder", "records"]


class Reason(Enum):
    """A reason to abstain: its word, and what it follows from."""

    LATE = "late", "public"
    """The order is for a round below the newest one of this session."""
    SCHEDULE = "schedule", "public"
    """The declared rounds are over."""
    BUDGET = "budget", "public"
    """The ledger refuses. Charges are of the plan, and are reserved before anything is computed."""
    TWICE = "twice", "public"
    """The server came back to a place with another order."""
    TOTAL = "total", "public"
    """The server told another n than before in this session."""
    ORDER = "order", "public"
    """The order, the call or the broadcast fits no value: not even that of a client without records."""
    DIVERGED = "diverged", "charged"
    """Private training ended in a model that is not finite. Its noised steps decide that."""
    NOISED = "noised", "charged"
    """No number follows from a value after its noise was added."""
    CHANGED = "changed", "holder"
    """The records changed while an Ask was at hand."""
    ANOTHER = "another", "holder"
    """A value that was sent is another one after a restart: records or journal changed."""
    RECORDS = "records", "records"
    """The records, or what was trained on them without accounted privacy."""

    def __init__(self, word: str, told: Told) -> None:
        self.word = word
        self.told: Told = told


class Abstains(DataError):
    """The client abstains, for a reason of the list above."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def reason_of(error: Exception) -> Reason:
    """The reason behind an error. One that names none is of the records."""
    return error.reason if isinstance(error, Abstains) else Reason.RECORDS
