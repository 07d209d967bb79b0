"""The chain over a ledger: every reservation and every commit is a link.

A link is the SHA-256 of the link before it and of its own contents. The newest link is noted elsewhere, such
as in a run's checkpoint. A ledger with deleted, edited or renamed rows does not end in the noted digest, nor
does an older copy. The chain cannot show that a ledger and the note of its head were put back together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Any

from securefl.storage.database import Damaged, Database, seal

Rows = Callable[[str], Iterable[tuple[Any, ...]]]
"""All rows of a query. A chain is read through once, so they may come one by one."""
# A row is two links: when it was reserved, and when it was committed. Its columns are in one of them each, so
# no column can be edited unseen.
_RESERVED = (
    "SELECT reserved, holder, session, round, stage, attempt, name, charge, introduction, number, at "
    "FROM releases ORDER BY reserved"
)
_COMMITTED = (
    "SELECT committed, reserved, content FROM releases WHERE committed IS NOT NULL ORDER BY committed"
)


@dataclass(frozen=True)
class Head:
    """The newest link: the number of links after the first, and the digest of this one (32 bytes)."""

    count: int
    digest: bytes

    def then(self, *parts: bytes | str | int) -> Head:
        """The link after this one. Links of reservations and of commits differ in the number of parts."""
        return Head(self.count + 1, seal(self.digest, self.count + 1, *parts))


def first(rows: Rows) -> Head:
    """The link that all others follow: the ledger's identity and terms."""
    terms = rows("SELECT name, value FROM terms ORDER BY name")
    return Head(0, seal("ledger", *(text for row in terms for text in row)))


def head(rows: Rows) -> Head:
    """The newest link on file."""
    found = list(rows("SELECT count, digest FROM head"))
    if len(found) != 1:
        raise Damaged("the head of its chain is gone")
    return Head(*found[0])


def whole(rows: Rows, noted: Head | None) -> Head:
    """Return the newest link on file, once the rows were found to lead to it.

    Raises Damaged if the rows do not end in that link, or do not pass through the head `noted` before.
    """
    if (found := replay(rows)) != head(rows):
        raise Damaged("its chain does not end where it should: something was changed or is gone")
    # The note may be older: it is written after the transaction, and a process can be killed in between.
    if noted not in (None, found) and replay(rows, noted.count) != noted:
        raise Damaged(
            f"expected the {noted.count} entries that were noted of it, got {found.count}, or others: "
            "releases are missing or changed, or it is an older copy"
        )
    return found


def move(db: Database, to: Head) -> None:
    """Put a newer link on file, in the transaction that writes what the link stands for."""
    db.run("INSERT OR REPLACE INTO head VALUES (1, ?, ?)", (to.count, to.digest))


def replay(rows: Rows, count: int | None = None) -> Head:
    """Work out link number `count`, or the last link, from the rows. Raises Damaged at a gap."""
    link = first(rows)
    for number, parts in _links(rows):
        if link.count == count:
            break
        if number != link.count + 1:
            raise Damaged(f"what stood at place {link.count + 1} of its chain is gone")
        link = link.then(*parts)
    return link


def _links(rows: Rows) -> Iterator[tuple[int, tuple[Any, ...]]]:
    # Both queries are ordered, and reservations and commits share one count: merged they are the chain.
    reserved = ((row[0], row[1:]) for row in rows(_RESERVED))
    committed = ((row[0], row[1:]) for row in rows(_COMMITTED))
    return merge(reserved, committed, key=lambda link: link[0])
