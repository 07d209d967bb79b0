"""The shared ledger: one budget over all runs, whoever reserves, in whichever order, and whatever is lost."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, NoOpDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every import every
from support.started import Started

from securefl.accounting.composition import compose
from securefl.accounting.events import NO_COST, NON_PRIVATE, dump_charge, steps_event
from securefl.accounting.ledger import Ledger, Terms
from securefl.accounting.shared import KIND, Allotment, SharedLedger, SharedRuns, runs_of, shared_terms
from securefl.core.errors import BudgetExceeded, ConfigError, DataError, LocalProtocolError
from securefl.core.release import OTHERS, SERVER, Charge, ReleaseKey
from securefl.storage.database import Database
from securefl.storage.processes import Supervisor

TERMS = shared_terms(Terms(unit="record", adjacency="add-remove", delta=1e-5, budget=2.0))
RECORDS = "ab" * 32
BIT = dump_charge(Charge(server=GaussianDpEvent(4.1), key_holder=NoOpDpEvent(), others=GaussianDpEvent(5.0)))
STEPS = dump_charge(Charge(server=steps_event(0.01, 1.1, 20), key_holder=NoOpDpEvent(), others=NoOpDpEvent()))
CENTRAL = dump_charge(
    Charge(server=NON_PRIVATE.server, key_holder=NoOpDpEvent(), others=GaussianDpEvent(5.0))
)
ONE = compose({GaussianDpEvent(4.1): 4}, 1e-5)
"""What `bits("any", 4)` costs against the server."""


def bits(run: str, count: int = 4, charge: str = BIT) -> Allotment:
    return Allotment(run=run, what=f"study {run}", charges={charge: count})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "people.ledger"


def test_runs_add_up_and_the_one_too_many_is_refused(path: Path) -> None:
    with SharedLedger(path, TERMS, RECORDS) as shared:
        shared.reserve([bits("a")])
        assert shared.runs().epsilon(SERVER) == pytest.approx(ONE)
        assert ONE < 2.0
    with SharedLedger(path, TERMS, RECORDS) as shared:  # another study, later
        with pytest.raises(BudgetExceeded, match=r"server from 1.* to 2"):
            shared.reserve([bits("b")])
        assert len(shared.runs().entries) == 1
        shared.reserve([bits("c", 0)])
        assert shared.runs().epsilon(OTHERS) < ONE


def test_a_run_that_goes_on_is_charged_nothing_twice(path: Path) -> None:
    for _ in range(3):
        with SharedLedger(path, TERMS, RECORDS) as shared:
            shared.reserve([bits("a")])
    found = runs_of(path)
    assert found.epsilon(SERVER) == pytest.approx(ONE)
    assert found.epsilon(SERVER, [bits("a")]) == found.epsilon(SERVER)
    assert found.refusal([bits("a")]) is None
    # Also if another version of the accountant says that it cost more than there was.
    assert replace(found, terms=replace(TERMS, budget=0.1)).refusal([bits("a")]) is None


@pytest.mark.parametrize("made", ["nothing", "tables"])
def test_a_ledger_that_another_process_makes_at_this_moment_holds_no_run(made: str, path: Path) -> None:
    """Two cells of a sweep begin at once: one looks for room while the other one makes the file."""
    path.touch()
    if made == "tables":
        Database(path, KIND).close()
    assert runs_of(path, TERMS, RECORDS).entries == ()
    with SharedLedger(path, TERMS, RECORDS) as shared:
        shared.reserve([bits("a")])
    # The same bytes where a run was noted: the ledger is lost.
    path.unlink()
    path.touch()
    if made == "tables":
        Database(path, KIND).close()
    with pytest.raises(DataError):
        runs_of(path, TERMS, RECORDS)


def test_who_looks_for_room_while_others_reserve_is_told_no_damage(tmp_path: Path) -> None:
    ledgers = [tmp_path / f"{number}.ledger" for number in range(20)]
    with Supervisor[str]("fork") as others:
        assert others.start("reserves", reserves, ledgers)
        for ledger in ledgers:
            while not runs_of(ledger, TERMS, RECORDS).known("b"):
                pass


def reserves(_: object, ledgers: Sequence[Path]) -> None:
    for ledger in ledgers:
        for run in ("a", "b"):
            with SharedLedger(ledger, TERMS, RECORDS) as shared:
                shared.reserve([bits(run, 1)])


def test_the_file_keeps_whom_the_budget_holds_against(path: Path) -> None:
    others_alone = replace(TERMS, adversaries=(OTHERS,))
    with SharedLedger(path, others_alone, RECORDS) as shared:
        shared.reserve([bits("a", 1, CENTRAL)])
    assert runs_of(path).terms == others_alone
    with SharedLedger(path, others_alone, RECORDS) as shared:
        shared.reserve([bits("b", 1, CENTRAL)])


def test_of_several_runs_all_are_reserved_or_none(path: Path) -> None:
    with SharedLedger(path, TERMS, RECORDS) as shared:
        with pytest.raises(BudgetExceeded, match="got 2 runs"):
            shared.reserve([bits("a"), bits("b")])
        assert not shared.runs().entries
        with pytest.raises(LocalProtocolError, match="each run once"):
            shared.reserve([bits("a", 1), bits("a", 1)])
        assert not shared.runs().entries


def test_a_run_cannot_come_back_with_another_allotment(path: Path) -> None:
    with SharedLedger(path, TERMS, RECORDS) as shared:
        shared.reserve([bits("a", 1)])
        with pytest.raises(LocalProtocolError, match="in another folder"):
            shared.reserve([bits("a", 2)])


def test_what_is_unprotected_no_budget_bears(path: Path) -> None:
    with SharedLedger(path, TERMS, RECORDS) as shared, pytest.raises(BudgetExceeded, match="to inf"):
        shared.reserve([bits("a", 1, dump_charge(NON_PRIVATE))])


def test_other_records_are_refused_and_the_file_does_not_say_which_it_knows(path: Path) -> None:
    SharedLedger(path, TERMS, RECORDS).close()
    with pytest.raises(ConfigError, match="its budget is for the first alone"):
        SharedLedger(path, TERMS, "cd" * 32)
    with pytest.raises(ConfigError, match="expected the records"):
        runs_of(path, TERMS, "cd" * 32)
    assert runs_of(path, TERMS, RECORDS).entries == ()
    second = path.with_name("second")
    SharedLedger(second, TERMS, RECORDS).close()
    kept = [_terms(own)["records"] for own in (path, second)]
    assert RECORDS not in kept
    assert kept[0] != kept[1]  # of the same records: the digest alone is in neither


def _terms(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as db:
        return dict(db.execute("SELECT name, value FROM terms"))


@pytest.mark.parametrize(
    "other",
    [
        {"unit": "client"},
        {"adjacency": "replace-one"},
        {"delta": 1e-6},
        {"budget": 3.0},
        {"adversaries": (SERVER,)},
    ],
)
def test_another_promise_is_refused(path: Path, other: dict[str, Any]) -> None:
    SharedLedger(path, TERMS, RECORDS).close()
    with pytest.raises(ConfigError, match=f"expected {next(iter(other))} = .*cannot be added"):
        SharedLedger(path, replace(TERMS, **other), RECORDS)
    with pytest.raises(ConfigError, match=f"expected {next(iter(other))} = "):
        runs_of(path, replace(TERMS, **other), RECORDS)


@every("budget", [None, math.inf])
def test_a_budget_is_needed(budget: float | None) -> None:
    with pytest.raises(ConfigError, match="a finite `budget`"):
        shared_terms(Terms(unit="record", adjacency="add-remove", delta=1e-5, budget=budget))


@settings(max_examples=8)
@given(st.permutations(range(6)), st.lists(st.sampled_from([BIT, STEPS]), min_size=6, max_size=6))
def test_the_order_of_runs_does_not_matter(order: list[int], charges: list[str]) -> None:
    runs = [bits(str(n), n + 1, charge) for n, charge in enumerate(charges)]
    terms = replace(TERMS, budget=50.0)
    there, back = (
        SharedRuns(terms=terms, entries=tuple(listed)) for listed in (runs, [runs[n] for n in order])
    )
    assert there.epsilon(SERVER) == back.epsilon(SERVER)
    *first, last = runs
    before = SharedRuns(terms=terms, entries=tuple(first))
    assert before.epsilon(SERVER, [last]) == there.epsilon(SERVER)
    whole: Counter[Any] = sum((own.events(SERVER) for own in runs), Counter())
    # A filter may cost more than composition, and never less.
    assert there.epsilon(SERVER) >= compose(whole, terms.delta) * (1 - 1e-9)


_BOTH = """
import sys
from securefl.accounting.ledger import Terms
from securefl.accounting.shared import Allotment, SharedLedger, shared_terms
from securefl.core.errors import BudgetExceeded
path, charge, name = sys.argv[1:]
terms = shared_terms(Terms(unit="record", adjacency="add-remove", delta=1e-5, budget=2.0))
kept = 0
for n in range(6):
    with SharedLedger(path, terms, "ab" * 32) as shared:
        try:
            shared.reserve([Allotment(run=f"{name} {n}", what=name, charges={charge: 1})])
            kept += 1
        except BudgetExceeded:
            pass
print(kept)
"""


def test_processes_that_reserve_together_do_not_both_get_the_last_of_it(path: Path) -> None:
    both = [Started("-c", _BOTH, path, BIT, name) for name in "ab"]
    assert [own.wait() for own in both] == [0, 0], [own.stderr for own in both]
    kept = sum(int(own.stdout) for own in both)
    account = runs_of(path)
    assert kept == len(account.entries) == 4
    assert account.epsilon(SERVER) <= 2.0


def test_what_is_edited_cut_off_or_older_is_refused(path: Path, tmp_path: Path) -> None:
    with SharedLedger(path, TERMS, RECORDS) as shared:
        shared.reserve([bits("a", 1)])
    older = tmp_path / "older"
    shutil.copy(path, older)
    with SharedLedger(path, TERMS, RECORDS) as shared:
        shared.reserve([bits("b", 1)])
    newest = path.read_bytes()
    shutil.copy(older, path)
    with pytest.raises(DataError, match="older copy"):
        SharedLedger(path, TERMS, RECORDS)
    for change in (
        "DELETE FROM runs WHERE number = 2",
        "DELETE FROM runs WHERE number = 1",
        "UPDATE runs SET charges = '{}' WHERE number = 1",
        "UPDATE terms SET value = '9.0' WHERE name = 'budget'",
        "DELETE FROM terms WHERE name = 'salt'",
    ):
        path.write_bytes(newest)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(change)
        with pytest.raises(DataError):
            runs_of(path)
        with pytest.raises((DataError, ConfigError)):
            SharedLedger(path, TERMS, RECORDS)
    path.write_bytes(newest)
    assert len(runs_of(path).entries) == 2
    path.with_name(path.name + "-head").unlink()  # the chain shows it without the note, too
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE runs SET charges = '{}' WHERE number = 1")
    with pytest.raises(DataError, match="run 1 is not as it was"):
        runs_of(path)


def test_an_older_note_is_renewed_and_another_version_is_refused(path: Path) -> None:
    """A process that is killed before it notes its commit leaves an older note."""
    note = path.with_name(path.name + "-head")
    with SharedLedger(path, TERMS, RECORDS) as shared:
        older = note.read_bytes()
        shared.reserve([bits("a", 1)])
    newest = note.read_bytes()
    note.write_bytes(older)
    SharedLedger(path, TERMS, RECORDS).close()
    assert note.read_bytes() == newest != older
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(DataError):
        runs_of(path)


def test_a_ledger_lets_no_more_through_than_was_allotted(tmp_path: Path) -> None:
    charge = Charge(server=GaussianDpEvent(4.1), key_holder=NoOpDpEvent(), others=GaussianDpEvent(5.0))
    other = replace(charge, others=GaussianDpEvent(7.0))
    terms = replace(TERMS, adaptive=False)
    second = replace(charge, others=GaussianDpEvent(9.0))
    with Ledger(tmp_path / "own", terms, allotted={BIT: 2, dump_charge(second): 1}) as ledger:

        def refused(number: int, charge: Charge, holder: str = "a") -> bool:
            key = ReleaseKey(holder, bytes(32), number, 0, 0, "update")
            return bool(ledger.reserve([(key, charge)]))

        assert refused(1, other)
        assert [refused(n, charge) for n in (1, 2, 3)] == [False, False, True]
        assert not refused(2, charge)  # it stands
        assert not refused(1, charge, "b")  # each client may have as much
        assert [refused(n, second) for n in (4, 5)] == [False, True]  # of each charge by itself
        assert not refused(6, NO_COST)


@pytest.mark.parametrize("adversaries", [(OTHERS, SERVER), (SERVER, OTHERS)])
def test_the_shared_budget_holds_against_every_named_party(path: Path, adversaries: tuple[str, ...]) -> None:
    """Under central noise the server is no adversary. If the terms name it, no order of names lets it by."""
    with SharedLedger(path, replace(TERMS, adversaries=adversaries), RECORDS) as shared:
        with pytest.raises(BudgetExceeded):
            shared.reserve([bits("a", 1, CENTRAL)])
        assert not shared.runs().entries
