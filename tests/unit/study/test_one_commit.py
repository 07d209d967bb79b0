"""A round in one process is one durable commit; what leaves a process waits for a commit of its own."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.command_line import said
from support.every import every
from support.private_studies import DISTRIBUTED, client_level
from support.tiny_study import FEDAVG, composed, plain, text, world

from securefl.accounting import ledger as door
from securefl.accounting.ledger import Ledger
from securefl.algorithm.plan import Plan
from securefl.core.errors import DataError
from securefl.core.logs import held, logger
from securefl.core.release import Release
from securefl.deployment.coordinator import OwnMachines
from securefl.engine.drive import Driver
from securefl.engine.party.clients import ClientParty
from securefl.storage import database
from securefl.storage.database import Database
from securefl.storage.journal import Journal
from securefl.storage.read_only import read
from securefl.study.arm import arm_folder, made_folder, opened
from securefl.study.backends import Backend, OneProcess
from securefl.study.checkpoint import Checkpoint, rounds_in
from securefl.study.config import Study, parse
from securefl.study.results import finished_rounds
from securefl.study.run import run_arm

MASKED: dict[str, str] = {"sum": '"masked"', **DISTRIBUTED}
STUDIES: dict[str, Callable[[], Study]] = {
    "clear": lambda: parse(text(FEDAVG)),
    "clear, central noise": client_level,
    "masked, shares of noise": lambda: client_level(**MASKED),
    "two servers": lambda: client_level(sum='"two-server"', dropout="0.2", corrupt="0.0"),
}
Tell = Callable[[Mapping[str, Any]], None]


def play(of: Study, folder: Path, tell: Tell = lambda record: None, backend: Backend | None = None) -> Any:
    return run_arm(of, of.arms[0], world(of), folder, tell, backend=backend).records


def file_of(of: Study, folder: Path) -> Path:
    return arm_folder(folder, of.arms[0], 3) / "ledger.sqlite"


def charged(path: Path) -> list[tuple[str, int]]:
    """Holder and round of each committed release on disk. The file is only read, so nothing is mended."""
    query = "SELECT holder, round FROM releases WHERE committed IS NOT NULL ORDER BY round, holder"
    return [] if not path.exists() else read(path, lambda db: db.execute(query).fetchall())


# How many commits ---------------------------------------------------------------------------------


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every COMMIT of a connection that writes."""
    found: list[str] = []
    writable = database.writable

    def traced(path: Path | str) -> sqlite3.Connection:
        db = writable(path)
        db.set_trace_callback(lambda statement: found.append(statement) if statement == "COMMIT" else None)
        return db

    monkeypatch.setattr(database, "writable", traced)
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_a_round_is_one_durable_commit(name: str, tmp_path: Path, commits: list[str]) -> None:
    each: list[int] = []

    def tell(record: Mapping[str, Any]) -> None:
        each.append(len(commits))
        commits.clear()

    play(STUDIES[name](), tmp_path, tell)
    assert each[1:] == [1]


def test_every_commit_waits_for_the_disk(tmp_path: Path) -> None:
    of = STUDIES["clear"]()
    _, plan = composed(of)
    home = made_folder(tmp_path, of.arms[0], 3)
    with opened(of, of.arms[0], world(of), plan, home) as saved:
        assert saved.file is not None
        assert saved.file.rows("PRAGMA synchronous") == [(2,)]  # FULL: each commit syncs the log
        assert saved.file.rows("PRAGMA temp_store") == [(2,)]  # MEMORY: secrets go to no temporary file


# What leaves a process ----------------------------------------------------------------------------


class Apart(OneProcess):
    """As if its parties were on machines of their own."""

    in_one_process = False


@every("name", ["clear", "masked, shares of noise"])
def test_a_party_apart_has_its_commit_on_disk_before_the_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, encode, looks, folder = STUDIES[name](), door.encode, list[bool](), tmp_path / "apart"

    def looking(header: Any, body: Any, permit: Any) -> bytes:
        there = set(charged(file_of(of, folder)))
        for release in Release.all_in(body):
            looks.append((release.key.holder, release.key.round) in there)
        return encode(header, body, permit)

    monkeypatch.setattr(door, "encode", looking)
    play(of, folder, backend=Apart())
    assert looks
    assert all(looks)
    assert not OwnMachines.in_one_process
    looks.clear()
    folder = tmp_path / "together"
    play(of, folder)
    assert not any(looks), "or this test could not fail"


# kill -9 ------------------------------------------------------------------------------------------


def before(owner: type, name: str, then: Callable[[], None]) -> None:
    own = getattr(owner, name)

    def first(*given: Any, **named: Any) -> Any:
        then()
        return own(*given, **named)

    setattr(owner, name, first)


def after(owner: type, name: str, then: Callable[[], None]) -> None:
    own = getattr(owner, name)

    def last(*given: Any, **named: Any) -> Any:
        found = own(*given, **named)
        then()
        return found

    setattr(owner, name, last)


POINTS: dict[str, Callable[[Callable[[], None]], None]] = {
    "reserved": lambda die: after(Ledger, "reserve", die),
    "an act is recorded": lambda die: after(Journal, "record", die),
    "values are computed": lambda die: after(ClientParty, "work", die),
    "sent": lambda die: after(Ledger, "send", die),
    "received": lambda die: after(Driver, "deliver", die),
    "aggregated": lambda die: before(Checkpoint, "save", die),
    "the checkpoint is written": lambda die: after(Checkpoint, "save", die),
    "the commit begins": lambda die: before(Database, "_commit", die),
    "committed": lambda die: after(Database, "_commit", die),
}
BEFORE_THE_COMMIT = tuple(POINTS)[:-1]


@pytest.fixture(scope="module")
def masked() -> Study:
    return client_level(rounds=3, **MASKED)


@pytest.fixture(scope="module")
def whole(masked: Study, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[tuple[str, int]]]:
    folder = tmp_path_factory.mktemp("whole")
    return play(masked, folder), charged(file_of(masked, folder))


@every("point", POINTS)
def test_killed_at_any_point_nothing_told_is_uncounted(
    point: str, masked: Study, whole: tuple[list[Any], list[tuple[str, int]]], tmp_path: Path
) -> None:
    """Killed in round 2. The file then has whole rounds alone: their releases, acts, state and record."""
    told = tmp_path / "told"

    def tell(record: Mapping[str, Any]) -> None:
        with told.open("a") as out:
            out.write(f"{record['round']}\n")
        if record["round"] == 1:
            POINTS[point](lambda: os.kill(os.getpid(), signal.SIGKILL))

    if (child := os.fork()) == 0:
        with suppress(BaseException):
            play(masked, tmp_path / "run", tell)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    path = file_of(masked, tmp_path / "run")
    rounds = 1 if point in BEFORE_THE_COMMIT else 2
    assert told.read_text().split() == ["1"]
    assert rounds_in(path) == rounds
    assert charged(path) == [row for row in whole[1] if row[1] <= rounds]
    resumed = play(masked, tmp_path / "run")
    assert charged(path) == whole[1], "each release is charged once"
    assert [row["epsilon"] for row in resumed] == [row["epsilon"] for row in whole[0]]
    assert [row["answered"] for row in resumed] == [row["answered"] for row in whole[0]]


# An error within a round --------------------------------------------------------------------------


def test_an_error_of_a_round_leaves_its_charges_and_its_secrets(
    masked: Study,
    whole: tuple[list[Any], list[tuple[str, int]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its text may tell of a release. The round is played again, and each client sends the same content."""

    def contents() -> list[Any]:
        query = "SELECT holder, content FROM releases WHERE round = 2 ORDER BY holder"
        return read(file_of(masked, tmp_path), lambda db: db.execute(query).fetchall())

    save = Checkpoint.save

    def fails(self: Checkpoint, number: int, *given: Any) -> None:
        if number == 2:
            raise ValueError("the total is 3.14")
        save(self, number, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", fails)
        with pytest.raises(ValueError, match=r"3\.14"):
            play(masked, tmp_path)
    assert charged(file_of(masked, tmp_path)) == [row for row in whole[1] if row[1] <= 2]
    first = contents()
    play(masked, tmp_path)
    assert charged(file_of(masked, tmp_path)) == whole[1]
    assert contents() == first


def test_log_lines_wait_for_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A line may tell of a release, as that of a head that was not solved for."""
    of, seen, deliver = STUDIES["clear"](), list[int](), Driver.deliver
    rounds: list[int] = []

    def saying(self: Driver, packet: Any) -> Any:
        logger("securefl.tests").warning("told in a round")
        seen.append(len(caplog.records))
        return deliver(self, packet)

    monkeypatch.setattr(Driver, "deliver", saying)

    def tell(record: Mapping[str, Any]) -> None:
        rounds.append(len(seen))
        assert len(caplog.records) == len(seen)

    play(of, tmp_path, tell)
    assert seen == [0] * rounds[0] + [rounds[0]] * (rounds[1] - rounds[0])


def test_lines_that_are_not_let_go_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    own = logger("securefl.tests")
    with held() as let_go:
        own.warning("one")
        let_go()
        own.warning("two")
    with held():
        own.warning("three")
    own.warning("four")
    assert [record.message for record in caplog.records] == ["one", "two", "four"]
    assert logging.getLogger("securefl.tests").filters == [own.filters[0]]


# A full disk --------------------------------------------------------------------------------------


class Filling:
    """A connection whose commits find no room from the moment on that `room` is False."""

    room = True

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if statement == "COMMIT" and not self.room:
            ((pages,),) = self._db.execute("PRAGMA page_count")
            self._db.execute(f"PRAGMA max_page_count = {pages}")
            self._db.execute("CREATE TABLE more AS SELECT zeroblob(10000000)")  # SQLITE_FULL
        return self._db.execute(statement, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


def test_a_disk_that_is_full_at_the_commit_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with our words and exit code 1, tells nothing of the round, and goes on with room."""
    toml, out, writable = tmp_path / "tiny.toml", tmp_path / "run", database.writable
    toml.write_text(text(FEDAVG, rounds=3))
    of = parse(toml.read_text())
    whole = plain(play(of, tmp_path / "whole"))
    monkeypatch.setattr(database, "writable", lambda path: Filling(writable(path)))
    save = Checkpoint.save

    def fills(self: Checkpoint, number: int, *given: Any) -> None:
        Filling.room = number < 3
        save(self, number, *given)

    monkeypatch.setattr(Checkpoint, "save", fills)
    try:
        done = said("run", toml, "--out", out, "--workers", "1", "--json")
    finally:
        Filling.room = True
    assert done.exit_code == 1
    assert isinstance(done.exception, DataError)
    assert "the disk is full, or a quota or limit is reached (SQLITE_FULL)" in str(done.exception)
    assert "nothing was written and nothing released. Make room, and run" in str(done.exception)
    path = file_of(of, out)
    assert rounds_in(path) == 2
    assert {row[1] for row in charged(path)} == {1, 2}
    monkeypatch.setattr(Checkpoint, "save", save)
    assert plain(play(of, out)) == whole


# The one file ------------------------------------------------------------------------------------


def test_a_process_that_was_killed_when_it_had_created_the_file(tmp_path: Path) -> None:
    of = STUDIES["clear"]()
    path = file_of(of, tmp_path)
    made_folder(tmp_path, of.arms[0], 3)
    path.touch()
    assert rounds_in(path) == 0
    assert finished_rounds(tmp_path, of.arms[0], 3) == 0
    assert path.read_bytes() == b""
    assert len(play(of, tmp_path)) == 2


@every("name", ["acts.sqlite", "checkpoint.sqlite", "ledger.sqlite"])
def test_a_run_of_another_version_is_refused(name: str, tmp_path: Path) -> None:
    """One that began with its databases in several files. Begun anew, its releases would be forgotten."""
    of = STUDIES["clear"]()
    other = made_folder(tmp_path, of.arms[0], 3) / name
    if name == "ledger.sqlite":
        Ledger(other, Plan(delta=1e-5, max_rounds=2).terms()).close()
    else:
        Journal(other).close()
    before = other.read_bytes()
    with pytest.raises(DataError, match=r"another release of securefl"):
        play(of, tmp_path)
    assert other.read_bytes() == before
    assert {path.name.split("-")[0] for path in other.parent.iterdir()} == {name}
