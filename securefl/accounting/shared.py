"""The shared ledger: one budget for all runs over the same records.

    reserve(allotments)     reserves whole runs in one durable transaction, or refuses before a run begins

A run is charged once, before its first release, for everything that it may ever release (its *allotment*).
The run's own ledger refuses releases beyond the allotment (`Ledger(allotted=...)`). So a resumed run is not
charged twice, and a stopped run stays charged.

Guarantees:
    - All runs in the ledger together cost at most the budget, for any one record or client. In a run, one
      client holds a record, and the allotment bounds every client. So the runs' costs add up for each record
      under any partition and seed. They add up for a client only if it has the same records in all runs:
      with unit "client" the digest is of the set of clients, and clients dealt anew are refused.
    - This holds even if each run was chosen after a look at earlier runs. A privacy filter checks it
      (`filtered_epsilon`): Gaussians by mu^2, sampled steps by RDP at one order.
    - It holds for the records, or clients, for which the ledger was made. Others are refused.

The file belongs to the holder of the records, and must not be published. It identifies the records by an HMAC
of their digest. The HMAC's key is in the same file.
"""

from __future__ import annotations

import hmac
import json
import math
import secrets
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dp_accounting import DpEvent

from securefl.accounting.chain import Head, Rows, first, rows_of
from securefl.accounting.composition import filtered_epsilon
from securefl.accounting.events import History, load_charge
from securefl.accounting.figures import counted
from securefl.accounting.note import HeadNote, noted
from securefl.accounting.store import IDENTITY, Terms, lasting, now, read_terms, require_terms, write_terms
from securefl.core.errors import BudgetExceeded, ConfigError, LocalProtocolError
from securefl.storage.database import Damaged, Database, Kind, decoding, explaining, is_empty, require
from securefl.storage.read_only import read

KIND = Kind(
    name="shared ledger",
    tables=(
        "CREATE TABLE terms (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        # `link` is that of the chain over all rows up to this one
        "CREATE TABLE runs (number INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, what TEXT NOT NULL, "
        "charges TEXT NOT NULL, at TEXT NOT NULL, link BLOB NOT NULL) STRICT",
    ),
    lost="The record of what runs over these records have spent is lost with it. Restore it from a backup "
    "that is newer than its last run, or count the budget of these records as spent.",
    anew="count the budget of these records as spent",
)
_SALT, _RECORDS = "salt", "records"
_COLUMNS = "SELECT number, run, what, charges, at, link FROM runs ORDER BY number"


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """An upper bound on the releases of one run from any one client.

    Attributes:
        run: the identity of the run's own ledger.
        what: a description of the run, for people.
        charges: for each charge in its stored form, the largest number of times for one client.
        at: the time of its reservation; "" before it.
    """

    run: str
    what: str
    charges: Mapping[str, int]
    at: str = ""

    @property
    def text(self) -> str:
        """The charges as JSON. Equal charges have equal text."""
        return json.dumps(dict(sorted(self.charges.items())))

    def events(self, party: str) -> Counter[DpEvent]:
        """Return the charges as events against a party."""
        found: Counter[DpEvent] = Counter()
        for charge, count in self.charges.items():
            found[load_charge(charge).by_party()[party]] += count
        return found


@dataclass(frozen=True, kw_only=True)
class SharedRuns:
    """The runs of a shared ledger, and the check of its budget. The order of the runs does not matter."""

    terms: Terms
    entries: tuple[Allotment, ...] = ()

    @property
    def budget(self) -> float:
        assert self.terms.budget is not None
        return self.terms.budget

    def known(self, run: str) -> Allotment | None:
        """Return the allotment of a stored run, or None if the run is not stored."""
        return self._by_run.get(run)

    def epsilon(self, party: str, more: Sequence[Allotment] = ()) -> float:
        """Return the epsilon against a party of all stored runs and these further runs together.

        It is the filter's epsilon, so it holds even if each run was chosen after a look at earlier runs.
        """
        events: Counter[DpEvent] = Counter()
        new = [own for own in more if own.run not in self._by_run]
        for own in (*self._by_run.values(), *new):
            events += own.events(party)
        return filtered_epsilon(History.of(events), self.terms.delta, self.budget)

    def refusal(self, more: Sequence[Allotment]) -> BudgetExceeded | None:
        """Return why the budget refuses these runs, or None if it allows them. A stored run costs nothing."""
        new = [own for own in more if own.run not in self._by_run]
        for party in self.terms.adversaries if new else ():
            after = self.epsilon(party, new)
            if not after <= self.budget:
                held, wanted = counted(len(self.entries), "run"), counted(len(new), "run")
                return BudgetExceeded(
                    f"Expected runs within the budget {self.budget:g} of the shared ledger, beside "
                    f"{held} over the same records, got {wanted} that would raise epsilon against the "
                    f"{party} from {self.epsilon(party):.4g} to {after:.4g}. "
                    "Nothing was released. Choose a smaller `epsilon`, a larger `noise_multiplier`, fewer "
                    "arms, seeds or cells, or other people's records with a ledger of their own."
                )
        return None

    @cached_property
    def _by_run(self) -> Mapping[str, Allotment]:
        return {entry.run: entry for entry in self.entries}


def shared_terms(terms: Terms) -> Terms:
    """Return the terms of a shared ledger for runs under these terms.

    Raises ConfigError unless the budget is finite.
    """
    if terms.budget is None or not terms.budget < math.inf:
        raise ConfigError(
            "Expected a finite `budget` with a shared ledger, because all its runs share it, got none. "
            "Set the largest epsilon that these records may ever be charged."
        )
    # Each run has its own schedule. The parameters of a run may be chosen after a look at the last run.
    return replace(terms, max_releases=None, adaptive=True)


class SharedLedger:
    """The open file of a shared ledger; safe under two processes and kill -9.

        >>> import tempfile
        >>> from securefl import Plan
        >>> from securefl.accounting.shared import SharedLedger, shared_terms
        >>> terms = shared_terms(Plan(delta=1e-5, max_rounds=10, budget=2.0).terms())
        >>> folder = tempfile.TemporaryDirectory()
        >>> with folder as d, SharedLedger(f"{d}/shared", terms, "the digest of their records") as shared:
        ...     shared.runs().epsilon("server")
        0.0

    Args:
        path: the file. If it is missing, it is created, readable by its owner alone.
        terms: the terms of every run in it (see `shared_terms`).
        records: a digest of the records. The file stores an HMAC of it, not the digest.

    Raises:
        ConfigError: if it was made with other terms, or for other records, or `path` is a name of SQLite for
            memory.
        DataError: if it is damaged, is of another version, or has lost a run.
    """

    def __init__(self, path: Path | str, terms: Terms, records: str) -> None:
        self._terms = terms
        self._db, self._note = Database.of(lasting(path), KIND), HeadNote(path)
        try:
            with self._db.explaining():
                before = noted(path)  # read first, because another process may write meanwhile
            with self._db.transaction():
                if not self._db.rows("SELECT name FROM terms"):
                    salt = secrets.token_hex(32)
                    write_terms(self._db, terms, **{_SALT: salt, _RECORDS: _keyed(salt, records)})
                stored = _terms_of(self._db.rows)
                _agree(path, stored, terms, records)
                _entries(self._db.rows, before)
            self._noted()
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> SharedLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def _noted(self) -> None:
        with self._db.explaining():
            self._note.write(_head(self._db.rows))

    @property
    def identity(self) -> str:
        """A random number, drawn when the ledger was made."""
        return _terms_of(self._db.rows)[IDENTITY]

    def runs(self) -> SharedRuns:
        """Return the stored runs."""
        with self._db.explaining():
            return SharedRuns(terms=self._terms, entries=_entries(self._db.rows, None))

    def reserve(self, wants: Sequence[Allotment]) -> None:
        """Reserve whole runs durably: all of them, or none. A stored run is not charged again.

        Raises:
            BudgetExceeded: if the budget does not allow these runs beside the stored ones.
            LocalProtocolError: if a run is stored with another allotment.
        """
        # The note follows the commit: a note ahead of its ledger would make an intact ledger unusable.
        with self._db.transaction(self._noted):
            # Read in the transaction that writes, so that two processes cannot both spend the same remainder.
            stored = SharedRuns(terms=self._terms, entries=_entries(self._db.rows, None))
            new = [own for own in wants if not _stands(stored.known(own.run), own)]
            if (refused := stored.refusal(wants)) is not None:
                raise refused
            for own in new:
                self._insert(own)

    def _insert(self, own: Allotment) -> None:
        parts = (own.run, own.what, own.text, now())
        link = _head(self._db.rows).then(*parts)
        try:
            self._db.run("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", (link.count, *parts, link.digest))
        except sqlite3.IntegrityError:
            raise LocalProtocolError(
                f"Expected each run once, got {own.what!r} twice. Reserve it once."
            ) from None


def runs_of(path: Path, terms: Terms | None = None, records: str = "") -> SharedRuns:
    """Read the shared ledger at `path`, also from a read-only folder.

    Args:
        path: the file. If it is missing and `terms` are given, there are no runs. So it is while another
            process makes the file.
        terms, records: the terms and the records' digest of runs that would be added.

    Raises:
        DataError: if the file is damaged, has lost a run, or is not a shared ledger of this version.
        ConfigError: if it was made with other terms, or for other records.
    """
    if terms is not None and not path.exists():
        return SharedRuns(terms=terms)
    with explaining(path, KIND):
        before = noted(path)  # read first, because a run may begin meanwhile
        found, stored = read(path, lambda db: _stored(db, path, before, terms))
    if terms is not None and stored:
        _agree(path, stored, terms, records)
    return found


def is_shared(path: Path) -> bool:
    """Whether this file has the tables of a shared ledger. The file is not changed."""
    with explaining(path, KIND):
        query = "SELECT name FROM sqlite_master WHERE name = 'runs'"
        return bool(read(path, lambda db: db.execute(query).fetchall()))


def _stored(
    db: sqlite3.Connection, path: Path, before: Head | None, asked: Terms | None
) -> tuple[SharedRuns, Mapping[str, str]]:
    """The stored runs and terms. Before its first terms, a ledger has those that are asked for."""

    rows = rows_of(db)

    # A process that makes a ledger has an empty file first, then tables, then terms, and then a noted head.
    new = SharedRuns(terms=asked) if asked is not None and before is None else None
    if new is not None and is_empty(db):
        return new, {}
    require(db, path, KIND)
    if new is not None and not rows("SELECT 1 FROM terms UNION ALL SELECT 1 FROM runs"):
        return new, {}
    stored = _terms_of(rows)
    return SharedRuns(terms=read_terms(stored), entries=_entries(rows, before)), stored


def _terms_of(rows: Rows) -> dict[str, str]:
    found: dict[str, str] = dict(rows("SELECT name, value FROM terms"))
    if found.keys() != {IDENTITY, _SALT, _RECORDS, *Terms.__dataclass_fields__}:
        raise Damaged("its terms are missing")
    return found


def _head(rows: Rows) -> Head:
    newest = list(rows("SELECT number, link FROM runs ORDER BY number DESC LIMIT 1"))
    return Head(*newest[0]) if newest else first(rows, KIND.name)


def _entries(rows: Rows, before: Head | None) -> tuple[Allotment, ...]:
    """Return all runs after a check of their chain, which must pass through the head `before`."""
    link, found = first(rows, KIND.name), []
    passed = before is None or before == link
    for number, run, what, charges, at, digest in rows(_COLUMNS):
        link = link.then(run, what, charges, at)
        if (link.count, link.digest) != (number, digest):
            raise Damaged(f"its run {number} is not as it was written, or an earlier run is missing")
        passed = passed or link == before
        with decoding():
            counts = {str(charge): int(n) for charge, n in json.loads(charges).items()}
            for charge in counts:
                load_charge(charge)
        found.append(Allotment(run=run, what=what, charges=counts, at=at))
    if not passed:
        raise Damaged("runs before its noted head are missing or changed, or it is an older copy")
    return tuple(found)


def _agree(path: Path | str, stored: Mapping[str, str], terms: Terms, records: str) -> None:
    """Raise ConfigError for other terms than the stored ones, or other records."""
    require_terms(
        stored,
        terms,
        "expected {name} = {made}, with which this shared ledger was made, got {asked}: epsilons under "
        "different terms cannot be added. Set [privacy] {name} to the old value. A new ledger would forget "
        "what these records have spent.",
        f"{path}: ",
    )
    if not hmac.compare_digest(stored[_RECORDS], _keyed(stored[_SALT], records)):
        dealt = (
            " If a study deals them to clients, these are others under another seed, partition or number of "
            "clients: bring back the old ones."
        )
        raise ConfigError(
            f"{path}: expected the records that this shared ledger was made for, got records that its check "
            "does not fit: its budget is for the first alone. For other people's records, name another "
            "ledger. For the same people's records, bring back the old version, because a new ledger would "
            f"forget what they have spent.{dealt if terms.unit == 'client' else ''}"
        )


def _keyed(salt: str, records: str) -> str:
    return hmac.new(bytes.fromhex(salt), records.encode(), "sha256").hexdigest()


def _stands(known: Allotment | None, own: Allotment) -> bool:
    """Whether a run is stored. Raises LocalProtocolError if it is stored with another allotment."""
    if known is not None and known.text != own.text:
        raise LocalProtocolError(
            f"Expected the allotment with which {own.what!r} began, of {sum(known.charges.values())} "
            f"releases, got one of {sum(own.charges.values())} with other charges: its study or this package "
            "has changed since. Bring the old version back, or begin a new run in another folder."
        )
    return known is not None
