"""Who took part in each round of an arm, from the records of its rounds (see `engine.attendance`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from securefl.core.messages import client_name
from securefl.engine.attendance import Attendance, Presence, Seen


class Followed:
    """Follows the records of one arm and seed, in the order of their rounds."""

    def __init__(self) -> None:
        self._attendance = Attendance()
        self._over_budget: set[str] = set()

    def presence(self, record: Mapping[str, Any]) -> Presence:
        """Who took part in this record's round."""
        over_budget = frozenset(self._over_budget)
        # A record names the clients that no later round asks.
        self._over_budget |= set(map(client_name, record["retired"]))
        return self._attendance.round(record["round"], Seen.of(record["seen"]), over_budget=over_budget)


def presences(records: Sequence[Mapping[str, Any]]) -> list[Presence]:
    """Who took part in each of these rounds of one arm and seed."""
    followed = Followed()
    return [followed.presence(record) for record in records]
