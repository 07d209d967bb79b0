"""The privacy ledger: every release of every data holder is recorded before it leaves.

    reserve(wants)    reserves a batch of charges in one transaction, or refuses, holder by holder
    send(outbox)      commits the charges, then makes the bytes; the only encoder of a Release
    repeats(release)  whether a release has the same content as before a restart, and so may be sent again
    open(release)     commits the charge, then returns the value to a caller's own training loop

A crash between two of these calls can count a release that never left. It cannot forget a release that left.
A study keeps all its data holders in one SQLite file. Each holder is accounted on its own.

When a commit is durable: the rule. A release's commit is on disk before the release leaves the process that
made it. Each call above is a durable commit of its own, before it returns. That holds for a party apart, a
Flower node, and a caller's own loop. There is one exception. If all parties of a study are in this process,
the calls of a round are steps of one transaction in the run's file (`study.arm`, `Database.together`), which
also holds the journal's acts, the new state and the round's record. Its commit ends the round.

Proof that a crash cannot forget a release that left, in one process:

1. `send` makes bytes only after its step: a release is in the transaction before its bytes exist.
2. During the round the bytes go from one party to another in this memory. What depends on a release gets out
   by four ways: the transaction, `tell` (progress, callbacks), a log line, and the text of an error. Worker
   processes get models and records, and no release of the round.
3. The transaction is atomic. If the process is killed or the power fails before the commit is durable, the
   disk has neither the state nor the record of the round. Nothing left, and nothing is counted.
4. `tell` is called after the commit, and log lines wait for it (`core.logs.held`). An error of the round is
   raised after the commit of its steps. If this commit fails, the lines are dropped, and DataError is raised
   in place of the other error. It names the file and no release.
5. After the commit all of it is on disk. If the process is killed before `tell`, the round is finished.

A round that was cut off before its commit is played again with new masks and new noise, since the journal's
secrets were in the same transaction. Of the two versions only the second one can leave. After an error the
secrets are on disk, and the round is played again with the same ones. `content` then refuses another version.

Code that a study brings (its model, its algorithm) runs in this process and gets the records. If it writes a
release elsewhere before the round ends, the rule does not hold for that copy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.budget import Budget
from securefl.accounting.chain import Head, head, move, passes
from securefl.accounting.events import NO_COST, NON_PRIVATE, dump_charge
from securefl.accounting.note import HeadNote
from securefl.accounting.release_table import DeclaredQuery, ReleaseTable, by_holder
from securefl.accounting.store import IDENTITY, KEY, Terms, connect, now, row_of
from securefl.core.errors import BudgetExceeded, LocalProtocolError, UnaccountedRelease
from securefl.core.release import _LEDGER_ONLY, Charge, Permit, Release, ReleaseKey
from securefl.core.wire import Header, encode
from securefl.storage.database import Database

__all__ = ["DeclaredQuery", "Head", "Ledger", "Terms", "now"]


class Ledger(Budget[str]):
    """The releases of all data holders in one SQLite file; safe under two processes and kill -9.

    Args:
        path: the file, or the open file of a run or a party, which also holds a journal and more. None is a
            ledger in memory, which is lost when it is closed.
        terms: the unit, the adjacency, the delta and the budget.
        counter: a file outside the ledger's folder that records the newest head (see `note`). A ledger that
            is older than its counter is refused.
        allotted: for each charge, the largest number of times that it may be made of one holder, as a shared
            ledger has reserved it.
        shared: the identity of that shared ledger, "" for none; the ledger then opens with it alone. None: do
            not check it.

    Raises:
        ConfigError: if the ledger was made with other terms or under another shared ledger, or `path` is a
            name of SQLite for memory.
        DataError: if the ledger is damaged, is of another version, or is older than its note or counter.

    >>> from securefl import Ledger, Plan
    >>> with Ledger(None, Plan(delta=1e-5, max_rounds=10, budget=2.0).terms()) as ledger:
    ...     ledger.worst("server"), ledger.head.count
    (0.0, 0)
    """

    def __init__(
        self,
        path: Path | str | Database | None,
        terms: Terms,
        *,
        counter: Path | None = None,
        allotted: Mapping[str, int] | None = None,
        shared: str | None = None,
        clock: Callable[[], str] = now,
    ) -> None:
        self._clock = clock
        self._db = connect(path, terms, counter, shared)
        self._link: Head | None = None
        self._fresh: set[ReleaseKey] = set()  # keys that are new in the latest call of `reserve`
        self._filed = ReleaseTable(self._db, self._newest)
        super().__init__(self._filed, terms, allotted)
        self._note = HeadNote(self._db.path, counter)
        try:
            self._noted()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Run an all-or-nothing transaction, and note the new head once it is on disk."""
        self._fresh.clear()
        try:
            # The note follows the commit: a note ahead of its ledger would make an intact ledger unusable.
            with self._db.transaction(self._noted):
                self._link = begun = head(self._db.rows)
                yield
                if self._link != begun:
                    move(self._db, self._link)
        except BaseException:
            self._filed.forget()
            self._fresh.clear()
            raise
        finally:
            self._link = None

    def _noted(self) -> None:
        with self._db.explaining():
            self._note.write(self.head)

    def _newest(self) -> Head:
        """Return the head of the hash chain, including entries of a transaction not yet committed."""
        return self._link or head(self._db.rows)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> str:
        """A random number, drawn when the ledger was made. It tells this ledger from a later replacement."""
        return str(self._db.rows("SELECT value FROM terms WHERE name = ?", (IDENTITY,))[0][0])

    @property
    def head(self) -> Head:
        """The newest link of the chain over all releases. A caller that keeps it can later call `require`."""
        with self._db.explaining():
            return head(self._db.rows)

    def require(self, noted: Head) -> None:
        """Raise DataError unless this ledger's chain passes through a head that was noted earlier.

        If it does not, releases were deleted or changed, or this is an older copy or another ledger.
        """
        with self._db.explaining():
            passes(self._db.each, noted)

    # Writing ----------------------------------------------------------------------------------

    def reserve(
        self,
        wants: Sequence[tuple[ReleaseKey, Charge]],
        asked: Mapping[ReleaseKey, DeclaredQuery] | None = None,
    ) -> Mapping[str, BudgetExceeded]:
        """Reserve a batch of charges. For each holder it reserves all its charges, or none.

        A key that was used before with this charge is not charged again. `send` then accepts the same content
        only.

        Args:
            wants: the keys and their charges.
            asked: for each key, the declared query that it answers. A key without one is not counted.

        Returns:
            The refused holders, each with the reason: budget or schedule do not allow the charges; the
            initial queries, extra queries or releases of a linear query are used up; or one query has two
            stages in a round. Nothing is reserved for a refused holder.

        Raises:
            LocalProtocolError: if a key was used before with another charge, or is given twice. Nothing is
                reserved then.
        """
        refused: dict[str, BudgetExceeded] = {}
        said = by_holder((asked or {}).items())
        with self._changing():
            for holder, own in by_holder(wants).items():
                charges = [(key, charge) for key, charge in own if not self._stands(key, charge)]
                which = dict(said.get(holder, ()))
                linear = {key.name: query.max_releases for key, query in which.items()}
                refusal = self._filed.misasked(which) or self.refusal(
                    holder,
                    [(key.name, charge) for key, charge in charges],
                    {name: most for name, most in linear.items() if most is not None},
                )
                if refusal is not None:
                    refused[holder] = refusal
                    continue
                for key, charge in charges:
                    self._insert(key, charge, which.get(key, DeclaredQuery()))
        return refused

    def book(self, wants: Iterable[tuple[ReleaseKey, Charge, DeclaredQuery]]) -> None:
        """Reserve charges that other ledgers decide about, such as those of a server's orders to clients.

        No budget refuses them: what is not written here would be missing in what the server counts. A key
        that stands with this charge is not charged again.

        Raises:
            LocalProtocolError: as for `reserve`.
        """
        with self._changing():
            for key, charge, asked in wants:
                if not self._stands(key, charge):
                    self._insert(key, charge, asked)

    def _stands(self, key: ReleaseKey, charge: Charge) -> bool:
        """Whether this charge is on file for this key."""
        row = self._db.row(f"SELECT charge FROM releases WHERE {KEY}", row_of(key))
        if row is not None and row[0] != dump_charge(charge):
            raise LocalProtocolError(
                f"Expected a new key for {key.name!r} of {key.holder}, got round {key.round}, stage "
                f"{key.stage}, attempt {key.attempt}, which this session used already, with another charge. "
                "Retry in a new attempt."
            )
        return row is not None

    def _insert(self, key: ReleaseKey, charge: Charge, asked: DeclaredQuery) -> None:
        parts = (*row_of(key), dump_charge(charge), asked.initial, asked.number, self._clock())
        link = self._link = self._newest().then(*parts)
        # `_stands` ran before this batch was written. The table's UNIQUE refuses a key that occurs twice.
        try:
            self._db.run(
                "INSERT INTO releases VALUES (?, NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, x'')",
                (link.count, *parts),
            )
        except sqlite3.IntegrityError:
            raise LocalProtocolError(
                f"Expected each value once in a batch, got {key.name!r} of {key.holder} twice. Reserve it "
                "once."
            ) from None
        self._filed.add(key.holder, key.name, dump_charge(charge), link.count)
        self._fresh.add(key)

    def repeats(self, release: Release) -> bool:
        """Whether this release may be sent: it was never sent, or its content is the same as before.

        A release without noise and in the clear may be sent again with any content: its charge is infinite.
        """
        if release.key in self._fresh:  # nothing was sent under this key before, and `send` checks again
            return True
        row = self._db.row(f"SELECT committed, content FROM releases WHERE {KEY}", row_of(release.key))
        return row is None or row[0] is None or bytes(row[1]) == release.content

    def send(self, outbox: Sequence[tuple[Header, Any]]) -> list[bytes]:
        """Commit every release in these messages in one transaction, then encode them.

        Guarantees:
            - A release leaves only under its own reservation, with this key, this charge and this unit.
            - If one release of these messages may not leave, none is committed and nothing is encoded.
            - The commit is durable before the bytes exist. In a round in one process, it is durable before
              they leave the process (see above). A crash cannot forget a release that left.
            - A release that was sent leaves again only with the same fingerprint. It is not charged twice.
            - A release with charge `NO_COST` or `NON_PRIVATE` may be sent again without a fingerprint.
            - No release is encoded in any other way.
            - A message without a release is encoded, and not counted.

        Raises:
            UnaccountedRelease: if a release was not reserved, was reserved with another charge, or was sent
                before with another content.
        """
        # Commit first. In the other order, a crash in between would let bytes leave without a record.
        releases = [release for _, body in outbox for release in Release.all_in(body)]
        permit = self._commit(releases) if releases else None
        return [encode(header, body, permit) for header, body in outbox]

    def open(self, release: Release) -> tuple[NDArray[np.generic], bytes]:
        """Commit one release and return its content, for a training loop that sends bytes by itself.

        Args:
            release: a release that was reserved with this charge.

        Returns:
            Its numbers, as the scheme of `[privacy] sum` sealed them, and its sealed bytes. Of an encrypted
            release the numbers are empty, and of any other one the bytes.

        Raises:
            UnaccountedRelease: as for `send`.
        """
        return self._commit([release]).contents(release)

    def _commit(self, releases: Sequence[Release]) -> Permit:
        with self._changing():
            for release in releases:
                if release.unit != self.terms.unit or not self._commits(release):
                    raise UnaccountedRelease(
                        f"Expected a reservation with this charge and unit, got none for {release!r}, or it "
                        "was sent before with another content. Reserve it first, and send it once."
                    )
        return Permit(frozenset(release.key for release in releases), issuer=_LEDGER_ONLY)

    def _commits(self, release: Release) -> bool:
        """Commit a reservation of this charge. Return whether it was open, or committed with this content."""
        row = self._db.row(
            f"SELECT reserved, committed, content FROM releases WHERE {KEY} AND charge = ?",
            (*row_of(release.key), dump_charge(release.charge)),
        )
        if row is None:
            return False
        reserved, committed, content = row
        if committed is not None:
            # Without a fingerprint, contents cannot be compared. These charges cover any content.
            may_repeat = bool(release.content) or release.charge in (NO_COST, NON_PRIVATE)
            return may_repeat and bytes(content) == release.content
        link = self._link = self._newest().then(reserved, release.content)
        self._db.run(
            "UPDATE releases SET committed = ?, content = ? WHERE reserved = ?",
            (link.count, release.content, reserved),
        )
        self._filed.move(link.count)
        return True

    # Reading ----------------------------------------------------------------------------------

    def state(self, key: ReleaseKey) -> str | None:
        """Return the state of this key's release: "reserved", "committed", or None if it is unknown."""
        row = self._db.row(f"SELECT committed FROM releases WHERE {KEY}", row_of(key))
        return None if row is None else "reserved" if row[0] is None else "committed"

    def sessions(self) -> list[bytes]:
        """Return the sessions that have a release."""
        return [bytes(row[0]) for row in self._db.rows("SELECT DISTINCT session FROM releases")]

    def newest(self, session: bytes, holder: str | None = None) -> int:
        """Return the newest round of a session that has a release, or 0.

        If a `holder` is given, only its releases count. An index then makes the time independent of other
        sessions.
        """
        own = () if holder is None else (holder,)
        where = "session = ?" if holder is None else "session = ? AND holder = ?"
        query = f"SELECT COALESCE(MAX(round), 0) FROM releases WHERE {where}"
        return int(self._db.rows(query, (session, *own))[0][0])

    def orders(self, session: bytes, number: int, after: int) -> list[tuple[Any, ...]]:
        """Return (place in the chain, holder, stage, attempt, name, initial) of a round's releases.

        They are in order of reservation, and behind the place `after`.
        """
        where = "session = ? AND round = ? AND reserved > ? ORDER BY reserved"
        query = f"SELECT reserved, holder, stage, attempt, name, initial FROM releases WHERE {where}"
        return self._db.rows(query, (session, number, after))

    def rows(self) -> list[tuple[Any, ...]]:
        """Return (holder, session, round, stage, attempt, name, charge, state, at) in order of reservation.

        `at` is the time of the reservation. Clocks may go backwards, so rows are not ordered by it.
        """
        state = "CASE WHEN committed IS NULL THEN 'reserved' ELSE 'committed' END"
        columns = f"holder, session, round, stage, attempt, name, charge, {state}, at"
        return self._db.rows(f"SELECT {columns} FROM releases ORDER BY reserved")
