"""The shared ledger: one budget for all runs over the same records.

    reserve(allotments)     whole runs in one durable transaction, or a refusal before any of them begins

A run is charged once, before its first release, for all that it may ever release (its *allotment*). The
ledger of the run then lets no more through (`Ledger(allotted=...)`). So a run that is resumed is charged
nothing twice, and a run that is stopped stays charged.

Guarantees:
    - Everything in the ledger together costs at most the budget, for any one record or client. A record is
      with one client of a run, and an allotment bounds every client. So runs add up whoever holds the record
      in which of them, under any partition and seed.
    - It holds if each run was chosen in view of the runs before it. A privacy filter decides (`Filter`):
      Gaussians by mu^2, sampled steps by RDP at one order.
    - It holds for the records that the ledger was made for. Others are refused.

Its file is of the holder of the records, and is not for publication. It says which records it counts by an
HMAC of their digest, whose key stands beside it.
"""

from __future__ import annotations

import hmac
import json
import math
import secrets
import sqlite3
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from securefl.accounting.chain import Head
from securefl.accounting.composition import Filter
from securefl.accounting.events import History, load_charge
from securefl.accounting.note import HeadNote, noted
from securefl.accounting.store import IDENTITY, Terms, now, written
from securefl.core.errors import BudgetExceeded, ConfigError, LocalProtocolError
from securefl.core.renamed import first_words, renamed
from securefl.storage.database import Damaged, Database, Kind, decoding, explaining, require, seal
from securefl.storage.read_only import read

KIND = Kind(
    name="shared ledger",
    version=1,
    tables=(
        "CREATE TABLE terms (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        # `link` is that of the chain over all rows up to this one
        "CREATE TABLE runs (number INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, what TEXT NOT NULL, "
        "charges TEXT NOT NULL, at TEXT NOT NULL, link BLOB NOT NULL) STRICT",
    ),
    lost="What runs over these records have spent is lost with it: restore it from a backup that is newer "
    "than its last run, or count the budget of these records as spent.",
)
_SALT, _RECORDS = "salt", "records"
_COLUMNS = "SELECT number, run, what, charges, at, link FROM runs ORDER BY number"


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """All that one run may release of any one client.

    Attributes:
        run: which run it is: the identity of its own ledger.
        what: the same in words, for people.
        charges: how often each charge, as it is stored, may be made of one client.
    """

    run: str
    what: str
    charges: Mapping[str, int]

    @property
    def text(self) -> str:
        """The charges as JSON, equal for equal ones."""
        return json.dumps({charge: n for charge, n in sorted(self.charges.items()) if n})

    def events(self, party: str) -> Counter[DpEvent]:
        """The same as events against a party."""
        found: Counter[DpEvent] = Counter()
        for charge, count in self.charges.items():
            found[load_charge(charge).by_party()[party]] += count
        return found


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run on file, and the time of its reservation."""

    allotment: Allotment
    at: str


@dataclass(frozen=True, kw_only=True)
class Account:
    """What a shared ledger holds, and what its budget still bears. The order of its runs does not matter."""

    terms: Terms
    entries: tuple[Entry, ...] = ()

    @property
    def budget(self) -> float:
        assert self.terms.budget is not None
        return self.terms.budget

    def known(self, run: str) -> Allotment | None:
        """The allotment of a run that is on file."""
        return self._by_run.get(run)

    def epsilon(self, party: str, more: Sequence[Allotment] = ()) -> float:
        """Epsilon of everything on file together against a party, with these runs beside it.

        It is that of the filter, and so holds if each run was chosen in view of the earlier ones.
        """
        events = self._spent(party)
        for own in more:
            if own.run not in self._by_run:
                events = events + own.events(party)
        return self._filter.epsilon(History.of(events))

    def refusal(self, more: Sequence[Allotment]) -> BudgetExceeded | None:
        """Why the budget does not bear these runs beside those on file, or None. A run on file is free."""
        new = [own for own in more if own.run not in self._by_run]
        for party in self.terms.adversaries if new else ():
            after = self.epsilon(party, new)
            if not after <= self.budget:
                return BudgetExceeded(
                    f"Expected runs that the budget {self.budget:g} of the shared ledger bears beside "
                    f"{_runs(len(self.entries))} over the same records, got {_runs(len(new))} that would "
                    f"bring epsilon against the {party} from {self.epsilon(party):.4g} to {after:.4g}. "
                    "Nothing was released. Take a smaller `epsilon` or `noise_multiplier` of more noise, "
                    "fewer arms, seeds or cells, or other people's records with a ledger of their own."
                )
        return None

    def _spent(self, party: str) -> Counter[DpEvent]:
        found: Counter[DpEvent] = Counter()
        for entry in self.entries:
            found += entry.allotment.events(party)
        return found

    @cached_property
    def _by_run(self) -> Mapping[str, Allotment]:
        return {entry.allotment.run: entry.allotment for entry in self.entries}

    @cached_property
    def _filter(self) -> Filter:
        return Filter(self.budget, self.terms.delta)


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def shared_terms(terms: Terms) -> Terms:
    """The terms of a shared ledger for runs under these terms. Raises ConfigError without a finite budget."""
    if terms.budget is None or not terms.budget < math.inf:
        raise ConfigError(
            "Expected a finite `budget` with a shared ledger, which all its runs spend together, got none. "
            "Set the largest epsilon that these records may ever be charged."
        )
    # Another schedule is another run. Parameters of a run may be chosen after the last one was looked at.
    return replace(terms, max_releases=None, adaptive=True)


class SharedLedger:
    """The open file of a shared ledger; safe under two processes and kill -9.

        >>> from securefl.accounting.shared import SharedLedger, shared_terms
        >>> import securefl
        >>> terms = shared_terms(securefl.Plan(delta=1e-5, max_rounds=10, budget=2.0).terms())
        >>> with SharedLedger("people.sqlite", terms, "the digest of their records") as shared:
        ...     shared.account().epsilon("server")
        0.0

    Args:
        path: the file. It is made if there is none, readable by its owner alone.
        terms: those of every run in it (see `shared_terms`).
        records: a digest of the records that it accounts for. It is not written down, but an HMAC of it.

    Raises:
        ConfigError: it was made with other terms, or for other records.
        DataError: it is damaged, is of another version, or has lost a run.
    """

    def __init__(
        self, path: Path | str, terms: Terms, records: str, *, clock: Callable[[], str] = now
    ) -> None:
        self._clock = clock
        self._terms = terms
        self._db = Database(path, KIND)
        try:
            with self._db.explaining():
                before = noted(path)  # first: another process may go on meanwhile
            with self._changing():
                self._begin(records)
                stored = _terms_of(self._db.rows)
                _agree(path, stored, terms)
                _same_records(path, stored, records)
                _entries(self._db.rows, before)
            with self._db.explaining():
                self._note = HeadNote(path)
                self._note.write(_head(self._db.rows))
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> SharedLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._note.close()
        self._db.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._db.explaining(), self._db.transaction():
            yield

    def _begin(self, records: str) -> None:
        if self._db.rows("SELECT name FROM terms"):
            return
        salt = secrets.token_hex(32)
        own = {IDENTITY: secrets.token_hex(16), _SALT: salt, _RECORDS: _keyed(salt, records)}
        for name, value in {**own, **written(self._terms)}.items():
            self._db.run("INSERT INTO terms VALUES (?, ?)", (name, value))

    def account(self) -> Account:
        """What is on file now."""
        with self._db.explaining():
            return Account(terms=self._terms, entries=_entries(self._db.rows, None))

    def reserve(self, wants: Sequence[Allotment]) -> None:
        """Reserve whole runs durably: all, or none. A run that is on file is not charged again.

        Raises:
            BudgetExceeded: the budget does not bear them beside the runs on file.
            LocalProtocolError: a run is on file with another allotment.
        """
        with self._changing():
            # Read in the transaction that writes: two processes at once cannot both find the last of it.
            account = Account(terms=self._terms, entries=_entries(self._db.rows, None))
            for own in wants:
                _require_alike(account.known(own.run), own)
            refused = account.refusal(wants)
            if refused is not None:
                raise refused
            for own in wants:
                if account.known(own.run) is None:
                    self._insert(own)
        # After the commit, never before: a note ahead of its ledger would refuse an honest one for ever.
        with self._db.explaining():
            self._note.write(_head(self._db.rows))

    def _insert(self, own: Allotment) -> None:
        parts = (own.run, own.what, own.text, self._clock())
        link = _head(self._db.rows).then(*parts)
        try:
            self._db.run("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", (link.count, *parts, link.digest))
        except sqlite3.IntegrityError:
            raise LocalProtocolError(
                f"Expected each run once, got {own.what!r} twice. Reserve it once."
            ) from None


def account_of(path: Path, terms: Terms | None = None, records: str = "") -> Account:
    """What the shared ledger at `path` holds. It is only read, wherever it is.

    terms, records: those of runs that would go into it. Without a file there is then an empty account.
    Raises DataError if the file is damaged, has lost a run, or is not a shared ledger of this version, and
    ConfigError if it was made with other terms, or for other records.
    """
    if terms is not None and not path.exists():
        return Account(terms=terms)
    with explaining(path, KIND):
        before = noted(path)  # first: a run may begin meanwhile
        found, stored = read(path, lambda db: _stored(db, path, before))
    if terms is not None:
        _agree(path, stored, terms)
        _same_records(path, stored, records)
    return found


def is_shared(path: Path) -> bool:
    """Whether this file has the tables of a shared ledger. It is only read."""
    with explaining(path, KIND):
        query = "SELECT name FROM sqlite_master WHERE name = 'runs'"
        return bool(read(path, lambda db: db.execute(query).fetchall()))


def _stored(db: sqlite3.Connection, path: Path, before: Head | None) -> tuple[Account, Mapping[str, str]]:
    def rows(query: str) -> list[tuple[Any, ...]]:
        return db.execute(query).fetchall()

    db.execute("BEGIN")  # one state of the ledger, also while another process writes
    require(db, path, KIND)
    stored = _terms_of(rows)
    with decoding():
        names = Terms.__dataclass_fields__
        terms = Terms(**{name: literal_eval(value) for name, value in stored.items() if name in names})
    return Account(terms=terms, entries=_entries(rows, before)), stored


_Rows = Callable[[str], Iterable[tuple[Any, ...]]]


def _terms_of(rows: _Rows) -> dict[str, str]:
    found: dict[str, str] = dict(rows("SELECT name, value FROM terms"))
    if found.keys() != {IDENTITY, _SALT, _RECORDS, *first_words(Terms)}:
        raise Damaged("its terms are gone")
    return found


def _first(rows: _Rows) -> Head:
    """The link before the first run: the ledger's identity, terms and records."""
    terms = rows("SELECT name, value FROM terms ORDER BY name")
    return Head(0, seal("shared ledger", *(text for row in terms for text in row)))


def _head(rows: _Rows) -> Head:
    newest = list(rows("SELECT number, link FROM runs ORDER BY number DESC LIMIT 1"))
    return Head(*newest[0]) if newest else _first(rows)


def _entries(rows: _Rows, before: Head | None) -> tuple[Entry, ...]:
    """All runs, once they were found to be those that were written, and to pass through the head `before`."""
    link, found = _first(rows), []
    passed = before is None or before == link
    for number, run, what, charges, at, digest in rows(_COLUMNS):
        link = link.then(run, what, charges, at)
        if (link.count, link.digest) != (number, digest):
            raise Damaged(f"its run {number} is not as it was written, or one before it is gone")
        passed = passed or link == before
        with decoding():
            counts = {str(charge): int(n) for charge, n in json.loads(charges).items()}
            for charge in counts:
                load_charge(charge)
        found.append(Entry(allotment=Allotment(run=run, what=what, charges=counts), at=at))
    if not passed:
        raise Damaged("runs that were noted of it are missing or changed, or it is an older copy")
    return tuple(found)


def _agree(path: Path | str, stored: Mapping[str, str], terms: Terms) -> None:
    for name, asked in written(terms).items():
        if stored[name] != asked:
            raise ConfigError(
                f"{path}: expected {name} = {stored[name]}, with which this shared ledger was made, got "
                f"{asked}: epsilons of different promises do not add up. Set [privacy] "
                f"{renamed(Terms).get(name, name)} to the old "
                "value. A new ledger would forget what these records have spent."
            )


def _same_records(path: Path | str, stored: Mapping[str, str], records: str) -> None:
    if not hmac.compare_digest(stored[_RECORDS], _keyed(stored[_SALT], records)):
        raise ConfigError(
            f"{path}: expected the records that this shared ledger was made for, got others: its budget is "
            "theirs alone. For other people's records name another ledger. For the same people's, bring back "
            "the records as they were, since a new ledger would forget what they have spent."
        )


def _keyed(salt: str, records: str) -> str:
    return hmac.new(bytes.fromhex(salt), records.encode(), "sha256").hexdigest()


def _require_alike(known: Allotment | None, own: Allotment) -> None:
    if known is not None and known.text != own.text:
        raise LocalProtocolError(
            f"Expected the allotment with which {own.what!r} began, got another: its study or this package "
            "was changed since. Bring the old one back, or begin a new run in another folder."
        )
