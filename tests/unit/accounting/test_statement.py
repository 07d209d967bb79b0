"""A ledger's statement: the figures of single compositions, each worked out once."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent, get_epsilon_gaussian

from securefl.accounting import chain, composition
from securefl.accounting.composition import gaussian_epsilon, running_epsilon
from securefl.accounting.events import NO_COST, History, steps_event
from securefl.accounting.ledger import Ledger, Terms
from securefl.accounting.statements import identity_of, statement, terms_of
from securefl.core.errors import DataError
from securefl.core.release import Charge, ReleaseKey

DELTA = 1e-5
TERMS = Terms(unit="record", adjacency="add-remove", delta=DELTA)
LOUD, QUIET, STEPS = GaussianDpEvent(4.0), GaussianDpEvent(9.0), steps_event(0.1, 2.0, 3)


def written(folder: Path, *waves: dict[str, DpEvent]) -> Path:
    """A ledger of rounds: what each holder releases in each, to the server."""
    path = folder / "ledger.sqlite"
    with Ledger(path, TERMS) as ledger:
        for number, wave in enumerate(waves, start=1):
            wants = [
                (
                    ReleaseKey(holder, b"s" * 32, number, 0, 0, "update"),
                    Charge(server=event, key_holder=NoOpDpEvent(), others=NoOpDpEvent()),
                )
                for holder, event in wave.items()
            ]
            assert not ledger.reserve(wants)
    return path


WAVES: tuple[dict[str, DpEvent], ...] = (
    {"a": LOUD, "b": LOUD, "c": STEPS},
    {"a": QUIET, "c": STEPS},
    {"a": LOUD, "b": QUIET, "c": LOUD},
    {"b": LOUD, "c": NonPrivateDpEvent()},
)


def test_epsilon_after_each_release_is_that_of_its_holders_history(tmp_path: Path) -> None:
    rows = statement(written(tmp_path, *WAVES), party="server").releases
    spent: dict[str, Counter[DpEvent]] = {}
    expected = []
    for wave in WAVES:
        for holder, event in wave.items():
            spent.setdefault(holder, Counter())[event] += 1
            one = running_epsilon(History.of(spent[holder]), DELTA)
            expected.append((holder, "inf" if math.isinf(one) else pytest.approx(one, abs=1e-6)))
    assert [(row["holder"], row["epsilon"]) for row in rows] == expected
    assert [row["round"] for row in rows] == [1, 1, 1, 2, 2, 3, 3, 3, 4, 4]
    assert {row["epsilon"] for row in statement(tmp_path / "ledger.sqlite", party="others").releases} == {0.0}


def test_one_holder_alone(tmp_path: Path) -> None:
    path = written(tmp_path, *WAVES)
    whole = statement(path, party="server").releases
    assert statement(path, party="server", holder="b").releases == [
        row for row in whole if row["holder"] == "b"
    ]


def test_holders_in_the_same_state_share_one_composition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, *(dict.fromkeys("abcdef", LOUD) for _ in range(5)))
    composition.epsilon.cache_clear()
    assert len(statement(path, party="server").releases) == 30
    assert composition.epsilon.cache_info().misses == 5


def test_another_versions_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"version 8, .* version 0"):
        statement(path, party="server")
    path.write_bytes(b"no database" * 100)
    with pytest.raises(DataError, match=r"other\.sqlite"):
        statement(path, party="server")


def test_a_ledger_whose_schema_is_no_text_is_refused(tmp_path: Path) -> None:
    """SQLite quotes the schema in its error, which Python then cannot read."""
    path = written(tmp_path, WAVES[0])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA writable_schema = 1")
        db.execute("UPDATE sqlite_master SET sql = CAST(x'63726561ff' AS TEXT) WHERE name = 'terms'")
    with pytest.raises(DataError, match="is damaged"):
        identity_of(path)


def test_a_file_says_its_terms_and_which_ledger_it_is(tmp_path: Path) -> None:
    path = written(tmp_path)
    with Ledger(path, TERMS) as ledger:
        assert identity_of(path) == ledger.identity
    assert terms_of(path) == TERMS
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM terms WHERE name = 'identity'")
    with pytest.raises(DataError):
        identity_of(path)


def test_a_run_that_writes_while_its_statement_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, own = written(tmp_path, WAVES[0]), chain.head
    with Ledger(path, TERMS) as ledger:

        def reserve(holder: str) -> None:
            ledger.reserve([(ReleaseKey(holder, b"s" * 32, 9, 0, 0, "update"), NO_COST)])

        def later(rows: chain.Rows) -> chain.Head:
            reserve("z")
            return own(rows)

        reserve("y")  # it is in the log, so the file is read by SQLite's locks
        monkeypatch.setattr(chain, "head", later)
        found = statement(path, party="server")
        assert (len(found.releases), found.head.count, ledger.head.count) == (4, 4, 5)


def test_one_gaussian_has_the_librarys_epsilon_bit_for_bit() -> None:
    rng = np.random.default_rng(11)
    for sigma, delta in zip(10 ** rng.uniform(-5, 5, 200), 10 ** rng.uniform(-14, -0.3, 200), strict=True):
        with np.errstate(divide="ignore"):
            assert gaussian_epsilon(float(sigma), float(delta)) == get_epsilon_gaussian(sigma, delta)
