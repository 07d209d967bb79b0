"""A ledger's statement: every release in order, and its holder's epsilon after it."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from securefl.accounting.chain import Head, whole
from securefl.accounting.composition import Running
from securefl.accounting.events import History, load_charge
from securefl.accounting.figures import plain
from securefl.accounting.note import noted
from securefl.accounting.store import IDENTITY, KIND
from securefl.storage.database import explaining, require
from securefl.storage.read_only import read


@dataclass(frozen=True)
class Statement:
    """The releases of all holders, or of one of them.

    Attributes:
        releases: in order, each with at, holder, round, name, unit, event (as stored), state, and epsilon.
            Epsilon is what the holder has spent against the party after this release. Infinity is the text
            "inf", which JSON can hold.
        head: the newest link of the chain over the releases of all holders.
    """

    releases: list[dict[str, Any]]
    head: Head


def statement(path: Path, *, party: str, holder: str | None = None) -> Statement:
    """What a ledger's file says of spending against `party`. It is only read, wherever it is.

    Raises DataError if the file is damaged, has lost something, or is not a ledger of this version.
    """
    with explaining(path, KIND):
        before = noted(path)  # first: a run may go on meanwhile
        terms, releases, head = read(path, lambda db: _stored(db, path, before))
    # a ledger has many rows and few distinct charges
    parsed = cache(lambda charge: (load_charge(charge).by_party()[party], json.loads(charge)[party]["event"]))
    composed = _Composed(float(terms["delta"]))
    unit = terms["unit"].strip("'")
    rows = []
    for at, who, number, name, charge, state in releases:
        if holder is not None and who != holder:
            continue
        event, word = parsed(charge)
        rows.append(
            {
                "at": at,
                "holder": who,
                "round": number,
                "name": name,
                "unit": unit,
                "event": word,
                "state": state,
                "epsilon": composed.after(who, event),
            }
        )
    return Statement(rows, head)


def identity_of(path: Path) -> str:
    """The number that was drawn when this ledger was made. It is only read, wherever it is."""
    with explaining(path, KIND):
        query = "SELECT value FROM terms WHERE name = ?"
        return str(read(path, lambda db: db.execute(query, (IDENTITY,)).fetchone()[0]))


def _stored(
    db: sqlite3.Connection, path: Path, noted: Head | None
) -> tuple[dict[str, str], list[tuple[Any, ...]], Head]:
    def rows(query: str) -> list[tuple[Any, ...]]:
        return db.execute(query).fetchall()

    db.execute("BEGIN")  # one state of the ledger, also while a run writes to it
    require(db, path, KIND)
    state = "CASE WHEN committed IS NULL THEN 'reserved' ELSE 'committed' END"
    releases = rows(f"SELECT at, holder, round, name, charge, {state} FROM releases ORDER BY reserved")
    return dict(rows("SELECT name, value FROM terms")), releases, whole(rows, noted)


class _Composed:
    """Epsilon of each holder's growing history. Holders with equal histories share its composition."""

    def __init__(self, delta: float) -> None:
        self._running = Running(delta)
        self._spent: dict[str, Counter[DpEvent]] = {}
        self._known: dict[object, float | str] = {}

    def after(self, holder: str, event: DpEvent) -> float | str:
        """Epsilon of this holder after one more event, to six decimals."""
        spent = self._spent.setdefault(holder, Counter())
        spent[event] += 1
        history = History.of(spent)
        key = history.key()
        if key not in self._known:
            epsilon = self._running.epsilon(history)
            self._known[key] = plain(round(epsilon, 6))
        return self._known[key]
