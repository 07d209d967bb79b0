"""What a ledger's file says of the releases of a holder."""

from __future__ import annotations

from collections.abc import Mapping

from securefl.accounting.budget import Counted
from securefl.core.errors import BudgetExceeded
from securefl.core.release import ReleaseKey
from securefl.storage.database import Database


class Filed:
    """The releases in a ledger's file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def counted(self, holder: str) -> Counted:
        query = "SELECT name, charge, COUNT(*) FROM releases WHERE holder = ? GROUP BY name, charge"
        return {(name, charge): count for name, charge, count in self._db.rows(query, (holder,))}

    def all_counted(self) -> Mapping[str, Counted]:
        query = "SELECT holder, name, charge, COUNT(*) FROM releases GROUP BY holder, name, charge"
        found: dict[str, dict[tuple[str, str], int]] = {}
        for holder, name, charge, count in self._db.rows(query):
            found.setdefault(holder, {})[name, charge] = count
        return found

    def introduced(self, counted: Mapping[ReleaseKey, int]) -> BudgetExceeded | None:
        """Return why a holder's introductions are used up, or None if they are not."""
        # They are counted over all sessions, since an asker that restarts could otherwise take training for
        # an introduction again and again. The attempt is left out: a retry introduces nothing new.
        for key, most in counted.items():
            query = (
                "SELECT session, round, stage FROM releases WHERE holder = ? AND name = ? AND introduction"
            )
            done = {(bytes(row[0]), *row[1:]) for row in self._db.rows(query, (key.holder, key.name))}
            asked = {(k.session, k.round, k.stage) for k in counted if k.name == key.name}
            if asked - done and len(asked | done) > most:
                return BudgetExceeded(
                    f"{key.holder}: expected at most {most} declared introductions of {key.name!r}, got one "
                    f"more after {len(done)}. Ask for it in a round, where its training is charged."
                )
        return None
