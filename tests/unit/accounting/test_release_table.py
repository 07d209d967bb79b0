"""Counts that are kept beside a ledger's file are those of the file, whoever writes and whatever fails."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, NoOpDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from securefl.accounting.ledger import DeclaredQuery, Ledger, Terms
from securefl.core.errors import LocalProtocolError, UnaccountedRelease
from securefl.core.release import Charge, Release, ReleaseKey
from securefl.storage.database import Database

TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)
CHARGES = [Charge(server=GaussianDpEvent(s), key_holder=NoOpDpEvent(), others=NoOpDpEvent()) for s in (2, 3)]
ACTS = st.tuples(
    st.sampled_from(["reserve", "twice", "open", "foreign charge"]),
    st.integers(0, 1),
    st.sampled_from("abc"),
    st.integers(1, 3),
    st.integers(0, 1),
)


def key(holder: str, number: int) -> ReleaseKey:
    return ReleaseKey(holder, bytes(32), number, 0, 0, "update")


def act(ledger: Ledger, what: str, holder: str, number: int, charge: Charge) -> None:
    """One thing that a process does; some of it fails halfway, and is undone."""
    with suppress(LocalProtocolError, UnaccountedRelease):
        match what:
            case "reserve" | "foreign charge":
                ledger.reserve([(key(holder, number), charge)])
            case "twice":
                ledger.reserve([(key("z", number), charge), (key(holder, number + 9), charge)] * 2)
            case "open":
                release = Release(
                    key=key(holder, number), charge=charge, unit="record", form="open", _numbers=np.ones(1)
                )
                ledger.open(release)


@settings(max_examples=60)
@given(st.lists(ACTS, max_size=14))
def test_counts_are_those_of_the_file(acts: list[tuple[str, int, str, int, int]]) -> None:
    """Two processes write in turns. Each says the epsilon that a third one reads afresh."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "ledger.sqlite"
        both = [stack.enter_context(Ledger(path, TERMS)) for _ in range(2)]
        for what, who, holder, number, charge in acts:
            act(both[who], what, holder, number, CHARGES[charge])
            for ledger in both:
                ledger.worst("server")
        with Ledger(path, TERMS) as fresh:
            for holder in "abcz":
                said = {ledger.epsilon(holder, "server") for ledger in (*both, fresh)}
                assert len(said) == 1
            assert {ledger.worst("server") for ledger in both} == {fresh.worst("server")}


def test_releases_of_a_value_keep_their_separation(tmp_path: Path) -> None:
    """The client's own ledger refuses one that comes too early, and charges nothing; also after a restart."""
    apart = DeclaredQuery(separation=3)

    def reserved(ledger: Ledger, number: int, name: str = "update", **at: Any) -> bool:
        one = replace(key("a", number), name=name, **at)
        before = ledger.epsilon("a", "server")
        refused = ledger.reserve([(one, CHARGES[0])], {one: apart if name == "update" else DeclaredQuery()})
        if refused:
            assert ledger.epsilon("a", "server") == before
            assert " on, or not again if the plan ends" in str(refused["a"])
        return not refused

    with Ledger(tmp_path / "ledger", TERMS) as ledger:
        assert reserved(ledger, 4)
        assert reserved(ledger, 4, attempt=1), "a retry of the round, whose row has one total"
        assert reserved(ledger, 5, session=b"b" * 32), "another session has other noise"
        assert reserved(ledger, 5, name="other")
        assert reserved(ledger, 1)
        for number in (2, 3, 5, 6):
            assert not reserved(ledger, number)
    with Ledger(tmp_path / "ledger", TERMS) as ledger:
        assert not reserved(ledger, 6)
        assert reserved(ledger, 7)


def test_a_round_reads_the_file_once_not_once_a_client(tmp_path: Path, monkeypatch: object) -> None:
    """The growth of a run: how many rows a round reads does not follow how many there are."""
    read: list[int] = []
    own = Database.rows

    def counting(self: Database, *asked: object) -> list[tuple[object, ...]]:
        rows = own(self, *asked)  # type: ignore[arg-type]
        read.append(len(rows))
        return rows

    monkeypatch.setattr(Database, "rows", counting)  # type: ignore[attr-defined]
    with Ledger(tmp_path / "ledger.sqlite", TERMS) as ledger:
        cost = []
        for number in range(1, 31):
            read.clear()
            ledger.reserve([(key(f"{k}", number), CHARGES[0]) for k in range(20)])
            ledger.worst("server")
            cost.append(sum(read))
    assert cost[1:] == cost[1:2] * 29
