"""The hash chain of a ledger: every reservation and every commit is a link.

A link is the SHA-256 of the previous link and of its own contents. The digest of the newest link is also kept
outside the ledger, such as in a run's checkpoint. If rows of a ledger are deleted, edited or renamed, or if
the ledger is an older copy, its chain does not lead to that digest. The chain cannot detect that a ledger and
the note of its head were both replaced by older copies.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Any

from securefl.storage.database import Damaged, Database, seal

Rows = Callable[[str], Iterable[tuple[Any, ...]]]
"""A function that returns all rows of a query. A chain is read once, so an iterator is enough."""
# A row has two links, one of its reservation and one of its commit. Each column is in one of the two, so that
# an edit of any column breaks the chain.
_RESERVED = (
    "SELECT reserved, holder, session, round, stage, attempt, name, charge, initial, number, at "
    "FROM releases ORDER BY reserved"
)
_COMMITTED = (
    "SELECT committed, reserved, content FROM releases WHERE committed IS NOT NULL ORDER BY committed"
)


@dataclass(frozen=True)
class Head:
    """The newest link: the number of links after the first, and the digest of the newest (32 bytes)."""

    count: int
    digest: bytes

    def then(self, *parts: bytes | str | int) -> Head:
        """Return the next link. Links of reservations and of commits differ in the number of parts."""
        return Head(self.count + 1, seal(self.digest, self.count + 1, *parts))


def rows_of(db: sqlite3.Connection) -> Callable[[str], list[tuple[Any, ...]]]:
    """The function that returns all rows of a query of this connection."""
    return lambda query: db.execute(query).fetchall()


def first(rows: Rows, kind: str = "ledger") -> Head:
    """Return the first link, which covers the terms of a ledger of this kind and its identity."""
    terms = rows("SELECT name, value FROM terms ORDER BY name")
    return Head(0, seal(kind, *(text for row in terms for text in row)))


def head(rows: Rows) -> Head:
    """Return the newest link on file."""
    found = list(rows("SELECT count, digest FROM head"))
    if len(found) != 1:
        raise Damaged("the head of its chain is gone")
    return Head(*found[0])


def whole(rows: Rows, noted: Head | None) -> Head:
    """Return the newest link on file after a check that the rows lead to it.

    Raises Damaged if the rows do not end in that link, or if they do not pass through the head `noted`.
    """
    if (found := replay(rows)) != head(rows):
        raise Damaged("its chain does not end at its noted head: rows were changed or are missing")
    # The note may be older: it is written after the transaction, and a process can be killed in between.
    if noted not in (None, found):
        passes(rows, noted)
    return found


def passes(rows: Rows, noted: Head) -> None:
    """Raise Damaged unless the rows pass through a head that was noted earlier."""
    if (found := replay(rows, noted.count)) != noted:
        raise Damaged(
            f"expected the {noted.count} entries that were noted, got {found.count}, or different entries: "
            "releases are missing or changed, or it is an older copy"
        )


def move(db: Database, to: Head) -> None:
    """Write a newer link, in the same transaction as the row that it covers."""
    db.run("INSERT OR REPLACE INTO head VALUES (1, ?, ?)", (to.count, to.digest))


def replay(rows: Rows, count: int | None = None) -> Head:
    """Compute link number `count`, or the last link, from the rows. Raises Damaged at a gap."""
    link = first(rows)
    for number, parts in _links(rows):
        if link.count == count:
            break
        if number != link.count + 1:
            raise Damaged(f"entry {link.count + 1} of its chain is missing")
        link = link.then(*parts)
    return link


def _links(rows: Rows) -> Iterator[tuple[int, tuple[Any, ...]]]:
    # Both queries are ordered, and reservations and commits share one numbering: merged, they are the chain.
    reserved = ((row[0], row[1:]) for row in rows(_RESERVED))
    committed = ((row[0], row[1:]) for row in rows(_COMMITTED))
    return merge(reserved, committed, key=lambda link: link[0])
