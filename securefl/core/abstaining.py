"""The reasons for which a client abstains, and what a party learns from the client's silence.

Silence is a message. A party that sees it learns the class of the reason:

public    The reason follows from order, plan, schedule, broadcast or public charges. Silence reveals nothing.
charged   The reason follows from a value whose noise was charged. Silence is post-processing of that value.
holder    The reason follows from a change that the data holder made to its files. Two neighbouring data sets
          do not differ by such a change.
records   The reason follows from the records. If a hidden sum is asked, or a party that sees the silence is
          promised a finite epsilon, the client does not abstain: it answers as it would without records.

An error without a reason counts as "records".
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from securefl.core.errors import DataError

Told = Literal["public", "charged", "holder", "records"]


class Reason(Enum):
    """A reason to abstain: its word, and its class."""

    LATE = "late", "public"
    """The order's round is below the newest round that the client has seen in this session."""
    SCHEDULE = "schedule", "public"
    """The plan declares no further round."""
    BUDGET = "budget", "public"
    """The ledger refuses. Charges follow from the plan, and are reserved before anything is computed."""
    TWICE = "twice", "public"
    """The server sent a second, different order for the same round, stage and attempt."""
    TOTAL = "total", "public"
    """The server's total number of records n differs from the n that it sent earlier in this session."""
    SESSION = "session", "public"
    """The client's owner agreed to no further session whose sums have no noise."""
    ORDER = "order", "public"
    """No value fits the order, the call or the broadcast, not even the value of a client without records."""
    DIVERGED = "diverged", "charged"
    """Private training ended in a model that is not finite. This follows from its noised steps."""
    NOISED = "noised", "charged"
    """After noise was added to a value, no finite number follows from it."""
    CHANGED = "changed", "holder"
    """The records changed while the client answered a cohort query."""
    ANOTHER = "another", "holder"
    """After a restart, the value differs from the one that was sent: records or journal changed."""
    RECORDS = "records", "records"
    """The records, or a state that was trained on them without accounted privacy."""

    def __init__(self, word: str, told: Told) -> None:
        self.word = word
        self.told: Told = told


class Abstains(DataError):
    """Raised if a client abstains, with one of the reasons above."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def reason_of(error: Exception) -> Reason:
    """Return the reason that an error carries, or `RECORDS` if it carries none."""
    return error.reason if isinstance(error, Abstains) else Reason.RECORDS
