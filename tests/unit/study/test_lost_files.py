"""A run goes on with its file as it was, or says which part is not: deleted, edited, swapped or older.

Each attack begins with the file of a run that was killed after round 3 of 5, logs of SQLite included. The
attacker writes what it likes into a ledger and mends its chain; it has no newer checkpoint to put beside it.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.private_studies import DISTRIBUTED
from support.private_studies import client_level as study
from support.run_file import empty, take
from support.tiny_study import plain, world

from securefl.accounting.chain import move, replay
from securefl.accounting.note import END
from securefl.accounting.statements import statement
from securefl.accounting.store import KIND
from securefl.algorithm.clients import State
from securefl.core.errors import ConfigError, DataError
from securefl.storage.database import Database, seal
from securefl.study.arm import ArmRun, arm_folder
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Study, parse
from securefl.study.run import run_arm
from securefl.study.world import build

ROUNDS, KILLED = 5, 3
FILE = "ledger.sqlite"
SUFFIXES = ("", "-wal", "-shm", "-head")


@pytest.fixture(scope="module")
def of() -> Study:
    """Masked sums with shares of noise: ledger, checkpoint and journal are all in use."""
    made = study(rounds=ROUNDS, sum='"masked"', **DISTRIBUTED)
    return parse(made.text.replace("seeds = [3]", "seeds = [3, 4]"))


def run(of: Study, folder: Path, tell: Callable[[Mapping[str, Any]], None] = lambda record: None) -> ArmRun:
    return run_arm(of, of.arms[0], world(of), folder, tell)


@pytest.fixture(scope="module")
def whole(of: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with copies of its files after each round, as `kill -9` would leave them."""
    folder = tmp_path_factory.mktemp("whole")

    def keep(record: Mapping[str, Any]) -> None:
        shutil.copytree(home(of, folder), folder / f"after-{record['round']}")

    run(of, folder, keep)
    return folder


def home(of: Study, folder: Path) -> Path:
    return arm_folder(folder, of.arms[0], 3)


@pytest.fixture
def cut(of: Study, whole: Path, tmp_path: Path) -> Path:
    """The folder of an arm, killed after round 3."""
    shutil.copytree(whole / f"after-{KILLED}", home(of, tmp_path))
    return home(of, tmp_path)


def refused(of: Study, cut: Path, *said: str) -> None:
    with pytest.raises((DataError, ConfigError)) as caught:
        run(of, cut.parents[3])
    assert any(one in str(caught.value) for one in said), caught.value
    assert any(advice in str(caught.value) for advice in ("estore", "ut it back", "Use the old value"))


def test_untouched_it_goes_on_as_if_nothing_had_been(of: Study, cut: Path, whole: Path) -> None:
    resumed = run(of, cut.parents[3]).records
    assert [record["round"] for record in resumed] == [1, 2, 3, 4, 5]
    before = plain(run(of, whole).records)
    assert plain(resumed)[:KILLED] == before[:KILLED]
    assert [row["epsilon"] for row in plain(resumed)] == [row["epsilon"] for row in before]


# The ledger ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.5, 0.9, 0.0])
def test_a_torn_log(part: float, of: Study, cut: Path) -> None:
    """SQLite takes what is whole of a log, and says nothing of the rest."""
    log = cut / "ledger.sqlite-wal"
    content = log.read_bytes()
    assert len(content) > 10_000
    log.write_bytes(content[: int(part * len(content))])
    refused(of, cut, "entries that were noted", "no longer", "not the one that the run began with")


EDITS = {
    "the last releases": "DELETE FROM releases WHERE round = 3",
    "one release": "DELETE FROM releases WHERE reserved = 3",
    "one holder": "DELETE FROM releases WHERE holder = 'client-0001'",
    "more noise": "UPDATE releases SET charge = replace(charge, 'multiplier\": ', 'multiplier\": 9')",
    "another holder": "UPDATE releases SET holder = 'nobody' WHERE holder = 'client-0001'",
    "another name": "UPDATE releases SET name = 'nothing' WHERE reserved = 1",
    "another session": "UPDATE releases SET session = zeroblob(32) WHERE round = 3",
    "another round": "UPDATE releases SET round = 9 WHERE round = 3",
    "another time": "UPDATE releases SET at = '1970-01-01' WHERE reserved = 1",
    "an introduction": "UPDATE releases SET initial = 1 WHERE reserved = 1",
    "another content": "UPDATE releases SET content = zeroblob(32) WHERE reserved = 1",
    "a commit": "UPDATE releases SET committed = NULL WHERE reserved = 1",
    "the order": "UPDATE releases SET reserved = reserved + 1000 WHERE reserved = 1",
    "the delta": "UPDATE terms SET value = '0.5' WHERE name = 'delta'",
    "the identity": "UPDATE terms SET value = 'another' WHERE name = 'identity'",
    "all but the terms": "DELETE FROM releases",
    "the terms": "DELETE FROM terms",
    "a table": "DROP TABLE releases",
    "a table more": "CREATE TABLE more (x)",
}


@pytest.mark.parametrize("mended", [False, True], ids=["", "chain mended"])
@pytest.mark.parametrize("what", EDITS)
def test_whatever_is_deleted_or_edited_in_a_ledger(what: str, mended: bool, of: Study, cut: Path) -> None:
    path = cut / "ledger.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute(EDITS[what]).rowcount != 0
    if mended:
        mend(path)
    refused(
        of,
        cut,
        "is damaged",
        "got another file",
        "entries that were noted",
        "not the one that the run",
        "Expected delta",
    )


def mend(path: Path) -> None:
    """Number the entries anew without gaps, work the head out from them, and take the note of it away."""
    path.with_name(path.name + END).unlink()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        try:
            rows = db.execute("SELECT rowid, reserved, committed FROM releases").fetchall()
        except sqlite3.Error:
            return
        places = sorted(place for row in rows for place in row[1:] if place is not None)
        new = {place: number for number, place in enumerate(places, start=1)}
        db.execute("UPDATE releases SET committed = -committed")
        for rowid, _, committed in sorted(rows, key=lambda row: new[row[1]]):
            db.execute("UPDATE releases SET committed = ? WHERE rowid = ?", (new.get(committed), rowid))
            db.execute("UPDATE releases SET reserved = ? WHERE rowid = ?", (new[rowid], rowid))
        if db.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'more'").fetchone()[0]:
            return
    other = Database(path, KIND)
    move(other, replay(other.rows))
    other.close()


def test_releases_of_the_round_at_hand_are_missing(of: Study, cut: Path, whole: Path) -> None:
    """No checkpoint knows of them yet: the file of round 2 under the note of round 3."""
    for end in ("", "-wal", "-shm"):
        shutil.copy(whole / "after-2" / (FILE + end), cut / (FILE + end))
    refused(of, cut, "entries that were noted")
    with pytest.raises(DataError, match="entries that were noted"):
        statement(cut / "ledger.sqlite", party="server")


@pytest.mark.parametrize("how", ["deleted", "emptied", "another's"])
def test_it_is_lost_or_replaced(how: str, of: Study, cut: Path, tmp_path: Path) -> None:
    """What was released would be counted from zero."""
    for suffix in ("", "-wal", "-shm"):
        (cut / (FILE + suffix)).unlink()
    if how == "emptied":
        (cut / FILE).touch()
    if how == "another's":
        run(of, tmp_path / "other")
        shutil.copy(home(of, tmp_path / "other") / FILE, cut / FILE)
    refused(of, cut, "entries that were noted")


def test_a_torn_log_is_noticed_by_whoever_reads_the_ledger(cut: Path) -> None:
    before = statement(cut / "ledger.sqlite", party="server").releases
    assert len(before) == KILLED * 6
    log = cut / "ledger.sqlite-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    with pytest.raises(DataError, match="entries that were noted"):
        statement(cut / "ledger.sqlite", party="server")


@pytest.mark.parametrize("content", [b"x" * 72, bytes(72), b"short"])
def test_a_note_that_was_changed(content: bytes, of: Study, cut: Path) -> None:
    (cut / "ledger.sqlite-head").write_bytes(content)
    refused(of, cut, "its note ledger.sqlite-head is not as it was written")


def test_a_note_may_be_missing(of: Study, cut: Path) -> None:
    """A ledger that is copied without it can be read; a run's checkpoint still knows the head."""
    (cut / "ledger.sqlite-head").unlink()
    assert len(run(of, cut.parents[3]).records) == ROUNDS


def test_an_older_ledger(of: Study, cut: Path, whole: Path) -> None:
    take(whole / "after-2" / FILE, "ledger", cut / FILE)
    refused(of, cut, "entries that were noted")


def test_a_head_of_a_chain_that_was_mended_with_the_checkpoint_is_held_by_its_epsilons(
    of: Study, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever mends the note of the head too, but not the figures beside it."""
    with closing(sqlite3.connect(cut / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("DELETE FROM releases WHERE round = 3")
    mend(cut / "ledger.sqlite")
    monkeypatch.setattr("securefl.accounting.ledger.Ledger.require", lambda self, noted: None)
    refused(of, cut, "releases are missing")


def test_what_remains(of: Study, cut: Path, whole: Path) -> None:
    """All parts of an earlier round together are that run, as it was then: nothing in them tells of more."""
    for part in ("ledger", "checkpoint"):
        take(whole / "after-1" / FILE, part, cut / FILE)
    refused(of, cut, "checkpoint of this run is an older copy")
    take(whole / "after-1" / FILE, "journal", cut / FILE)
    assert [record["round"] for record in run(of, cut.parents[3]).records] == [1, 2, 3, 4, 5]


# Checkpoint and journal ---------------------------------------------------------------------------


def test_an_older_checkpoint(of: Study, cut: Path, whole: Path) -> None:
    """Its rounds would be played a second time, under what their ledger has charged for the first."""
    take(whole / "after-1" / FILE, "checkpoint", cut / FILE)
    refused(of, cut, "checkpoint of this run is an older copy: it ends with round 1")


def test_an_older_journal(of: Study, cut: Path, whole: Path) -> None:
    take(whole / "after-1" / FILE, "journal", cut / FILE)
    refused(of, cut, "journal beside this run's ledger is an older copy")


@pytest.mark.parametrize("part", ["ledger", "journal"])
def test_a_part_of_another_run(part: str, of: Study, cut: Path, tmp_path: Path) -> None:
    run(of, tmp_path / "other")
    take(home(of, tmp_path / "other") / FILE, part, cut / FILE)
    refused(of, cut, "entries that were noted", "not the one that the run began with")


@pytest.mark.parametrize("part", ["ledger", "journal"])
def test_a_deleted_part(part: str, of: Study, cut: Path) -> None:
    empty(part, cut / FILE)
    refused(of, cut, "not the one that the run began with", "is damaged")


def test_a_lost_checkpoint(of: Study, cut: Path) -> None:
    """The rounds would begin anew in another session, and be charged a second time."""
    empty("checkpoint", cut / FILE)
    refused(of, cut, "The checkpoint of this run is lost")


def test_an_older_checkpoint_that_forgot_its_session(of: Study, cut: Path, whole: Path) -> None:
    take(whole / "after-1" / FILE, "checkpoint", cut / FILE)
    with closing(sqlite3.connect(cut / FILE, isolation_level=None)) as db:
        db.execute("DELETE FROM bound WHERE name = 'session'")
    refused(of, cut, "a row is not as it was written", "is lost")


def test_what_clients_kept_is_whole_and_of_this_run(tmp_path: Path) -> None:
    def kept(number: int) -> dict[int, dict[str, NDArray[np.float64]]]:
        return {client: {"model": np.full(3, number + client / 10)} for client in range(4)}

    state = State(np.zeros(2, np.float32))
    for name in ("one", "other"):
        with Checkpoint(tmp_path / name) as checkpoint:
            checkpoint.nonce()
            for number in (1, 2, 3):
                some = {client: own for client, own in kept(number).items() if client % 2 or number == 1}
                checkpoint.save(number, state, {}, some)
            assert set(checkpoint.kept()) == {0, 1, 2, 3}
            assert checkpoint.kept()[1]["model"][0] == 3.1
            assert checkpoint.kept()[2]["model"][0] == 1.2
    with closing(sqlite3.connect(tmp_path / "one", isolation_level=None)) as db:
        db.execute("ATTACH ? AS other", (str(tmp_path / "other"),))
        for statement, said in (
            ("DELETE FROM client_states WHERE client = 2", "missing, or older"),
            (
                "REPLACE INTO client_states SELECT * FROM other.client_states WHERE client = 2",
                "not as it was written",
            ),
            ("REPLACE INTO state SELECT * FROM other.state", "not as it was written"),
            ("REPLACE INTO rounds SELECT * FROM other.rounds WHERE round = 2", "not as it was written"),
        ):
            db.execute("BEGIN")
            db.execute(statement)
            db.execute("COMMIT")
            with Checkpoint(tmp_path / "one") as checkpoint, pytest.raises(DataError, match=said):
                (checkpoint.load(), checkpoint.kept())


RECORDS = [
    ("$.epsilon", "7"),
    ("$.epsilon.bob", "1"),
    ("$.ledger", "null"),
    ("$.ledger.head", '"no hex"'),
    ("$.proven_cheaters", '"abc"'),
    ("$.retired", "[99]"),
    ("$.retries_left", '"x"'),
    ("$.accuracy", "null"),
    ("$.loss", "null"),
    ("$.selected", "[99]"),
    ("$.answered", "[-1]"),
    ("$.figures", '{"x": [[1], []]}'),
]


@pytest.mark.parametrize(("what", "instead"), RECORDS)
def test_a_record_that_somebody_sealed_anew(what: str, instead: str, of: Study, cut: Path) -> None:
    with closing(sqlite3.connect(cut / FILE, isolation_level=None)) as db:
        set_it = "UPDATE rounds SET record = json_set(record, ?, json(?)) WHERE round = 3"
        db.execute("UPDATE rounds SET record = replace(replace(record, 'Infinity', '9e999'), 'NaN', 'null')")
        db.execute(set_it, (what, instead))
        (session,) = db.execute("SELECT value FROM bound WHERE name = 'session'").fetchone()
        for number, record in db.execute("SELECT round, record FROM rounds").fetchall():
            sealed = seal(session, number, record)
            db.execute("UPDATE rounds SET seal = ? WHERE round = ?", (sealed, number))
    refused(of, cut, f"{FILE} is damaged")


def test_arms_and_seeds_that_were_swapped(of: Study, cut: Path) -> None:
    """Each is a whole run, but not the one of this place."""
    there = arm_folder(cut.parents[3], of.arms[0], 4)
    shutil.copytree(cut, there)
    with pytest.raises(DataError, match=r"seed 3, .* 4"):
        run_arm(of, of.arms[0], build(of, 4), cut.parents[3], lambda record: None)
    other = parse(of.text.replace('name = "x"', 'name = "y"'))
    shutil.move(cut.parents[0], cut.parents[0].with_name("y"))
    with pytest.raises(DataError, match="begun with study"):
        run(other, cut.parents[3])


def test_a_study_that_was_changed_behind_the_run(of: Study, cut: Path) -> None:
    with pytest.raises(DataError, match="study was changed"):
        run(parse(of.text.replace("epsilon = 8.0", "epsilon = 7.0")), cut.parents[3])


EDITED = {
    "a record": (
        "UPDATE rounds SET record = replace(record, 'retries_left\": 0', 'retries_left\": 9')",
        "a row is not as it was written",
    ),
    "a round": ("DELETE FROM rounds WHERE round = 2", "rounds are missing"),
    "a secret": ("UPDATE parties SET round = 1", "is an older copy"),
    "the session": ("DELETE FROM bound WHERE name = 'session'", "a row is not as it was written"),
    "the journal's identity": ("UPDATE journal SET identity = 'another'", "not the one that the run began"),
    "all secrets": ("DELETE FROM parties", "is an older copy"),
    "a table": ("DROP TABLE attempts", "its tables are not those"),
    "its kinds": ("DROP TABLE kinds", "is damaged"),
    "the version of a part": ("UPDATE kinds SET version = 99 WHERE name = 'journal'", "got version 99"),
}


@pytest.mark.parametrize(("edit", "said"), EDITED.values(), ids=EDITED)
def test_whatever_is_edited_beside_the_releases(edit: str, said: str, of: Study, cut: Path) -> None:
    with closing(sqlite3.connect(cut / FILE, isolation_level=None)) as db:
        assert db.execute(edit).rowcount != 0
    with pytest.raises(DataError, match=f"{said}.*([Rr]estore|Use that release)"):
        run(of, cut.parents[3])


def test_every_file_is_its_owners_alone(cut: Path, of: Study) -> None:
    (cut / "ledger.sqlite").chmod(0o644)
    run(of, cut.parents[3])
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in cut.iterdir()} == {
        path.name: "0o600" for path in cut.iterdir()
    }


def test_a_link_is_not_followed(of: Study, cut: Path, tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        (cut / (FILE + suffix)).unlink(missing_ok=True)
    (cut / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"\.sqlite is a link"):
        run(of, cut.parents[3])
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_in_place_of_a_folder_is_not_followed(of: Study, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "private").mkdir()
    (tmp_path / "run" / "private" / "arms").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="got a symbolic link"):
        run(of, tmp_path / "run")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_checkpoint_keeps_its_session(tmp_path: Path) -> None:
    with Checkpoint(tmp_path / "c.sqlite") as checkpoint:
        checkpoint.bind(arm="a", ledger="l")
        nonce = checkpoint.nonce()
        checkpoint.bind(arm="a", ledger="l")
        assert checkpoint.nonce() == nonce
        assert len(nonce) == 32
        with pytest.raises(DataError, match="its seed is missing"):
            checkpoint.bind(arm="a", ledger="l", seed="3")
    with Checkpoint(tmp_path / "c.sqlite") as again, Checkpoint(tmp_path / "d.sqlite") as other:
        assert again.nonce() == nonce != other.nonce()
