"""The log of one cohort query, for the person at a machine. No protocol machine reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from securefl.core.abstaining import Reason
from securefl.core.errors import BudgetExceeded
from securefl.engine.drive import Traffic


@dataclass
class Log:
    """The notes of the parties at one machine on one cohort query, with the reasons why clients abstained.

    A log is no message. It reaches no machine, and stays in the process that made it.
    """

    traffic: Traffic = field(default_factory=Traffic)
    abstained: dict[Any, str] = field(default_factory=dict)
    reasons: dict[Any, Reason] = field(default_factory=dict)
    """For each client that abstained, which of the listed reasons it had."""
    blank: dict[Any, str] = field(default_factory=dict)
    """For each client that answered as one without records, why. Silence would have revealed the reason."""
    refused: dict[Any, BudgetExceeded] = field(default_factory=dict)
    """For each client whose ledger or schedule did not bear the query, why. It is in `abstained` too."""
    cut: dict[Any, str] = field(default_factory=dict)
    """For each client whose value was cut to a bound before it was sent, why. No other party learns it."""
    moved: dict[Any, tuple[int, int]] = field(default_factory=dict)
    """For each client, how many entries of its profile were clipped, and how many were floored."""

    def report(self, party: str, why: str, reason: Reason | None = None) -> None:
        """Note why a party's answer is missing. reason: for a client only."""
        self.abstained[party] = why
        if reason is not None:
            self.reasons[party] = reason

    def named(self, clients: Mapping[str, Any]) -> Log:
        """A copy in which parties are called as these are: a party that is not named here keeps its name."""
        found = Log()
        for own, copy in ((self, found), (self.traffic, found.traffic)):
            for name, notes in vars(own).items():
                if isinstance(notes, dict):
                    named = {clients.get(party, party): note for party, note in notes.items()}
                    setattr(copy, name, type(notes)(named))
        found.traffic.late = self.traffic.late
        return found

    def take(self) -> Log:
        """Return all notes so far, and empty the log."""
        # Replaced, not cleared, because the caller keeps the returned containers.
        noted, new = Log(), Log()
        vars(noted).update(vars(self))
        vars(self).update(vars(new))
        return noted

    def add(self, other: Log) -> None:
        """Add another log's notes."""
        for name, notes in vars(other).items():
            own = getattr(self, name)
            own.add(notes) if isinstance(notes, Traffic) else own.update(notes)
