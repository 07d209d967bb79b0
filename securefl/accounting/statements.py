"""Statements of a privacy ledger: every release in order, with the data holder's epsilon after it."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from securefl.accounting.chain import Head, rows_of, whole
from securefl.accounting.composition import running_epsilon
from securefl.accounting.events import History, load_charge
from securefl.accounting.figures import plain
from securefl.accounting.note import noted
from securefl.accounting.store import IDENTITY, KIND, Terms, read_terms
from securefl.core.release import Charge
from securefl.storage.database import Damaged, decoding, explaining, require, require_version
from securefl.storage.read_only import read


@dataclass(frozen=True)
class Statement:
    """The releases of all data holders, or of one of them. Raises nothing.

    Attributes:
        releases: in order, each with at (UTC), holder, round, name, unit, event (as stored), state, and
            epsilon. The state is "reserved" until the release is sent, then "committed". Epsilon is the
            holder's total against the party after this release. Infinity is the text "inf", because JSON has
            no infinity.
        head: the newest link of the hash chain over the releases of all holders (`chain`).

    >>> import tempfile
    >>> from pathlib import Path
    >>> from securefl import Plan
    >>> from securefl.accounting import Ledger, statement
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "ledger.sqlite")
    ...     Ledger(path, Plan(delta=1e-5, max_rounds=10, budget=2.0).terms()).close()
    ...     statement(path, party="server").releases
    []
    """

    releases: list[dict[str, Any]]
    head: Head


def statement(path: Path, *, party: str, holder: str | None = None) -> Statement:
    """Return the statement of a ledger's file. The file is not changed, and its folder may be read-only.

    Args:
        path: the ledger's file.
        party: "server", "key-holder" or "others".
        holder: include only this data holder's releases. None includes all.

    Raises:
        DataError: if the file is damaged, has lost entries, or is not a ledger of this version.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from securefl import Plan
    >>> from securefl.accounting import Ledger, statement
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "ledger.sqlite")
    ...     Ledger(path, Plan(delta=1e-5, max_rounds=10, budget=2.0).terms()).close()
    ...     statement(path, party="server").head.count
    0
    """
    with explaining(path, KIND):
        terms, releases, head = _stored(path)
        # a ledger has many rows and few distinct charges
        parsed = cache(
            lambda charge: (load_charge(charge).by_party()[party], json.loads(charge)[party]["event"])
        )
        with decoding():
            delta, unit = float(terms["delta"]), terms["unit"].strip("'")
            for *_, charge, _ in releases:
                parsed(charge)
    rows, spent = [], defaultdict[str, Counter[DpEvent]](Counter)
    for at, who, number, name, charge, state in releases:
        if holder is not None and who != holder:
            continue
        event, word = parsed(charge)
        spent[who][event] += 1
        rows.append(
            {
                "at": at,
                "holder": who,
                "round": number,
                "name": name,
                "unit": unit,
                "event": word,
                "state": state,
                "epsilon": plain(round(running_epsilon(History.of(spent[who]), delta), 6)),
            }
        )
    return Statement(rows, head)


def releases_of(path: Path) -> dict[str, Counter[tuple[str, Charge]]]:
    """Return the releases of each data holder, counted by name and charge. The file is not changed.

    Raises DataError as `statement` does.
    """
    found: dict[str, Counter[tuple[str, Charge]]] = {}
    for (holder, name, charge, _), number in _counted(path).items():
        found.setdefault(holder, Counter())[name, charge] += number
    return found


def states_of(path: Path, holder: str) -> Counter[tuple[str, Charge]]:
    """Return the releases of one data holder, counted by state ("reserved" or "committed") and charge.

    Raises DataError as `statement` does. The file is not changed.
    """
    found: Counter[tuple[str, Charge]] = Counter()
    for (who, _, charge, state), number in _counted(path).items():
        if who == holder:
            found[state, charge] += number
    return found


def _counted(path: Path) -> Counter[tuple[str, str, Charge, str]]:
    """The releases by holder, name, charge and state."""
    with explaining(path, KIND):
        _, releases, _ = _stored(path)
        rows = Counter((holder, name, charge, state) for _, holder, _, name, charge, state in releases)
        with decoding():
            parsed = {charge: load_charge(charge) for _, _, charge, _ in rows}
    found: Counter[tuple[str, str, Charge, str]] = Counter()
    for (holder, name, charge, state), number in rows.items():
        found[holder, name, parsed[charge], state] += number
    return found


def identity_of(path: Path) -> str:
    """Return the random number that identifies this ledger. The file is not changed."""
    with explaining(path, KIND):
        if (found := _terms(path).get(IDENTITY)) is None:
            raise Damaged("its identity is missing")
    return found


def terms_of(path: Path) -> Terms:
    """Return the terms of a ledger's file, with which it was made. The file is not changed."""
    with explaining(path, KIND):
        return read_terms(_terms(path))


def _terms(path: Path) -> dict[str, str]:
    """Within `explaining`: the terms, of any state of the other tables."""

    def ask(db: sqlite3.Connection) -> dict[str, str]:
        require_version(db, path, KIND)
        return dict(db.execute("SELECT name, value FROM terms"))

    return read(path, ask)


def _stored(path: Path) -> tuple[dict[str, str], list[tuple[Any, ...]], Head]:
    """Within `explaining`: the terms, all releases, and the newest link."""
    before = noted(path)  # read first, because a run may add releases meanwhile

    def ask(db: sqlite3.Connection) -> tuple[dict[str, str], list[tuple[Any, ...]], Head]:
        rows = rows_of(db)
        db.execute("BEGIN")  # a consistent view of the ledger, also while a run writes to it
        require(db, path, KIND)
        state = "CASE WHEN committed IS NULL THEN 'reserved' ELSE 'committed' END"
        releases = rows(f"SELECT at, holder, round, name, charge, {state} FROM releases ORDER BY reserved")
        return dict(rows("SELECT name, value FROM terms")), releases, whole(rows, before)

    return read(path, ask)
