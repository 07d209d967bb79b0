"""The evaluator's record under pads: what it sent of each profile. With a file it is durable.

Of one profile under pads, two requests with two baselines would show the key holder the difference of the
baselines' weights (`linear.addressed_pads`). So the evaluator sends one, and the same one again.
"""

from __future__ import annotations

from pathlib import Path

from securefl.core.errors import RemoteProtocolError
from securefl.storage.database import Database, Kind

KIND = Kind(
    name="record of matched profiles",
    tables=(
        "CREATE TABLE matched (profile BLOB PRIMARY KEY, request BLOB NOT NULL, seal BLOB NOT NULL) STRICT",
    ),
    lost="Which profiles were matched is lost with it: have profiles under pads encrypted again, and begin "
    "without it.",
    anew="have profiles under pads encrypted again, and begin without it",
)


class Matched:
    """The digest of the one request of each profile, in a file for each evaluator. Safe under kill -9."""

    def __init__(self, path: Path | str = ":memory:") -> None:
        self._db = Database(path, KIND)
        try:
            self._db.sealed("SELECT * FROM matched")
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def once(self, profile: bytes, request: bytes, *, sender: str) -> None:
        """Record the request of a profile. Raises RemoteProtocolError if another one is on record.

        profile: its fresh key. request: the digest of the request.
        """
        with self._db.transaction():
            row = self._db.row("SELECT request FROM matched WHERE profile = ?", (profile,))
            if row is None:
                self._db.put("INSERT INTO matched", profile, request)
        if row is not None and row != (request,):
            raise RemoteProtocolError(
                "Expected a profile that was matched with no other baseline before, got one that was: a "
                "second match would show the key holder how the baselines differ. Have it encrypted again.",
                sender=sender,
                phase="pads",
            )
