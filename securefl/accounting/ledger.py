"""The ledger: every release of every data holder, written before it leaves.

    reserve(wants)    all charges of a wave in one durable transaction, or a refusal per holder
    send(outbox)      commits the charges, then makes the bytes; the only encoder of a Release
    repeats(release)  whether a release says what it said before a restart, and so may be sent again
    open(release)     commits the charge, then gives the value, for a foreign training loop

A crash between two of these may count a release that never left. It cannot forget one that did.
A study keeps all its holders in one SQLite file; each holder is accounted alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.budget import Budget
from securefl.accounting.chain import Head, head, move, replay
from securefl.accounting.events import NO_COST, NON_PRIVATE, dump_charge
from securefl.accounting.filed import Asked, ReleaseTable, by_holder
from securefl.accounting.note import HeadNote
from securefl.accounting.store import IDENTITY, KEY, KIND, Terms, connect, now, row_of
from securefl.core.errors import BudgetExceeded, DataError, LocalProtocolError, UnaccountedRelease
from securefl.core.release import _LEDGER_ONLY, Charge, Permit, Release, ReleaseKey
from securefl.core.wire import Header, encode

__all__ = ["Asked", "Head", "Ledger", "Terms", "now"]


class Ledger:
    """Releases of all holders in one SQLite file; safe under two processes and kill -9.

    >>> import securefl
    >>> plan = securefl.Plan(delta=1e-5, max_rounds=10, budget=2.0)
    >>> with securefl.Ledger("plan.sqlite", plan.terms()) as ledger:
    ...     ledger.worst("server"), ledger.head.count
    (0.0, 0)

    counter: a file outside the ledger's folder that notes how far the ledger got (see `note`). A ledger that
    is behind its counter is refused.
    allotted: how often each charge may be made of one holder at all, as a shared ledger has reserved it.
    """

    def __init__(
        self,
        path: Path | str,
        terms: Terms,
        *,
        counter: Path | None = None,
        allotted: Mapping[str, int] | None = None,
        clock: Callable[[], str] = now,
    ) -> None:
        self.terms = terms
        self._clock = clock
        self._db = connect(path, terms, counter)
        self._link: Head | None = None
        self._fresh: set[ReleaseKey] = set()  # what the newest wave reserved, and nobody had before
        self._filed = ReleaseTable(self._db, self._newest)
        self._budget = Budget(self._filed, terms, allotted)
        try:
            with self._db.explaining():
                self._note = HeadNote(path, counter)
                self._note.write(self.head)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._note.close()
        self._db.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change all or nothing, durably, and note the new head."""
        self._fresh.clear()
        try:
            with self._db.transaction():
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
        # After the commit, never before: a note ahead of its ledger would refuse an honest one for ever.
        with self._db.explaining():
            self._note.write(self.head)

    def _newest(self) -> Head:
        """The newest link. That of a change at hand is on file when the change is."""
        return self._link or head(self._db.rows)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> str:
        """A number drawn when the ledger was made. A ledger that was lost and begun anew has another one."""
        return str(self._db.rows("SELECT value FROM terms WHERE name = ?", (IDENTITY,))[0][0])

    @property
    def head(self) -> Head:
        """The newest link of the chain over all releases. Whoever notes it elsewhere can call `require`."""
        with self._db.explaining():
            return head(self._db.rows)

    def require(self, noted: Head) -> None:
        """Raises DataError if this ledger's chain does not pass through a head that was noted of it.

        Releases were then deleted or changed since, or this is an older copy, or another ledger.
        """
        with self._db.explaining():
            found = replay(self._db.each, noted.count)
        if found != noted:
            raise DataError(
                f"{self._db.path}: expected the {noted.count} entries that were noted of it, got "
                f"{found.count}, or others: releases are missing or changed, or it is an older copy. "
                f"{KIND.lost}"
            )

    # The door ---------------------------------------------------------------------------------

    def reserve(
        self,
        wants: Sequence[tuple[ReleaseKey, Charge]],
        asked: Mapping[ReleaseKey, Asked] | None = None,
    ) -> Mapping[str, BudgetExceeded]:
        """Reserve a wave of charges durably. Of each holder it reserves all charges, or none.

        A key that was used before with this charge is not charged again. Only the same content can be sent.
        `asked` says which of the declared asks each key answers. A key without one is not counted.

        Returns:
            The refused holders, each with the reason: its budget or schedule does not bear the charges, its
            introductions, further asks or releases of a linear query are used up, or one question was put at
            two places of a round.
            Nothing is reserved for a refused holder.

        Raises:
            LocalProtocolError: a key was used before with another charge. Nothing is reserved then.
        """
        refused: dict[str, BudgetExceeded] = {}
        said = by_holder((asked or {}).items())
        with self._changing():
            for holder, own in by_holder(wants).items():
                charges = [(key, charge) for key, charge in own if not self._stands(key, charge)]
                which = dict(said.get(holder, ()))
                refusal = (
                    self._filed.misasked(which)
                    or self._filed.too_many(holder, [key for key, _ in charges], which)
                    or self.refusal(holder, [(key.name, charge) for key, charge in charges])
                )
                if refusal is not None:
                    refused[holder] = refusal
                    continue
                for key, charge in charges:
                    self._insert(key, charge, which.get(key, Asked()))
        return refused

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

    def _insert(self, key: ReleaseKey, charge: Charge, asked: Asked) -> None:
        parts = (*row_of(key), dump_charge(charge), asked.initial, asked.number, self._clock())
        link = self._link = self._newest().then(*parts)
        # `_stands` asked before this wave was written. The table's UNIQUE refuses a key that it names twice.
        try:
            self._db.run(
                "INSERT INTO releases VALUES (?, NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, x'')",
                (link.count, *parts),
            )
        except sqlite3.IntegrityError:
            raise LocalProtocolError(
                f"Expected each value once in a wave, got {key.name!r} of {key.holder} twice. Ask for it "
                "once."
            ) from None
        self._filed.add(key.holder, key.name, dump_charge(charge), link.count)
        self._fresh.add(key)

    def repeats(self, release: Release) -> bool:
        """Whether this release may be sent: it was never sent, or it says what it said before.

        A release without noise and in the clear may be sent again with any content: its charge is infinite.
        """
        if release.key in self._fresh:  # nothing was sent under it before, and `send` looks again
            return True
        row = self._db.row(f"SELECT committed, content FROM releases WHERE {KEY}", row_of(release.key))
        return row is None or row[0] is None or bytes(row[1]) == release.content

    def send(self, outbox: Sequence[tuple[Header, Any]]) -> list[bytes]:
        """Commit every release in these messages in one durable transaction, then encode them.

        Guarantees:
            - A release leaves under its own reservation alone: with this key, this charge and this unit.
            - If one release of these messages may not leave, none is committed and nothing is encoded.
            - The commit is durable before the bytes exist. A crash forgets nothing that left.
            - What was sent leaves again only with the same fingerprint, and is not charged twice.
            - What was charged nothing, or as unprotected, may be sent again without a fingerprint.
            - No release is encoded in any other way.
            - A message without a release is encoded, and not counted.

        Raises:
            UnaccountedRelease: a release was not reserved, was reserved with another charge, or was sent
                before with another content.
        """
        # Commit first. In the other order, a crash in between lets bytes leave that no ledger knows.
        releases = [release for _, body in outbox for release in Release.all_in(body)]
        permit = self._commit(releases) if releases else None
        return [encode(header, body, permit) for header, body in outbox]

    def open(self, release: Release) -> tuple[NDArray[np.generic], bytes]:
        """Commit one release and give its numbers and sealed bytes."""
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
            # Without fingerprints all contents look alike. A charge that stands for any allows it.
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

    def epsilon(self, holder: str, party: str) -> float:
        """Epsilon this holder has spent against `party`, at the ledger's delta."""
        return self._budget.epsilon(holder, party)

    def worst(self, party: str) -> float:
        """The largest epsilon over all holders against `party`; 0 for an empty ledger."""
        return self._budget.worst(party)

    def rounds_left(self, holder: str, round_: Sequence[Charge], *, most: int = 10_000) -> int:
        """How many more rounds of these charges the budget bears for this holder; at most `most`."""
        return self._budget.rounds_left(holder, round_, most=most)

    def refusal(self, holder: str, wants: Sequence[tuple[str, Charge]]) -> BudgetExceeded | None:
        """Return why budget or schedule refuse these (name, charge) pairs, or None if they bear them."""
        return self._budget.refusal(holder, wants)

    def state(self, key: ReleaseKey) -> str | None:
        """The state of this key's release: "reserved", "committed", or None if it is unknown."""
        row = self._db.row(f"SELECT committed FROM releases WHERE {KEY}", row_of(key))
        return None if row is None else "reserved" if row[0] is None else "committed"

    def sessions(self) -> list[bytes]:
        """Every session that has a release."""
        return [bytes(row[0]) for row in self._db.rows("SELECT DISTINCT session FROM releases")]

    def newest(self, session: bytes, holder: str | None = None) -> int:
        """The newest round of a session in which something was released, or 0.

        holder: of this one alone, by an index: the time does not grow with the releases of other sessions.
        """
        own = () if holder is None else (holder,)
        where = "session = ?" if holder is None else "session = ? AND holder = ?"
        query = f"SELECT COALESCE(MAX(round), 0) FROM releases WHERE {where}"
        return int(self._db.rows(query, (session, *own))[0][0])

    def rows(self) -> list[tuple[Any, ...]]:
        """(holder, session, round, stage, attempt, name, charge, state, at), in order of reservation.

        `at` is the time of the reservation. Clocks may go backwards, so rows are not ordered by it.
        """
        state = "CASE WHEN committed IS NULL THEN 'reserved' ELSE 'committed' END"
        columns = f"holder, session, round, stage, attempt, name, charge, {state}, at"
        return self._db.rows(f"SELECT {columns} FROM releases ORDER BY reserved")
