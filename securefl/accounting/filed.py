"""What a ledger's file says of the releases of a holder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from securefl.accounting.alike import Alike, Counts
from securefl.accounting.chain import Head
from securefl.core.errors import BudgetExceeded
from securefl.core.release import ReleaseKey
from securefl.storage.database import Database


class Filed:
    """The releases in a ledger's file.

    Counts are kept as of one head of the chain. The ledger tells what it wrote (`add`, `move`). If the head
    moved without that, another process wrote, and they are taken anew. So a round costs the same after a
    thousand others.
    """

    def __init__(self, db: Database, newest: Callable[[], Head]) -> None:
        """newest: the newest link of the chain, of a change at hand too."""
        self._db = db
        self._newest = newest
        self._counts: Alike[str] = Alike()
        self._at: int | None = None

    def counted(self, holder: str) -> Counts:
        return self._now().of(holder)

    def histories(self) -> Iterable[Counts]:
        return self._now().histories()

    def add(self, holder: str, name: str, charge: str, link: int) -> None:
        """A reservation was written at this place of the chain, which was at hand before."""
        if self._at == link - 1:
            self._counts.add(holder, (name, charge))
            self._at = link

    def move(self, link: int) -> None:
        """A commit was written at this place of the chain. It is of a release that is counted."""
        if self._at == link - 1:
            self._at = link

    def forget(self) -> None:
        """What was written is not on file: the counts are taken anew."""
        self._at = None

    def _now(self) -> Alike[str]:
        at = self._newest().count
        if at != self._at:
            query = "SELECT holder, name, charge, COUNT(*) FROM releases GROUP BY holder, name, charge"
            self._counts = Alike()
            for holder, name, charge, count in self._db.rows(query):
                self._counts.add(holder, (name, charge), count)
            self._at = at
        return self._counts

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
