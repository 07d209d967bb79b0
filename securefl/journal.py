"""The record of what parties did, on disk before it is done: the rules of `acts` in one SQLite file."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from securefl.accounting.store import durable
from securefl.acts import Begin, Record
from securefl.agreement import Question
from securefl.errors import DataError
from securefl.keys import SecretKey

_SCHEMA = """
CREATE TABLE IF NOT EXISTS journal (only INTEGER PRIMARY KEY CHECK (only = 1), identity TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS parties (
    party TEXT, session BLOB, round INTEGER NOT NULL, secret BLOB NOT NULL, PRIMARY KEY (party, session)
) STRICT;
CREATE TABLE IF NOT EXISTS lasting (
    party TEXT, session BLOB, secret BLOB NOT NULL, PRIMARY KEY (party, session)
) STRICT;
CREATE TABLE IF NOT EXISTS cohorts (digest BLOB PRIMARY KEY, members TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS questions (
    party TEXT, session BLOB, round INTEGER, name TEXT, ask INTEGER, again INTEGER,
    once INTEGER NOT NULL, cohort BLOB NOT NULL, signers INTEGER NOT NULL,
    at_round INTEGER NOT NULL, at_stage INTEGER NOT NULL, at_attempt INTEGER NOT NULL, context BLOB NOT NULL,
    dealt BLOB, masked BLOB, signed BLOB,
    PRIMARY KEY (party, session, round, name, ask, again)
) STRICT;
"""
_KEY = "party = ? AND session = ? AND round = ? AND name = ? AND ask = ? AND again = ?"
_COLUMNS = {"deal": "dealt", "mask": "masked", "sign": "signed"}
Answer = SecretKey | None | bool


class _Row(NamedTuple):
    """What stands of a question: its first cohort and signers, the newest attempt, and the acts in that."""

    once: bool
    cohort: bytes
    signers: int
    at: tuple[int, int, int]
    context: bytes
    acts: dict[str, bytes | None]


class Journal:
    """The acts of all parties at hand; safe under two processes and kill -9.

    A restored copy forgets what came after it: a party that restores one begins a new session.

    random: of the secrets; the operating system's outside of tests.
    """

    def __init__(self, path: Path | str = ":memory:", *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._random = random
        self._db = durable(path, _SCHEMA)
        # The secret of a finished round opens what was sent in it: it is overwritten, not only forgotten.
        self._db.execute("PRAGMA secure_delete = ON")

    @property
    def identity(self) -> str:
        """Drawn when the journal was made: a lost one that is begun anew is another one."""
        fresh = os.urandom(16).hex()
        self._db.execute("INSERT OR IGNORE INTO journal VALUES (1, ?)", (fresh,))
        return str(self._db.execute("SELECT identity FROM journal").fetchone()[0])

    def newest(self, session: bytes) -> int:
        """The newest round of a session that any party has seen; 0 for none."""
        query = "SELECT COALESCE(MAX(round), 0) FROM parties WHERE session = ?"
        return int(self._db.execute(query, (session,)).fetchone()[0])

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, acts: Sequence[Begin | Record]) -> list[Answer]:
        """Write a wave of acts in one durable transaction; what each is answered with (see `acts`).

        DataError where the disk refuses: then nothing was written, and nothing is done.
        """
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                return [self._begin(act) if isinstance(act, Begin) else self._do(act) for act in acts]
        except sqlite3.DatabaseError as error:
            raise DataError(f"The journal cannot be written ({error}); nothing was done.") from None

    def lasting(self, parties: Sequence[str], session: bytes) -> list[SecretKey]:
        """What each party's own keys are made from, the same for the whole session, durably."""
        query = "SELECT secret FROM lasting WHERE party = ? AND session = ?"
        rows = [(party, session, self._random(32)) for party in parties]
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany("INSERT OR IGNORE INTO lasting VALUES (?, ?, ?)", rows)
                found = [self._db.execute(query, row[:2]).fetchone()[0] for row in rows]
        except sqlite3.DatabaseError as error:
            raise DataError(f"The journal cannot be written ({error}); nothing was done.") from None
        return [SecretKey(secret) for secret in found]

    def secrets(self, parties: Sequence[str], session: bytes, number: int) -> list[SecretKey | None]:
        """What each party draws from in a round, durably; None for a round below its newest."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                return [self._secret(party, session, number) for party in parties]
        except sqlite3.DatabaseError as error:
            raise DataError(f"The journal cannot be written ({error}); nothing was done.") from None

    # Entering an attempt ----------------------------------------------------------------------------

    def _begin(self, act: Begin) -> SecretKey | None:
        secret = self._secret(act.client, act.header.session, act.header.round)
        if secret is None or not all(self._may_enter(act, question) for question in act.questions):
            return None
        cohort = self._cohort(act.members)
        for question in act.questions:
            self._enter(act, question, cohort)
        return secret

    def _secret(self, party: str, session: bytes, number: int) -> SecretKey | None:
        row = self._db.execute(
            "SELECT round, secret FROM parties WHERE party = ? AND session = ?", (party, session)
        ).fetchone()
        if row is not None and row[0] >= number:
            return SecretKey(row[1]) if row[0] == number else None
        fresh = self._random(32)
        self._db.execute(
            "INSERT OR REPLACE INTO parties VALUES (?, ?, ?, ?)", (party, session, number, fresh)
        )
        # Rounds go up, so what was asked in an earlier one is never asked again; a value that cannot change
        # may be.
        self._db.execute(
            "DELETE FROM questions WHERE party = ? AND session = ? AND round > 0 AND round < ? AND NOT once",
            (party, session, number),
        )
        return SecretKey(fresh)

    def _may_enter(self, act: Begin, question: Question) -> bool:
        here = act.header.place()
        if question.name in act.once and self._elsewhere(act.client, question, here):
            return False
        row = self._row(act.client, question)
        if row is None:
            return True
        if here == row.at:
            return row.context == act.context
        return (
            here > row.at
            and row.acts["sign"] is None
            and act.signers >= row.signers
            and self._within(act.members, row.cohort)
        )

    def _elsewhere(self, party: str, question: Question, here: tuple[int, int, int]) -> bool:
        """Whether this value, which cannot change, was signed in another round or ask, or entered later."""
        query = (
            "SELECT COUNT(*) FROM questions WHERE party = ? AND session = ? AND name = ? AND again = ? "
            "AND (round, ask) != (?, ?) "
            "AND (signed IS NOT NULL OR (at_round, at_stage, at_attempt) >= (?, ?, ?))"
        )
        same = (party, question.session, question.name, question.again)
        return bool(self._db.execute(query, (*same, question.round, question.ask, *here)).fetchone()[0])

    def _enter(self, act: Begin, question: Question, cohort: bytes) -> None:
        row = self._row(act.client, question)
        at = act.header.place()
        if row is None:
            key = (act.client, *_key(question))
            rest = (question.name in act.once, cohort, act.signers, *at, act.context)
            self._db.execute(
                f"INSERT INTO questions VALUES ({', '.join('?' * 13)}, NULL, NULL, NULL)", (*key, *rest)
            )
        elif row.at != at:
            self._db.execute(
                "UPDATE questions SET at_round = ?, at_stage = ?, at_attempt = ?, context = ?, dealt = NULL, "
                f"masked = NULL WHERE {_KEY}",
                (*at, act.context, act.client, *_key(question)),
            )

    def _cohort(self, members: Sequence[str]) -> bytes:
        """The digest under which a cohort stands, once for all of its members at hand."""
        written = json.dumps(sorted(members))
        digest = hashlib.sha256(written.encode()).digest()
        self._db.execute("INSERT OR IGNORE INTO cohorts VALUES (?, ?)", (digest, written))
        return digest

    def _within(self, members: Sequence[str], cohort: bytes) -> bool:
        (written,) = self._db.execute("SELECT members FROM cohorts WHERE digest = ?", (cohort,)).fetchone()
        return set(members) <= set(json.loads(written))

    # In the newest attempt --------------------------------------------------------------------------

    def _do(self, act: Record) -> bool:
        if act.act == "open":
            return all(self._open(act, question) for question in act.questions)
        if not all(self._may_do(act, question) for question in act.questions):
            return False
        for question in act.questions:
            self._db.execute(
                f"UPDATE questions SET {_COLUMNS[act.act]} = ? WHERE {_KEY}",
                (act.digest, act.client, *_key(question)),
            )
        return True

    def _may_do(self, act: Record, question: Question) -> bool:
        row, here = self._row(act.client, question), act.header.place()
        if row is None or row.at != here or row.acts[act.act] not in (None, act.digest):
            return False
        # The attempt of an earlier round may still be waiting for this signature.
        return not (row.once and self._elsewhere(act.client, question, here))

    def _open(self, act: Record, question: Question) -> bool:
        """One total of a question is opened, whatever attempt asks for it."""
        if self._secret(act.client, act.header.session, act.header.round) is None:
            return False
        row = self._row(act.client, question)
        if row is None:
            key = (act.client, *_key(question))
            self._db.execute(
                f"INSERT INTO questions VALUES ({', '.join('?' * 14)}, NULL, NULL)",
                (*key, False, b"", 0, *act.header.place(), act.digest, act.digest),
            )
            return True
        return row.acts["deal"] == act.digest

    def _row(self, party: str, question: Question) -> _Row | None:
        query = (
            "SELECT once, cohort, signers, at_round, at_stage, at_attempt, context, dealt, masked, signed "
            f"FROM questions WHERE {_KEY}"
        )
        found = self._db.execute(query, (party, *_key(question))).fetchone()
        if found is None:
            return None
        once, cohort, signers, *at, context = found[:7]
        acts = dict(zip(_COLUMNS, found[7:], strict=True))
        return _Row(bool(once), cohort, signers, (at[0], at[1], at[2]), context, acts)


def _key(question: Question) -> tuple[bytes, int, str, int, int]:
    return (question.session, question.round, question.name, question.ask, question.again)
