"""The SQLite file of a privacy ledger: tables, terms, and the integrity checks when it is opened."""

from __future__ import annotations

import secrets
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from sys import float_info
from typing import Final

from securefl.accounting.chain import Head, first, move, replay, whole
from securefl.accounting.note import noted, noted_in
from securefl.core.errors import ConfigError, DataError
from securefl.core.release import PARTIES, Adjacency, ReleaseKey, Unit
from securefl.core.text_safety import excerpt
from securefl.storage.database import IN_MEMORY, Database, Kind, decoding

KIND = Kind(
    name="ledger",
    tables=(
        "CREATE TABLE terms (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        # the newest link of the hash chain over all entries (see `chain`)
        "CREATE TABLE head (only INTEGER PRIMARY KEY CHECK (only = 1), count INTEGER NOT NULL, "
        "digest BLOB NOT NULL) STRICT",
        # `reserved` and `committed` are places in the chain. `committed` is NULL until the release is sent.
        "CREATE TABLE releases (reserved INTEGER PRIMARY KEY, committed INTEGER UNIQUE, "
        "holder TEXT NOT NULL, session BLOB NOT NULL, round INTEGER NOT NULL, stage INTEGER NOT NULL, "
        "attempt INTEGER NOT NULL, name TEXT NOT NULL, charge TEXT NOT NULL, initial INTEGER NOT NULL, "
        "number INTEGER NOT NULL, at TEXT NOT NULL, content BLOB NOT NULL, "
        "UNIQUE (holder, session, round, stage, attempt, name)) STRICT",
    ),
    lost="The record of earlier releases is lost with it. Restore its whole folder from one backup, or begin "
    "a new run in another folder.",
    anew="count what these records spent in it as spent, and begin anew in another folder",
)
IDENTITY = "identity"
SHARED = "shared"
"""The name, beside a ledger's terms, of the identity of the shared ledger that counts its run."""
SMALLEST_DELTA: Final = float_info.min
"""Below it floats lose digits, and 1 / delta is infinite. Meaningful deltas are far larger."""


def require_delta(delta: float) -> None:
    """Raise ConfigError unless delta is a probability that the accountants can compute with."""
    if not 0 < delta < 1:
        raise ConfigError(f"Expected 0 < delta < 1, got {delta}. Take one below 1 / records, such as 1e-5.")
    if delta < SMALLEST_DELTA:
        raise ConfigError(f"Expected delta >= {SMALLEST_DELTA:.3g}, got {delta}. Take a larger one: 1e-10.")


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The privacy terms of a ledger. They give its epsilon a meaning, and are fixed when the ledger is made.

    Attributes:
        unit, adjacency: the neighbour relation of data sets.
        delta: the delta at which epsilon is stated.
        budget: the largest epsilon against each party in `adversaries`. None is no limit.
        adversaries: the parties against which the budget must hold. The plan trusts the other parties.
        max_releases: for each name, the largest number of noised releases of one holder, for which the noise
            was calibrated. None is no limit.
        adaptive: whether a release's parameters may depend on earlier releases. If so, a privacy filter
            enforces the budget in place of composition.

    Raises:
        ConfigError: if delta is not in (0, 1), if the budget is below 0, if a number in `max_releases` is
            below 1, or if a party is unknown.

    >>> from securefl.accounting import Terms
    >>> Terms(unit="record", adjacency="add-remove", delta=1e-5, budget=2.0).adaptive
    False
    """

    unit: Unit
    adjacency: Adjacency
    delta: float
    budget: float | None = None
    adversaries: tuple[str, ...] = PARTIES
    max_releases: Mapping[str, int] | None = None
    adaptive: bool = False

    def __post_init__(self) -> None:
        require_delta(self.delta)
        if self.budget is not None and not self.budget >= 0:
            raise ConfigError(f"Expected a budget of epsilon >= 0, got {self.budget}.")
        if self.max_releases is not None:
            if min(self.max_releases.values(), default=1) < 1:
                raise ConfigError(f"Expected numbers of at least 1 in max_releases, got {self.max_releases}.")
            # sorted, so that equal limits have equal text in the file
            object.__setattr__(self, "max_releases", dict(sorted(self.max_releases.items())))
        if unknown := set(self.adversaries) - set(PARTIES):
            raise ConfigError(f"Expected parties among {PARTIES}, got {sorted(unknown)}.")

    def bears(self, asked: Terms) -> bool:
        """Whether releases under the terms `asked` may be counted under these terms.

        The terms must be equal. If these terms have no `max_releases`, `asked` may have any, since the budget
        bounds all releases.
        """
        return asked == self or (self.max_releases is None and replace(asked, max_releases=None) == self)


def lasting(where: Path | str | Database | None) -> Path | str | Database:
    """The file, or a memory's name for None. Raises ConfigError for SQLite's own names of what is no file."""
    if where is None:
        return IN_MEMORY
    if not isinstance(where, Database) and str(where).startswith((":memory:", "file:")):
        raise ConfigError(
            f"Expected a ledger as the path of a file, got {str(where)!r}, which SQLite may keep in memory: "
            "its charges would be lost. Name a file, such as ledger.sqlite."
        )
    return where


def connect(
    where: Path | str | Database | None,
    terms: Terms,
    counter: Path | None = None,
    shared: str | None = None,
) -> Database:
    """Open a ledger, or create it with these terms.

    Args:
        where: the file, None for memory, or an open file of several kinds that has the ledger's tables.
        terms: the terms that the ledger has, or gets.
        counter: a note of its head outside the ledger's folder, if there is one.
        shared: the identity of the shared ledger that counts it from its first release on, "" for none. None:
            any, for a caller that releases nothing.

    Raises:
        DataError: if the ledger is damaged, is of another version, has lost a link of its chain, or is older
            than its counter.
        ConfigError: if it was made with other terms or under another shared ledger, or `where` is a name of
            SQLite for memory.
    """
    db = Database.of(lasting(where), KIND)
    path = db.path
    try:
        with db.explaining():
            before = noted(path)  # read first, because another process may write meanwhile
            counted = None if counter is None else noted_in(counter)
        # One transaction: two processes that open a new ledger at once would otherwise both find no terms.
        with db.transaction():
            if not db.rows("SELECT name FROM terms"):
                write_terms(db, terms, **({SHARED: shared} if shared else {}))
                move(db, first(db.rows))
            found = whole(db.each, before)
            if counted is not None and replay(db.each, counted.count) != counted:
                raise DataError(_behind(path, counter, counted, found))
            stored = dict(db.rows("SELECT name, value FROM terms"))
            if shared is not None and (made := stored.get(SHARED, "")) != shared:
                raise ConfigError(_uncounted(path, made, shared))
            require_terms(
                stored,
                terms,
                "Expected {name} = {made}, with which this ledger was made, got {asked}. Use the old value, "
                "or a new ledger for the new terms.",
            )
    except BaseException:
        db.close()
        raise
    return db


def _uncounted(path: Path | str, made: str, asked: str) -> str:
    if not made:
        return (
            f"{path}: expected a new ledger with `shared`, got one that was made without: the shared ledger "
            "does not count its releases. Name another `ledger`, or leave `shared` out."
        )
    return (
        f"{path}: expected the shared ledger that counts this ledger, got {'another' if asked else 'none'}: "
        "it would not hear of further releases. Pass its file as `shared`, or name another `ledger`."
    )


def _behind(path: Path | str, counter: Path | None, counted: Head, found: Head) -> str:
    return (
        f"{path}: expected the ledger of its counter {counter}, with {counted.count} entries or more, got "
        f"{found.count} entries, or those of a second ledger: it is an older copy, such as from a backup, "
        "and lacks the releases since then. Put the newest ledger back. If it is lost, the spent budget is "
        "unknown: count the budget of these records as spent, and begin a new folder with other records."
    )


def write_terms(db: Database, terms: Terms, **more: str) -> None:
    """Write the terms of a new ledger, its identity, and `more` texts."""
    for name, value in {IDENTITY: secrets.token_hex(16), **more, **written(terms)}.items():
        db.run("INSERT INTO terms VALUES (?, ?)", (name, value))


def read_terms(stored: Mapping[str, str]) -> Terms:
    """Return the terms that `write_terms` wrote. Raises Damaged if they cannot be read."""
    with decoding():
        return Terms(**{name: literal_eval(stored[name]) for name in Terms.__dataclass_fields__})


def require_terms(stored: Mapping[str, str], terms: Terms, refusal: str, where: str = "") -> None:
    """Raise ConfigError for other terms than the stored ones.

    refusal: a text with places for {name}, {made} and {asked}; `where` stands in front of it.
    """
    for name, asked in written(terms).items():
        if (made := stored.get(name, "nothing")) != asked:
            raise ConfigError(where + refusal.format(name=name, made=excerpt(made), asked=asked))


def written(terms: Terms) -> dict[str, str]:
    """Return the terms as a ledger's file stores them."""
    return {name: f"{getattr(terms, name)!r}" for name in Terms.__dataclass_fields__}


KEY = "holder = ? AND session = ? AND round = ? AND stage = ? AND attempt = ? AND name = ?"
"""A condition that selects the row of one release. `row_of` gives its values."""


def row_of(key: ReleaseKey) -> tuple[str, bytes, int, int, int, str]:
    return (key.holder, key.session, key.round, key.stage, key.attempt, key.name)
