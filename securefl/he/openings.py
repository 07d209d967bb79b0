"""The count of a key's openings, up to a cap. A repeated request gets the stored reply.

An opening is one integer that the key holder decrypts for the evaluator. The flooding noise is sized for the
cap, so a semi-honest evaluator learns nothing about the key. The cap does not stop a malicious evaluator,
which reads the whole key within a few hundred unchecked openings (`linear.encrypted`). With a file, count and
replies outlast the process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from securefl.core.errors import DataError, RemoteProtocolError
from securefl.storage.database import Database, Kind

Reply = Callable[[], bytes]
KIND = Kind(
    name="count of openings",
    tables=(
        "CREATE TABLE openings (request BLOB PRIMARY KEY, integers INTEGER NOT NULL, reply BLOB NOT NULL, "
        "seal BLOB NOT NULL) STRICT",
        "CREATE TABLE bound (only INTEGER PRIMARY KEY CHECK (only = 1), ledger TEXT NOT NULL) STRICT",
    ),
    lost="The number of openings of its key is lost with it: make a new key, with securefl keygen.",
    anew="make a new key, with securefl keygen",
)


class Openings:
    """The replies of one key by request, and the number of integers in each. Safe under kill -9.

    Do not copy or restore a key with its count: the copy would count from its own state, and together the
    copies could exceed the cap. Make a new key instead.
    """

    def __init__(self, path: Path | str = ":memory:") -> None:
        self._db = Database(path, KIND)
        try:
            self._db.sealed("SELECT * FROM openings")
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    @property
    def opened(self) -> int:
        """The number of integers opened so far."""
        return int(self._db.rows("SELECT COALESCE(SUM(integers), 0) FROM openings")[0][0])

    def bind(self, ledger: str) -> None:
        """Bind the count to the ledger of this identity. Raises DataError if another ledger is bound."""
        # If one of the two files were lost, a new one would look as if nothing had happened. The bond between
        # them shows the loss.
        with self._db.transaction():
            if not self.opened:
                self._db.run("INSERT OR IGNORE INTO bound VALUES (1, ?)", (ledger,))
            bound = self._db.row("SELECT ledger FROM bound")
        if bound != (ledger,):
            raise DataError(
                f"Expected the ledger that was bound to this key's openings in {self._db.path}, got another. "
                "The first ledger was lost or replaced, and with it the record of its releases. Restore it, "
                "or make a new key."
            )

    def once(self, request: bytes, integers: int, cap: int, reply: Reply, *, sender: str) -> bytes:
        """The stored reply to this request, or a new one, stored before it is returned.

        request: a digest of the request. integers: the number of openings in a new reply. cap: the most
        openings of the key. reply: makes the new reply. Raises RemoteProtocolError if the cap would be
        exceeded, and DataError if the stored reply is not as it was written.
        """
        # The same request must get the same bytes. Each new reply would have fresh noise, and the mean of
        # many replies has little noise. A reply is stored before it is sent, so a crash in between changes
        # nothing.
        with self._db.transaction():
            if stored := self._db.sealed("SELECT * FROM openings WHERE request = ?", (request,)):
                return bytes(stored[0][2])
            if self.opened + integers > cap:
                raise RemoteProtocolError(
                    f"Expected at most {cap} openings of this key, got more: they are used up. Start a "
                    "session with a new key.",
                    sender=sender,
                    phase="open",
                )
            answer = reply()
            self._db.put("INSERT INTO openings", request, integers, answer)
            return answer
