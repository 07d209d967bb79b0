"""The checkpoint of a run: the newest state, the client states, and the record of every finished round."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securefl.accounting.composition import falls_short
from securefl.accounting.ledger import Head, Ledger
from securefl.algorithm.clients import State
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState
from securefl.core.arrays import packed, unpacked
from securefl.core.errors import DataError, LocalProtocolError
from securefl.core.release import PARTIES
from securefl.core.text_safety import excerpt
from securefl.engine.account import CountedQuery
from securefl.engine.attendance import Seen
from securefl.storage.database import (
    Damaged,
    Database,
    Kind,
    check,
    decoding,
    explaining,
    is_empty,
    require_version,
    seal,
)
from securefl.storage.journal import Journal
from securefl.storage.read_only import read
from securefl.training.reached_code import UNKNOWN

if TYPE_CHECKING:
    from pydantic import TypeAdapter

KIND = Kind(
    name="checkpoint",
    tables=(
        "CREATE TABLE bound (name TEXT PRIMARY KEY, value TEXT NOT NULL, seal BLOB NOT NULL) STRICT",
        "CREATE TABLE rounds (round INTEGER PRIMARY KEY, record TEXT NOT NULL, seal BLOB NOT NULL) STRICT",
        "CREATE TABLE client_states (client INTEGER PRIMARY KEY, arrays BLOB NOT NULL, seal BLOB NOT NULL) "
        "STRICT",
        # `clients` is over all rows of `client_states`
        "CREATE TABLE state (round INTEGER PRIMARY KEY, arrays BLOB NOT NULL, clients BLOB NOT NULL, "
        "seal BLOB NOT NULL) STRICT",
    ),
    lost="The finished rounds are lost with it, and the ledger beside it still counts what they released: "
    "restore the folder it is in from one backup, or begin a new run in another folder.",
)
_SESSION = "session"
_OWN = {
    "data": "records",
    "data_code": "code that makes the records",
    "features": "features, of another network",
    "model": "values and layers of the model",
    "model_code": "code that makes the model",
    "protocol_code": "code of an arm's protocol",
    "weights": "initial weights",
    "split": "keys of its splits, or another version of them",
}
"""Words for the objects that a run may bind by digest, by the digest's name."""
_NONE = "none"
_MODULUS = 2**256


def rounds_in(path: Path) -> int:
    """The number of finished rounds in a checkpoint, 0 without a file. Only reads, also during a run.

    Raises DataError if the file is damaged or of another version.
    """
    if not path.is_file():
        return 0
    with explaining(path, KIND):
        return read(path, lambda db: _rounds(db, path))


def _rounds(db: sqlite3.Connection, path: Path) -> int:
    if is_empty(db):
        return 0
    require_version(db, path, KIND)
    return int(db.execute("SELECT COUNT(*) FROM rounds").fetchone()[0])


class Checkpoint:
    """One SQLite file for each arm and seed. A round is written in one transaction."""

    def __init__(self, path: Path | Database) -> None:
        self._db = Database.of(path, KIND)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def explaining(self) -> AbstractContextManager[None]:
        """Turn faults in the file's contents into a DataError that names the file (see `database`)."""
        return self._db.explaining()

    def nonce(self) -> bytes:
        """The run's 32 random bytes. The first call draws them."""
        with self._db.transaction():
            bound = self._bound()
            if _SESSION not in bound:
                self._bind(_SESSION, secrets.token_hex(32))
            return bytes.fromhex(self._bound()[_SESSION])

    def bind(self, **identities: str) -> None:
        """Bind the run to its study, arm and seed, its ledger and journal, and its own records and model.

        Raises DataError if one of the names had another value when the run began. If a name of `_OWN` is left
        out, the run must have begun without it.
        """
        # A single file could be lost and created anew. A new ledger would not count earlier releases, and a
        # new journal would not know which sums were opened.
        with self._db.transaction():
            bound = self._bound()
            if not bound.keys() - {_SESSION} and not self._db.rows("SELECT round FROM rounds"):
                for name, value in identities.items():
                    self._bind(name, value)
                bound = self._bound()
            if gone := identities.keys() - bound.keys() - _OWN.keys():
                raise Damaged(f"its {', '.join(sorted(gone))} is missing")
        for name in (*identities, *_OWN):
            began, now = bound.get(name, _NONE), identities.get(name, _NONE)
            if began != now:
                raise DataError(self._another(name, began, now))

    def _another(self, name: str, began: str, now: str) -> str:
        if name in ("ledger", "journal"):
            return (
                f"The {name} beside {self._db.path} is not the one that the run began with: it was lost or "
                "replaced, and its account of releases with it. Restore it, or begin a new run elsewhere."
            )
        if now.startswith(UNKNOWN):
            return (
                f"Expected the {_OWN[name]} with which {self._db.path} began, got code that cannot be "
                f"compared with it ({now.partition(': ')[2]}): the run would mix rounds of both. Choose "
                "another folder."
            )
        if name in _OWN:
            return (
                f"{self._db.path} was begun with other {_OWN[name]} (SHA-256 {excerpt(began[:16])}, here "
                f"{now[:16]}). The run would mix rounds of both: restore those that it began with, or begin "
                "a new run in another folder."
            )
        return (
            f"{self._db.path} was begun with {name} {excerpt(began)}, and here {name} is {now}: it was "
            "copied or swapped, or the study was changed. Put it back, or begin a new run in another folder."
        )

    def _bound(self) -> dict[str, str]:
        return dict(self._db.sealed("SELECT * FROM bound"))

    def _bind(self, name: str, value: str) -> None:
        self._db.put("INSERT INTO bound", name, value)

    def save(
        self, number: int, state: State, record: dict[str, Any], kept: Mapping[int, ClientState] | None = None
    ) -> None:
        """Write round `number` durably. Raises LocalProtocolError if it is finished already.

        kept: the new client states of this round, by client.
        """
        memory = {f"memory.{name}": array for name, array in state.memory.items()}
        arrays = packed({"broadcast": state.broadcast, **memory})
        devices = [(client, packed(own)) for client, own in (kept or {}).items()]
        written = json.dumps(record)
        with self._db.transaction():
            session = self._bound().get(_SESSION, "")
            if self._db.rows("SELECT round FROM rounds WHERE round = ?", (number,)):
                raise LocalProtocolError(
                    f"Expected round {number} to be open, got a finished one: another process runs in this "
                    "folder. Stop one of them."
                )
            self._db.put("INSERT INTO rounds", number, written, label=(session,))
            whole = self._keep(session, devices)
            self._db.run("DELETE FROM state")
            self._db.put("INSERT INTO state", number, arrays, whole, label=(session,))

    def _keep(self, session: str, devices: Sequence[tuple[int, bytes]]) -> bytes:
        """Write client states. Returns the sum of all rows' seals mod 2^256."""
        # The sum shows a missing row. A hash over all rows would too, but it would read all rows each round.
        before = self._db.row("SELECT clients FROM state")
        whole = int.from_bytes(before[0] if before else b"", "little")
        for client, content in devices:
            old = self._db.row("SELECT seal FROM client_states WHERE client = ?", (client,))
            new = seal(session, client, content)
            whole += int.from_bytes(new, "little") - int.from_bytes(old[0] if old else b"", "little")
            self._db.run("INSERT OR REPLACE INTO client_states VALUES (?, ?, ?)", (client, content, new))
        return (whole % _MODULUS).to_bytes(32, "little")

    def load(self) -> tuple[State | None, list[dict[str, Any]]]:
        """The newest state and the records of all finished rounds, in order."""
        with self._db.explaining():
            label = (self._bound().get(_SESSION, ""),)
            rows = self._db.sealed("SELECT * FROM rounds ORDER BY round", (), label)
            stored = self._db.sealed("SELECT * FROM state", (), label)
            numbers = [row[0] for row in rows]
            if numbers != list(range(1, len(rows) + 1)) or [row[0] for row in stored] != numbers[-1:]:
                raise Damaged("rounds are missing")
            with decoding():
                records = [json.loads(row[1]) for row in rows]
                if not stored:
                    return None, records
                arrays = unpacked(stored[0][1])
                memory = {k.removeprefix("memory."): arrays[k] for k in arrays if k.startswith("memory.")}
                return State(arrays["broadcast"], memory), records

    def kept(self) -> dict[int, ClientState]:
        """The state of each client after the last finished round. Raises DataError if one is lost or old."""
        with self._db.explaining():
            rows = self._db.rows("SELECT client, arrays, seal FROM client_states")
            session = self._bound().get(_SESSION, "")
            for *content, sealed in rows:
                check(sealed, session, *content)
            whole = sum(int.from_bytes(row[2], "little") for row in rows) % _MODULUS
            noted = self._db.row("SELECT clients FROM state")
            if whole != int.from_bytes(noted[0] if noted else b"", "little"):
                raise Damaged("the state of some clients is missing, or older")
            with decoding():
                return {client: unpacked(arrays) for client, arrays, _ in rows}


Figures = Mapping[str, tuple[tuple[int, ...], tuple[float, ...]]]
"""For each figure's name: the clients whose figure changed in a round, and their new figures."""


@dataclass(frozen=True)
class _Head:
    count: int
    head: str


@dataclass(frozen=True)
class ResumePoint:
    """The part of a round's record that a resumed run needs, and the tables at its end.

    proven_cheaters, retired, figures: those that are new in this round. Models that were not tested in the
    round have neither accuracy nor loss.
    """

    round: int
    ledger: _Head
    epsilon: Mapping[str, float]
    proven_cheaters: tuple[int, ...]
    retired: tuple[int, ...]
    selected: tuple[int, ...]
    answered: tuple[int, ...]
    retries_left: int
    charged: tuple[CountedQuery, ...]
    figures: Figures
    ended: bool
    seen: Mapping[str, Any]
    accuracy: float | None
    loss: float | None
    bytes_up: float
    bytes_down: float
    seconds: float
    watt_hours: float
    wall_seconds: float
    rejected_from: Mapping[str, str]
    abstained: Mapping[str, str]
    reasons: Mapping[str, str]
    without_records: Mapping[str, str]

    @property
    def head(self) -> Head:
        """The head of the ledger's chain when the round ended."""
        return Head(self.ledger.count, bytes.fromhex(self.ledger.head))


@cache
def _adapter() -> TypeAdapter[ResumePoint]:
    from pydantic import TypeAdapter  # late: a command that runs nothing does not wait for it

    return TypeAdapter(ResumePoint)


def resume_point(record: Mapping[str, Any], clients: int) -> ResumePoint:
    """Read a round's record. An invalid record raises an error of any type."""
    found = _adapter().validate_python(record)
    figures = found.figures.values()
    if any(len(k) != len(values) for k, values in figures):
        raise ValueError("a record has figures without clients")
    for own in (
        found.proven_cheaters,
        found.retired,
        found.selected,
        found.answered,
        *(k for k, _ in figures),
    ):
        if own and not 0 <= min(own) <= max(own) < clients:
            raise ValueError("a record names clients that do not exist")
    if {*found.epsilon} != {*PARTIES}:
        raise ValueError("a record names parties that do not exist")
    if (found.accuracy is None) != (found.loss is None):  # both are None if models were not tested
        raise ValueError("a record has an accuracy without a loss, or the reverse")
    Seen.of(found.seen)
    assert found.head
    return found


def require_all(ledger: Ledger, stands: ResumePoint) -> None:
    """Raises DataError if the ledger holds less than it did when this round ended."""
    # The hash chain shows a loss. The epsilons show one even if the chain was rewritten.
    ledger.require(stands.head)
    for party, spent in stands.epsilon.items():
        found = ledger.worst(party)
        if falls_short(found, spent):
            raise DataError(
                f"The ledger has epsilon {found:.4g} against the {party}, and round {stands.round} ended "
                f"with {spent:.4g}: releases are missing. Restore the run folder from one backup, or begin a "
                "new run in another folder."
            )


def require_new(
    plan: Plan, session: bytes, own: Container[bytes], ledger: Ledger, journal: Journal, finished: int
) -> None:
    """Raises DataError if the journal or checkpoint is new, or older than the other files of the run.

    own: the run's sessions: of now, and of before it got more rounds.
    """
    if any(one not in own for one in (*journal.sessions(), *ledger.sessions())):
        raise DataError(
            "The checkpoint of this run is lost, its protocol's code asks for another plan than before, or "
            "parties on machines of their own ran it: the ledger or journal beside it has another session, "
            "whose rounds would be run and charged a second time. Restore the checkpoint and the code, or "
            "begin a new run elsewhere. If parties of their own ran it, repeat "
            "`securefl party coordinate`, which writes the report again too."
        )
    known, charged = journal.newest(session), ledger.newest(session)
    if (plan.hidden or plan.noisy) and known < charged:
        raise DataError(
            "The journal beside this run's ledger is an older copy: it does not have the last round of the "
            "ledger, so a second sum of that round could be opened. Restore it, or begin a new run "
            "elsewhere."
        )
    if max(known, charged) > finished + 1:
        raise DataError(
            f"The checkpoint of this run is an older copy: it ends with round {finished}, and clients "
            f"took part in round {max(known, charged)}. Restore it, or begin a new run elsewhere."
        )
