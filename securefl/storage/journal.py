"""The journal: a durable record of the parties' acts, written before each act. `core.acts` has the rules.

In a round whose parties are all in one process, the record is on disk before the round's releases leave that
process (`accounting.ledger`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Question
from securefl.core.keys import SecretKey
from securefl.core.wire import Header
from securefl.storage.database import Damaged, Database, Kind, Value

KIND = Kind(
    name="journal",
    tables=(
        "CREATE TABLE journal (only INTEGER PRIMARY KEY CHECK (only = 1), identity TEXT NOT NULL) STRICT",
        "CREATE TABLE parties (party TEXT, session BLOB, round INTEGER NOT NULL, secret BLOB NOT NULL, "
        "seal BLOB NOT NULL, PRIMARY KEY (party, session)) STRICT",
        "CREATE TABLE lasting (party TEXT, session BLOB, secret BLOB NOT NULL, seal BLOB NOT NULL, "
        "PRIMARY KEY (party, session)) STRICT",
        "CREATE TABLE totals (party TEXT, session BLOB, total INTEGER NOT NULL, seal BLOB NOT NULL, "
        "PRIMARY KEY (party, session)) STRICT",
        "CREATE TABLE said (party TEXT, session BLOB, round INTEGER, name TEXT, content BLOB NOT NULL, "
        "seal BLOB NOT NULL, PRIMARY KEY (party, session, round, name)) STRICT",
        "CREATE TABLE cohorts (digest BLOB PRIMARY KEY, members TEXT NOT NULL) STRICT",
        "CREATE TABLE questions (party TEXT, session BLOB, round INTEGER, name TEXT, initial INTEGER, "
        "again INTEGER, once INTEGER NOT NULL, cohort BLOB NOT NULL, signers INTEGER NOT NULL, "
        "at_round INTEGER NOT NULL, at_stage INTEGER NOT NULL, at_attempt INTEGER NOT NULL, "
        "signed INTEGER NOT NULL, seal BLOB NOT NULL, "
        "PRIMARY KEY (party, session, round, name, initial, again)) STRICT",
        "CREATE TABLE attempts (party TEXT, session BLOB, round INTEGER, name TEXT, initial INTEGER, "
        "again INTEGER, at_round INTEGER, at_stage INTEGER, at_attempt INTEGER, context BLOB NOT NULL, "
        "dealt BLOB, masked BLOB, signed BLOB, seal BLOB NOT NULL, "
        "PRIMARY KEY (party, session, round, name, initial, again, at_round, at_stage, at_attempt)) STRICT",
        "CREATE TABLE rows (party TEXT, session BLOB, round INTEGER, name TEXT, before INTEGER NOT NULL, "
        "digest BLOB NOT NULL, seal BLOB NOT NULL, PRIMARY KEY (party, session, round, name)) STRICT",
        "CREATE TABLE opened (party TEXT, session BLOB, round INTEGER, name TEXT, initial INTEGER, "
        "again INTEGER, digest BLOB NOT NULL, seal BLOB NOT NULL, "
        "PRIMARY KEY (party, session, round, name, initial, again)) STRICT",
    ),
    lost="The record of its parties' acts in the current round is lost with it, and without that record they "
    "could contradict themselves: restore its whole folder from one backup, or begin a new run in another "
    "folder.",
)
_KEY = ("party", "session", "round", "name", "initial", "again", "at_round", "at_stage", "at_attempt")
"""The columns of the longest key. A table's key is the first of them, and comes first in it."""
_KEYS = {
    "parties": 2,
    "lasting": 2,
    "totals": 2,
    "said": 4,
    "rows": 4,
    "questions": 6,
    "attempts": 9,
    "opened": 6,
}
"""How many columns are a table's key."""
_ACTS = {"deal": 1, "mask": 2, "sign": 3}
"""The place of an act's digest in the list that `_attempt` gives."""
Answer = SecretKey | None | bool


class _Row(NamedTuple):
    """A question on record: its first cohort and signers, its newest attempt, and whether one was signed."""

    once: int
    cohort: bytes
    signers: int
    at_round: int
    at_stage: int
    at_attempt: int
    signed: int

    @property
    def at(self) -> tuple[int, int, int]:
        return self.at_round, self.at_stage, self.at_attempt


class Journal:
    """The acts of all parties of this process. Safe under two processes and kill -9.

    A restored backup lacks the later acts, so a party that restores one must begin a new session.

    random: the source of secrets; outside of tests, the operating system's.
    """

    def __init__(
        self, path: Path | str | Database = ":memory:", *, random: Callable[[int], bytes] = os.urandom
    ) -> None:
        self._random = random
        self._totals: dict[tuple[str, bytes], int] = {}
        # By party: the rows that were read or written in the open transaction, by table and key.
        self._seen: dict[str, dict[tuple[Any, ...], tuple[Any, ...] | None]] = {}
        self._db = Database.of(path, KIND)
        try:
            # The secret of a finished round opens the round's messages, so SQLite overwrites deleted rows.
            self._db.rows("PRAGMA secure_delete = ON")
            self._db.run("INSERT OR IGNORE INTO journal VALUES (1, ?)", (os.urandom(16).hex(),))
        except BaseException:
            self._db.close()
            raise

    @property
    def identity(self) -> str:
        """A random number, drawn when the journal was made. A replacement has another number."""
        return str(self._db.rows("SELECT identity FROM journal")[0][0])

    def sessions(self) -> list[bytes]:
        """All sessions that a party of this journal has entered."""
        return [bytes(row[0]) for row in self._db.rows("SELECT DISTINCT session FROM parties")]

    def newest(self, session: bytes, party: str | None = None) -> int:
        """The newest round of a session that any party has seen, or 0.

        party: if given, only this party counts.
        """
        own = () if party is None else (party,)
        query = f"SELECT COALESCE(MAX(round), 0) FROM parties WHERE session = ?{' AND party = ?' * len(own)}"
        return int(self._db.rows(query, (session, *own))[0][0])

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, acts: Sequence[Begin | RecordAct]) -> list[Answer]:
        """Write a batch of acts in one durable transaction, and return the answer to each (see `acts`).

        Raises DataError if the write fails. Then no act is recorded, and the parties must do none of them.
        """
        known: dict[tuple[str, ...], bytes] = {}
        with self._transaction():
            return [self._begin(act, known) if isinstance(act, Begin) else self._do(act) for act in acts]

    def lasting(self, parties: Sequence[str], session: bytes) -> list[SecretKey]:
        """Return the stored secrets of the parties' own keys. They stay the same for the whole session."""
        with self._transaction():
            return [self._lasting(party, session) for party in parties]

    def secrets(self, parties: Sequence[str], session: bytes, number: int) -> list[SecretKey | None]:
        """Return the parties' stored secrets for a round's draws. None for a round below the newest."""
        with self._transaction():
            return [self._secret(party, session, number) for party in parties]

    def totals(self, parties: Sequence[str], session: bytes, told: Sequence[int]) -> list[int]:
        """For each party, the first number n of all records that the server told it in this session.

        The number is stored. told: the number that the server tells each party now. It counts if it is the
        first.
        """
        known = [(party, session) for party in parties]
        if all(place in self._totals for place in known):  # saves a commit in every round
            return [self._totals[place] for place in known]
        with self._transaction():
            found = [self._total(*place, now) for place, now in zip(known, told, strict=True)]
        # Only after the commit: a number whose write was rolled back does not count.
        self._totals |= dict(zip(known, found, strict=True))
        return found

    def _total(self, party: str, session: bytes, told: int) -> int:
        row = self._read("totals", party, session)
        if row is None:
            row = (party, session, told)
            self._write("totals", *row)
        return int(row[-1])

    def said(self, party: str, at: Header, name: str, make: Callable[[], bytes]) -> bytes:
        """The bytes that a party sends under this name in a round.

        They are made once, are on disk before they are sent, and stay the same. This is for bytes that cannot
        be derived from a secret again, such as ciphertexts. Those of earlier rounds are deleted.
        """
        key = (party, at.session, at.round, name)
        with self._transaction():
            found = self._read("said", *key)
            if found is None:
                self._db.run(
                    "DELETE FROM said WHERE party = ? AND session = ? AND round < ?", (party, *key[1:3])
                )
                found = (*key, make())
                self._write("said", *found)
            content: bytes = found[-1]
            return content

    def row(self, party: str, at: Header, name: str, digest: bytes) -> int | None:
        """Bind a party's row of correlated noise, of this value and round, to one total by its digest.

        Returns the newest row before it that is bound, 0 if none is. None if the row is bound to another
        total, or a later row is bound: a second total of a row must get no noise. Rows are never deleted.
        """
        key = (party, at.session, at.round, name)
        with self._transaction():
            stands = self._read("rows", *key)
            if stands is None:
                query = "SELECT MAX(round) FROM rows WHERE party = ? AND session = ? AND name = ?"
                ((newest,),) = self._db.rows(query, (party, at.session, name))
                if newest is not None and newest > at.round:
                    return None
                if newest is not None:
                    self._read("rows", party, at.session, newest, name)  # checks its seal
                stands = (*key, newest or 0, digest)
                self._write("rows", *stands)
            return int(stands[4]) if stands[5] == digest else None

    # Rows -------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction, or a step of the round's one (`Database.together`).

        Within it nobody else can write, so a row is read and its seal checked once.
        """
        try:
            with self._db.transaction(self._seen.clear):
                yield
        except BaseException:
            self._seen.clear()  # what was written is undone
            raise

    def _read(self, table: str, *key: Value) -> tuple[Any, ...] | None:
        """A row without its seal, which is checked, or None if there is no row."""
        seen, place = self._seen.setdefault(str(key[0]), {}), (table, *key)
        if place not in seen:
            where = " AND ".join(f"{column} = ?" for column in _KEY[: _KEYS[table]])
            rows = self._db.sealed(f"SELECT * FROM {table} WHERE {where}", key, (table,))
            seen[place] = rows[0] if rows else None
        return seen[place]

    def _write(self, table: str, *values: Value) -> None:
        """Write a row with its seal, in place of the row under its key."""
        self._db.put(f"INSERT OR REPLACE INTO {table}", *values, label=(table,))
        self._seen.setdefault(str(values[0]), {})[(table, *values[: _KEYS[table]])] = values

    def _lasting(self, party: str, session: bytes) -> SecretKey:
        found = self._read("lasting", party, session)
        if found is None:
            found = (party, session, self._random(32))
            self._write("lasting", *found)
        return SecretKey(found[-1])

    def _secret(self, party: str, session: bytes, number: int) -> SecretKey | None:
        found = self._read("parties", party, session)
        if found is not None and found[2] >= number:
            return SecretKey(found[3]) if found[2] == number else None
        fresh = self._random(32)
        self._seen.pop(party, None)
        self._write("parties", party, session, number, fresh)
        # Rounds go up, so a question of an earlier round is never asked again, and its rows are deleted. A
        # constant value may be asked for again, so its rows stay.
        here = (party, session, number)
        over = "party = ? AND session = ? AND round > 0 AND round < ?"
        self._db.run(f"DELETE FROM questions WHERE {over} AND NOT once", here)
        self._db.run(f"DELETE FROM opened WHERE {over}", here)
        self._db.run("DELETE FROM attempts WHERE party = ? AND session = ? AND at_round < ?", here)
        return SecretKey(fresh)

    # Entering an attempt ----------------------------------------------------------------------------

    def _begin(self, act: Begin, known: dict[tuple[str, ...], bytes]) -> SecretKey | None:
        secret = self._secret(act.client, act.header.session, act.header.round)
        if secret is None or not all(self._may_enter(act, question) for question in act.questions):
            return None
        # The clients of a simulation enter together: their cohort is written once, not once for each of them.
        if (cohort := known.get(act.members)) is None:
            cohort = known[act.members] = self._cohort(act.members)
        for question in act.questions:
            self._enter(act, question, cohort)
        return secret

    def _may_enter(self, act: Begin, question: Question) -> bool:
        here = act.header.place()
        # After a restart the same attempt may begin again, but not with another agreement.
        if (attempt := self._attempt(act.client, question, here)) is not None:
            return bool(attempt[0] == act.context)
        if question.name in act.once and self._elsewhere(act.client, question, here):
            return False
        row = self._row(act.client, question)
        return row is None or (
            here > row.at
            and not row.signed
            and act.signers >= row.signers
            and self._within(act.members, row.cohort)
        )

    def _elsewhere(self, party: str, question: Question, here: tuple[int, int, int]) -> bool:
        """Whether this constant value was signed in another round or query, or entered at a later place."""
        where = "party = ? AND session = ? AND name = ? AND again = ? AND (round, initial) != (?, ?)"
        same = (party, question.session, question.name, question.again, question.round, question.ask)
        # Each row's seal is checked: after a flipped bit, a row could say that nothing was signed.
        rows = self._db.sealed(f"SELECT * FROM questions WHERE {where}", same, ("questions",))
        others = [_Row(*row[6:]) for row in rows]
        return any(other.signed or other.at >= here for other in others)

    def _enter(self, act: Begin, question: Question, cohort: bytes) -> None:
        here, key = act.header.place(), (act.client, *_key(question))
        if self._attempt(act.client, question, here) is not None:
            return
        fresh = _Row(int(question.name in act.once), cohort, act.signers, *here, signed=0)
        row = self._row(act.client, question) or fresh
        self._write("questions", *key, row.once, row.cohort, row.signers, *here, row.signed)
        self._write("attempts", *key, *here, act.context, None, None, None)

    def _cohort(self, members: Sequence[str]) -> bytes:
        """Store a cohort and return its digest. Its members in this process share the row."""
        written = json.dumps(sorted(members))
        digest = hashlib.sha256(written.encode()).digest()
        self._db.run("INSERT OR IGNORE INTO cohorts VALUES (?, ?)", (digest, written))
        return digest

    def _within(self, members: Sequence[str], cohort: bytes) -> bool:
        found = self._db.rows("SELECT members FROM cohorts WHERE digest = ?", (cohort,))
        if not found:
            raise Damaged("a cohort is missing")
        ((written,),) = found
        if hashlib.sha256(written.encode()).digest() != cohort:
            raise Damaged("a cohort is not as it was written")
        return set(members) <= set(json.loads(written))

    # In an attempt ----------------------------------------------------------------------------------

    def _do(self, act: RecordAct) -> bool:
        if act.act == "open":
            return self._open(act)
        stand = []
        for question in act.questions:
            if (found := self._may_do(act, question)) is None:
                return False
            stand.append((question, *found))
        for own in stand:
            self._done(act, *own)
        return True

    def _may_do(self, act: RecordAct, question: Question) -> tuple[list[Any], _Row] | None:
        """The attempt and the question on record, or None if the act must not be done."""
        here = act.header.place()
        attempt, row = self._attempt(act.client, question, here), self._row(act.client, question)
        if attempt is None or row is None:
            return None
        if (stands := attempt[_ACTS[act.act]]) is not None:
            may = stands == act.digest
        else:
            # The attempt of an earlier round may still be waiting for this signature.
            may = row.at == here and not (row.once and self._elsewhere(act.client, question, here))
        return (attempt, row) if may else None

    def _done(self, act: RecordAct, question: Question, attempt: list[Any], row: _Row) -> None:
        here, key = act.header.place(), (act.client, *_key(question))
        attempt[_ACTS[act.act]] = act.digest
        self._write("attempts", *key, *here, *attempt)
        if act.act == "sign":
            self._write("questions", *key, *row._replace(signed=1))

    def _open(self, act: RecordAct) -> bool:
        """Record that one total of each question is opened: of all the questions, or of none."""
        if self._secret(act.client, act.header.session, act.header.round) is None:
            return False
        keys = [(act.client, *_key(question)) for question in act.questions]
        stand = [self._read("opened", *key) for key in keys]
        if any(row is not None and row[-1] != act.digest for row in stand):
            return False
        for key, row in zip(keys, stand, strict=True):
            if row is None:
                self._write("opened", *key, act.digest)
        return True

    def _row(self, party: str, question: Question) -> _Row | None:
        found = self._read("questions", party, *_key(question))
        return None if found is None else _Row(*found[6:])

    def _attempt(self, party: str, question: Question, at: tuple[int, int, int]) -> list[Any] | None:
        """The context of one attempt at a question, and the digests of its acts deal, mask and sign."""
        found = self._read("attempts", party, *_key(question), *at)
        return None if found is None else list(found[9:])


def _key(question: Question) -> tuple[bytes, int, str, int, int]:
    return (question.session, question.round, question.name, question.ask, question.again)
