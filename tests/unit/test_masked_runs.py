"""Masked sums inside a study: retries, charges, kept bookings, and noise that is sized for the survivors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_secagg_adversary import wrong_pair
from tiny_study import FEDAVG, run, spied, text, world

from securefl.accounting.ledger import Ledger, Terms
from securefl.engines import masked
from securefl.errors import ConfigError, DataError
from securefl.grid import Grid
from securefl.machine import Envelope, Step
from securefl.rounds import Ask, Sends, Sum
from securefl.secagg import Client
from securefl.secagg.client import Durable
from securefl.secagg.journal import Journal
from securefl.secagg.messages import Shares
from securefl.study.config import Study, parse
from securefl.study.run import arm_folder
from securefl.wire import Header

CLIENTS = 7


def study(spare: int, *, rounds: int = 1) -> Study:
    arm = FEDAVG.replace("fraction = 0.5", 'fraction = 1.0\naggregation = "partial"')
    written = text(arm, clients=CLIENTS, rounds=rounds)
    return parse(
        written.replace('sum = "clear"', f'sum = "masked"\ndropout = 0.3\ncorrupt = 0.15\nspare = {spare}')
    )


class Liar(Client):
    """Deals wrong shares, well signed."""

    def _deal(self, state: Any, roster: Any) -> Step[Any]:
        step = super()._deal(state, roster)
        if self.name != "client-0003":
            return step
        (envelope,) = step.out
        assert isinstance(envelope.message, Shares)
        return replace(step, out=(Envelope(envelope.to, wrong_pair(self, step.state, envelope.message)),))


def rows(of: Study, folder: Path) -> list[tuple[Any, ...]]:
    terms = Terms(unit="record", adjacency="replace-one", delta=of.privacy.delta)
    with Ledger(arm_folder(folder, of.arms[0], 3) / "ledger.sqlite", terms) as ledger:
        return ledger.rows()


def test_a_bad_dealer_ends_the_attempt_and_the_next_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked, "Client", Liar)
    of = study(spare=1)
    spy, finished = spied(of, tmp_path)
    (record,) = finished.records
    assert set(record["blamed"]) == {"client-0003"}
    assert record["answered"] == [1, 1, 1, 0, 1, 1, 1]
    assert "phase share" in record["abstained"]["server"]
    here = world(of)
    without = [*here.records[:3], (here.records[3][0][:0], here.records[3][1][:0]), *here.records[4:]]
    monkeypatch.undo()
    clear = parse(
        of.text.replace('sum = "masked"\ndropout = 0.3\ncorrupt = 0.15\nspare = 1', 'sum = "clear"')
    )
    expected, _ = spied(clear, tmp_path / "clear", replace(here, records=without))
    assert np.array_equal(spy.states[-1].model, expected.states[-1].model)


def test_without_a_spare_attempt_the_sum_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked, "Client", Liar)
    spy, finished = spied(study(spare=0), tmp_path)
    assert finished.records[0]["answered"] == [0] * CLIENTS
    assert np.array_equal(spy.states[0].model, spy.states[-1].model)


def test_a_masked_release_that_was_sent_stays_booked_when_the_round_aborts(tmp_path: Path) -> None:
    """Four of seven answers are lost after the masked inputs went out: nothing opens, the charges stand."""
    of = parse(study(spare=0, rounds=3).text + "\n[network]\ndropout = 0.12\n")
    finished = run(of, tmp_path)
    lost = [n for n, record in enumerate(finished.records, start=1) if not sum(record["answered"])]
    booked = {row[2] for row in rows(of, tmp_path) if row[5] == "update" and row[7] == "committed"}
    assert lost, "choose another seed: every sum was opened"
    assert set(lost) & booked, "choose another seed: no input was sent in a round that aborted"


def test_every_attempt_has_its_own_place_and_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt fails after some masked inputs went out; they are booked twice."""
    of = parse(study(spare=3, rounds=2).text + "\n[network]\ndropout = 0.12\n")
    run(of, tmp_path)
    places = {(row[2], row[3]) for row in rows(of, tmp_path)}
    assert len(places) > len({number for number, _ in places})
    per_place: dict[tuple[Any, ...], int] = {}
    for row in rows(of, tmp_path):
        key = (row[0], row[2], row[3], row[4])
        per_place[key] = per_place.get(key, 0) + 1
    assert set(per_place.values()) == {1}


def test_a_client_refuses_a_roster_smaller_than_its_noise_was_sized_for() -> None:
    """Shares of noise are sized for the declared cohort: a server that asks fewer gets no sum."""
    of = study(0)
    plan = replace(
        of.privacy.plan(1), noise="distributed", noise_multiplier=1.0, adjacency="add-remove", unprotected=()
    )
    sends = Sends(
        name="statistic",
        how="sum",
        reveals="it",
        sensitivity={("record", "add-remove"): 1.0},
        grid=Grid(step=2.0**-10, bound=16.0),
        cohort=CLIENTS,
    )
    ask = Ask(cohort=tuple(range(CLIENTS)), model=np.zeros(0, np.float32), sums=(Sum(sends, 3),))
    cohorts = masked.Cohorts(plan)
    header = Header(bytes(32), 1, 0, 1)
    assert len(cohorts.machines(ask, range(CLIENTS), header)) == CLIENTS + 1
    with pytest.raises(ConfigError, match="protect less than this client asks for"):
        cohorts.machines(ask, range(4), header)


# The journal -------------------------------------------------------------------------------------


def act(client: str = "a", stage: int = 1, kind: Any = "unmask", digest: bytes = b"x") -> Durable:
    return Durable(client=client, header=Header(bytes(32), 1, 0, stage), act=kind, digest=digest)


def test_an_act_is_recorded_once_whatever_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "acts.sqlite"
    with Journal(path) as journal:
        assert journal.record([act(), act("b"), act(stage=2), act(kind="sign")]) == [True] * 4
        assert journal.record([act(digest=b"other")]) == [False]
    with Journal(path) as again:
        assert again.record([act(), act("c")]) == [False, True], "a new process knows it"


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "acts.sqlite"
    path.write_bytes(b"SQLite format 3\0" + bytes(50))
    with pytest.raises(DataError, match="cannot be opened"):
        Journal(path)
