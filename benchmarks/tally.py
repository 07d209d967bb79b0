"""What each party of a matching takes: seconds of CPU by role, bytes and errors over all clients so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import process_time
from typing import Any


class Tally:
    """The costs of one way to match.

    Args:
        name: of the way, as the table writes it.
        roles: the parties, in the order of the columns.
    """

    def __init__(self, name: str, roles: Sequence[str]) -> None:
        self.name = name
        self.seconds = dict.fromkeys(roles, 0.0)
        self.clients = self.up = self.between = 0
        self.error = 0.0

    def spend(self, role: str, work: Callable[[], Any]) -> Any:
        """The work's result; what it takes is the role's."""
        began = process_time()
        done = work()
        self.seconds[role] += process_time() - began
        return done

    def add(self, scores: Sequence[float], truth: Sequence[float], *, up: int, between: int) -> None:
        """Count these clients, with the bytes that they sent and those between the servers."""
        pairs = zip(scores, truth, strict=True)
        self.error = max(self.error, *(abs(score - one) for score, one in pairs))
        self.clients += len(scores)
        self.up += up
        self.between += between

    def row(self) -> dict[str, Any]:
        """Milliseconds and bytes a client."""
        ms = {role: round(1e3 * spent / self.clients, 3) for role, spent in self.seconds.items()}
        return {
            "way": self.name,
            **ms,
            "total": round(sum(ms.values()), 3),
            "up": round(self.up / self.clients),
            "between": round(self.between / self.clients),
            "error": float(f"{self.error:.1e}"),
        }
