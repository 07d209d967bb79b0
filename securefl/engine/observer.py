"""What the person at a machine may see of one Ask: a channel of its own, that feeds no machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from securefl.core.abstaining import Reason
from securefl.core.errors import BudgetExceeded
from securefl.engine.drive import Traffic


@dataclass
class Log:
    """What the parties at one machine noted of one Ask, reasons of clients that abstained included.

    It is no message: nothing in it reaches a machine, or leaves the process it was noted in.
    """

    traffic: Traffic = field(default_factory=Traffic)
    abstained: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)
    """By client that abstained, which of the listed reasons it was."""
    blank: dict[str, str] = field(default_factory=dict)
    """By client that answered as one without records, why: to abstain would have told it."""
    refused: dict[str, BudgetExceeded] = field(default_factory=dict)
    """By client, why its ledger or its schedule did not bear what was asked; it is in `abstained` too."""
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By client, how many of its profile's entries were clipped, and how many floored."""

    def tell(self, party: str, why: str, reason: Reason | None = None) -> None:
        """Note why a party's part is missing. reason: of a client alone."""
        self.abstained[party] = why
        if reason is not None:
            self.reasons[party] = reason

    def take(self) -> Log:
        """All that was noted so far; the log is empty afterwards."""
        # Handed over and replaced, not cleared: the caller keeps what it got.
        noted, new = Log(), Log()
        vars(noted).update(vars(self))
        vars(self).update(vars(new))
        return noted

    def add(self, other: Log) -> None:
        """Note what another one says too."""
        self.traffic.add(other.traffic)
        self.abstained |= other.abstained
        self.reasons |= other.reasons
        self.blank |= other.blank
        self.refused |= other.refused
        self.moved |= other.moved
