"""Hidden sums over a whole run: lost answers, spare attempts, kill points, unequal orders, other records."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.hidden_plans import hidden
from support.hidden_studies import hidden as hidden_study
from support.hidden_studies import rows
from support.liars import signed_anew
from support.run_file import empty, take
from support.tiny_orders import order
from support.tiny_study import plain, same_state, spied, with_privacy, world

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, ValueSpec
from securefl.core.acts import Begin, RecordAct
from securefl.core.errors import DataError, RemoteProtocolError
from securefl.core.keys import Commitment
from securefl.core.machine import Outgoing, Step
from securefl.core.messages import Cohort, Order, client_name
from securefl.core.release import SERVER
from securefl.core.wire import Header, Limit, peek
from securefl.engine import server as engine_server
from securefl.engine.drive import Packet
from securefl.engine.exchange import client as exchange
from securefl.engine.exchange import server
from securefl.engine.inprocess import InProcess
from securefl.engine.network import Network
from securefl.engine.party import clients as party_clients
from securefl.engine.party.clients import ClientParty
from securefl.protocols import averaging
from securefl.secagg import Client
from securefl.secagg.messages import Shares
from securefl.study.arm import arm_folder
from securefl.study.config import Study, parse
from securefl.study.run import run_arm
from securefl.sums import masked
from securefl.sums.scheme import Attempt

CLIENTS = 7
ARMS = {
    "partial": '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\naggregation = "partial"\n',
    "full": '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\naggregation = "full"\n',
    "fedlog": '[[arm]]\nname = "x"\nprotocol = "fedlog"\n',
}
NOISE = {
    "noise": '"distributed"',
    "epsilon": "2.0",
    "adjacency": '"add-remove"',
    "non_private": "[]",
}


def study(
    arm: str = "partial", *, rounds: int, clients: int = CLIENTS, noised: bool = False, **privacy: Any
) -> Study:
    """Masked sums; `privacy` are words of that section."""
    usual = {"dropout": "0.3", "max_retries": "0", "min_cohort_size": "5"}
    usual["non_private"] = '["statistic"]' if arm == "fedlog" else '["update"]'
    written = hidden_study("masked", ARMS[arm], clients=clients, rounds=rounds)
    said = {word: str(value) for word, value in privacy.items()}
    return parse(with_privacy(written, usual | (NOISE if noised else {}) | said))


def charged(of: Study, folder: Path, name: str = "") -> list[tuple[Any, ...]]:
    """(holder, round, attempt) of all that was charged, or of what was charged under this name."""
    return [(row[0], row[2], row[4]) for row in rows(of, folder) if name in ("", row[5])]


class Silent(Client):
    """What it answers to the request to unmask is lost, in some attempts."""

    lost = ((1, 1),)

    def _unmask(self, state: Any) -> Step[Any]:
        step = super()._unmask(state)
        at = self.agreement.header
        return replace(step, out=()) if (at.round, at.attempt) in self.lost else step


class Deceiver(Client):
    """Client 3 deals shares of another seed than it says: the very last step tells."""

    def provide(self, state: Any, answer: Any) -> Step[Any]:
        step = super().provide(state, answer)
        deals = step.out and isinstance(step.out[0].message, Shares)
        if self.name != client_name(3) or self.agreement.header.round > 1 or not deals:
            return step
        [envelope] = step.out
        lie = signed_anew(self, step.state, replace(envelope.message, seed=Commitment(bytes(32))))
        return replace(step, out=(Outgoing(envelope.to, lie),))


# Lost after somebody signed ---------------------------------------------------------------------


def test_an_unnoised_question_is_lost_after_the_signatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second attempt is made, over whatever set, and the spare one stays for the next round."""
    monkeypatch.setattr(masked, "Client", Silent)
    of = study(max_retries=1, rounds=2)
    spy, finished = spied(of, tmp_path)
    first, second = finished.records
    assert (first["answered"], second["answered"]) == ([], list(range(CLIENTS)))
    assert "phase unmask" in first["abstained"][SERVER]
    assert (first["retries_left"], second["retries_left"]) == (1, 1)
    assert sorted(charged(of, tmp_path)) == sorted(
        (client_name(k), number, 1) for k in range(CLIENTS) for number in (1, 2)
    )
    assert np.array_equal(spy.states[0].broadcast, spy.states[1].broadcast)
    assert not np.array_equal(spy.states[1].broadcast, spy.states[2].broadcast)


def test_a_culprit_at_the_very_end_leaves_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once anybody has signed, "retry without it" would be a second set: the round is lost instead."""
    monkeypatch.setattr(masked, "Client", Deceiver)
    of = study(max_retries=2, rounds=2)
    _, finished = spied(of, tmp_path)
    first, second = finished.records
    assert first["answered"] == []
    assert (first["proven_cheaters"], first["retries_left"]) == ([3], 2)
    assert set(first["rejected_from"]) == {client_name(3)}
    assert second["answered"] == [0, 1, 2, 4, 5, 6]
    assert {attempt for _, number, attempt in charged(of, tmp_path) if number == 1} == {1}


def test_a_noised_question_that_was_lost_is_put_anew_and_charged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh noise makes it another value; the noise was calibrated for both."""
    asked: list[int] = []
    real = Attempt.vectors

    def vectors(self: Attempt) -> Any:
        asked.append(self.again)
        return real(self)

    monkeypatch.setattr(Attempt, "vectors", vectors)
    of = study("fedlog", max_retries=1, rounds=2, noised=True)
    _, undisturbed = spied(of, tmp_path / "undisturbed")
    assert set(asked) == {0}
    monkeypatch.setattr(masked, "Client", Silent)
    _, finished = spied(of, tmp_path / "lost")
    assert set(asked) == {0, 1}
    first, second = finished.records
    assert first["answered"] == list(range(CLIENTS))
    assert (first["retries_left"], second["asked"]) == (0, 0)
    found = charged(of, tmp_path / "lost")
    assert len(found) == 2 * CLIENTS
    assert len({attempt for _, _, attempt in found}) == 2
    assert len(charged(of, tmp_path / "undisturbed")) == CLIENTS
    spent = first["epsilon"]["server"]
    assert spent == pytest.approx(2.0, abs=1e-6)
    assert undisturbed.records[0]["epsilon"]["server"] < spent


def test_a_noised_question_is_not_put_anew_without_a_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor may those who signed be asked for the value, which cannot change, in a later round."""
    monkeypatch.setattr(masked, "Client", Silent)
    of = study("fedlog", max_retries=0, rounds=3, noised=True)
    _, finished = spied(of, tmp_path)
    assert [record["answered"] for record in finished.records] == [[]] * 3
    assert len(charged(of, tmp_path)) == CLIENTS, "who refuses is not charged"


# A value that cannot change ---------------------------------------------------------------------


def silent_in_round_1(patch: pytest.MonkeyPatch, *who: int) -> None:
    """Nothing that these clients say in round 1 arrives."""
    post, names = Network._post, {client_name(k) for k in who}

    def lossy(self: Network, parcels: Sequence[Packet]) -> None:
        kept = [p for p in parcels if p.sender not in names or peek(p.data, p.sender).round > 1]
        post(self, kept)

    patch.setattr(Network, "_post", lossy)


def test_a_value_that_cannot_change_is_asked_for_once(tmp_path: Path) -> None:
    of = study("fedlog", rounds=3)
    spy, finished = spied(of, tmp_path)
    assert [record["asked"] for record in finished.records] == [1, 0, 0]
    assert [record["bytes_up"] > 0 for record in finished.records] == [True, False, False]
    assert [record["bytes_down"] > 0 for record in finished.records] == [True, False, False]
    assert all(np.array_equal(spy.states[1].broadcast, later.broadcast) for later in spy.states[2:])
    assert len(charged(of, tmp_path)) == CLIENTS


@every(("cohort", "asked"), [(5, True), (6, False)])
def test_who_was_absent_is_asked_later_if_they_are_a_least_cohort(
    cohort: int, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five of fifteen were absent: together they are a sum of their own, or stay out of it."""
    silent_in_round_1(monkeypatch, 10, 11, 12, 13, 14)
    of = study("fedlog", rounds=3, clients=15, min_cohort_size=cohort, dropout=0.34)
    _, finished = spied(of, tmp_path)
    first, second, third = finished.records
    assert first["answered"] == list(range(10))
    assert second["answered"] == ([10, 11, 12, 13, 14] if asked else [])
    assert third["asked"] == (0 if asked else 1)
    if not asked:
        assert "5 clients are left, a sum needs 6" in second["abstained"][SERVER]
        assert (second["bytes_up"], second["bytes_down"]) == (0, 0)
    assert sum(number == 2 for _, number, _ in charged(of, tmp_path)) == (5 if asked else 0)


# Weights ----------------------------------------------------------------------------------------

OFFERED = ValueSpec(name="update", reduction="sum", reveals="it", weighs="draws")


def ordered(plan: Plan, shown: tuple[int, ...], **changes: Any) -> Any:
    """What an honest client makes of an order for a cohort with these draws, which the call told it."""
    members = changes.pop("members", tuple(range(len(shown))))
    cohort = Cohort(members=members, draws=shown)
    machine = exchange.Client(
        number=0,
        header=Header(bytes(32), 1, 0, 0),
        plan=plan,
        contributions={"update": OFFERED},
        most=Limit(2**20, 99),
        cohort=cohort,
    )
    terms: dict[str, Any] = {
        "sums": ("update",),
        "cohort": cohort.digest,
        "draws": 0,
        "whole": sum(shown),
        "most": max(shown),
    }
    return machine.receive(machine.begin().state, SERVER, order(**{**terms, **changes}))


DRAWS = 12
PLAN = hidden(
    Plan(delta=1e-5, max_rounds=2, non_private=("update",), weights={"update": "draws"}, draws=DRAWS),
    CLIENTS,
    min_cohort_size=4,
    corrupt=0.1,
)


@every(
    "changes",
    [
        {"whole": 10**12},
        {"most": 7},
        {"most": 0},
        {"members": (1, 2, 3, 4, 5, 6, 7)},
        {"cohort": Cohort(members=(0, 1, 2), draws=(1, 1, 1)).digest},
        {"draws": 1},
        {"records": -1},
        {"records": 9},
    ],
)
def test_draws_that_do_not_add_up_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        ordered(PLAN, (1,) * CLIENTS, **changes)


def test_a_cohort_beyond_the_plans_sizes_is_refused_by_each_client() -> None:
    plan = replace(PLAN, min_cohort_size=CLIENTS)
    ordered(plan, (1,) * CLIENTS)
    for size in (CLIENTS - 1, CLIENTS + 1):
        with pytest.raises(RemoteProtocolError, match=f"cohort of 7 to 7 clients, .* got {size}"):
            ordered(plan, (1,) * size)


Lie = Callable[[Order, Cohort], tuple[Order, Cohort]]
"""Another order, and another cohort that it names and that its clients are told."""


def drawn(*draws: int) -> Lie:
    """The same members with other draws."""

    def lie(said: Order, cohort: Cohort) -> tuple[Order, Cohort]:
        other = replace(cohort, draws=draws)
        return replace(said, cohort=other.digest, whole=sum(draws), most=max(draws)), other

    return lie


def told_otherwise(patch: pytest.MonkeyPatch, who: Sequence[int], lie: Lie) -> None:
    """The server gives these clients another call and order than the rest, wherever it asks for an update."""
    begin, names = server.Server.begin, {client_name(k) for k in who}
    made, lied = exchange.Client, dict[bytes, Cohort]()

    def client(*, number: int, cohort: Cohort | None, **more: Any) -> exchange.Client:
        """These clients were told the other cohort, as if each had a call of its own."""
        if cohort is not None and number in who:
            cohort = lied.get(cohort.digest, cohort)
        return made(number=number, cohort=cohort, **more)

    patch.setattr(party_clients, "Client", client)
    patch.setattr(engine_server, "cohort_of", lambda query: _remembered(query, lied, lie))

    def unequal(self: server.Server) -> Any:
        step = begin(self)
        envelopes = []
        for envelope in step.out:
            said = envelope.message
            if isinstance(said, Order) and "update" in said.sums:
                liars = tuple(name for name in envelope.to if name in names)
                others = tuple(name for name in envelope.to if name not in names)
                envelopes += [
                    Outgoing(others, said),
                    Outgoing(liars, lie(said, server.cohort_of(self.query))[0]),
                ]
            else:
                envelopes.append(envelope)
        return replace(step, out=tuple(envelopes))

    patch.setattr(server.Server, "begin", unequal)


def _remembered(query: CohortQuery, lied: dict[bytes, Cohort], lie: Lie) -> Cohort:
    cohort = server.cohort_of(query)
    lied[cohort.digest] = lie(server.order_of(query), cohort)[1]
    return cohort


UNEQUAL: dict[str, tuple[str, Lie]] = {
    "draws": ("partial", drawn(1, 1, 1, 2, 1, 1, 1)),
    "a smaller n": ("full", lambda said, cohort: (replace(said, records=said.records // 2), cohort)),
}
BEYOND: dict[str, tuple[str, Lie]] = {
    "draws": ("partial", drawn(1, 1, 1, 9, 1, 1, 1)),
    "an n of one record": ("full", lambda said, cohort: (replace(said, records=1), cohort)),
}
"""Lies that clients refuse by their plan alone."""


REST = [0, 1, 2, 4, 5, 6]


@every(
    ("what", "scheme", "who", "answered"),
    [
        *((what, "masked", who, []) for what in UNEQUAL for who in ((0, 1, 2), tuple(REST))),
        *((what, "masked", (3,), REST) for what in UNEQUAL),
        *(("draws", scheme, (0, 1, 2), []) for scheme in ("ckks", "two-server")),
        *(("draws", scheme, (3,), REST) for scheme in ("ckks", "two-server")),
    ],
)
def test_unequal_orders_have_no_sum(
    what: str, scheme: str, who: tuple[int, ...], answered: list[int], tmp_path: Path, monkeypatch: Any
) -> None:
    """Each client accepts its own order, for of seven one may be drawn twice. Their task digests differ.

    Signatures over two tasks make no set: of seven, five must stand behind one. Whoever was told otherwise is
    in no sum with the rest.
    """
    told_otherwise(monkeypatch, who, UNEQUAL[what][1])
    own = averaging.sampling
    monkeypatch.setattr(averaging, "sampling", lambda *said, **more: replace(own(*said, **more), draws=8))
    of = study(UNEQUAL[what][0], rounds=1, max_client_weight=0.81, sum=f'"{scheme}"')
    spy, finished = spied(of, tmp_path)
    record = finished.records[0]
    assert record["answered"] == answered
    if scheme == "masked" and not answered:
        assert set(record["rejected_from"]) == {client_name(k) for k in who}, "nobody refused its order"
        assert np.array_equal(spy.states[0].broadcast, spy.states[-1].broadcast)
        assert not any("update" in answers.totals for _, answers in spy.asks)


@every("what", BEYOND)
def test_whoever_is_told_beyond_its_plan_takes_no_part(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm, lie = BEYOND[what]
    told_otherwise(monkeypatch, (3,), lie)
    of = study(arm, rounds=1)
    _, finished = spied(of, tmp_path)
    assert "as the plan says" in finished.records[0]["rejected_from"][SERVER]
    assert finished.records[0]["answered"] == REST
    assert len(charged(of, tmp_path, "update")) == CLIENTS - 1


# Cut off ----------------------------------------------------------------------------------------


class CutOff:
    """Ends the process right after the n-th wave of acts was written, once."""

    def __init__(self, patch: pytest.MonkeyPatch, after: int) -> None:
        self.waves: list[str] = []
        self.after = after
        self._work = ClientParty.work
        patch.setattr(ClientParty, "work", lambda host, needs: self.work(host, needs))

    def work(self, host: ClientParty, needs: Any) -> list[Any]:
        answers = self._work(host, needs)
        acts = [order for _, order in needs if isinstance(order, Begin | RecordAct)]
        if acts:
            self.waves.append(getattr(acts[0], "act", "begin"))
            if len(self.waves) == self.after:
                raise KeyboardInterrupt
        return answers


WAVES = ("begin", "deal", "mask", "sign") * 2


@every("after", range(1, len(WAVES) + 1))
def test_a_run_that_is_cut_off_after_any_wave_of_acts_ends_the_same(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same models bit for bit, and one charge for each client and round."""
    of = study(rounds=2)
    expected, whole = spied(of, tmp_path / "whole")
    with monkeypatch.context() as patch:
        cut = CutOff(patch, after)
        with pytest.raises(KeyboardInterrupt):
            spied(of, tmp_path / "cut")
    assert tuple(cut.waves) == WAVES[:after]
    spy, resumed = spied(of, tmp_path / "cut")
    assert plain(resumed.records) == plain(whole.records)
    assert same_state(spy.states[-1], expected.states[-1])
    assert sorted(charged(of, tmp_path / "cut")) == sorted(
        (client_name(k), number, 1) for k in range(CLIENTS) for number in (1, 2)
    )


# A journal that was swapped ---------------------------------------------------------------------


def opened_inputs(patch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(client, round) of each input in a total that was opened, as it happens."""
    found: list[tuple[str, int]] = []
    query = InProcess.query

    def watched(self: InProcess, question: Any, header: Header, network: Any) -> Any:
        answers, log = query(self, question, header, network)
        found.extend((client_name(k), header.round) for k in answers.survivors if answers.totals)
        return answers, log

    patch.setattr(InProcess, "query", watched)
    return found


@every("within", [False, True])
@every("swap", ["another run's", "an older copy", "none"])
def test_a_journal_that_was_swapped_opens_no_input_twice(
    swap: str, within: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused: the run began with another one, or with one that knew more.

    Cut off after the signatures, without its record, a client would mask the same input for another set. With
    an attempt to spare this gave client 3's input: two totals of round 2, one of them without it.
    """
    of = study(rounds=3, max_retries=1)
    other, home = tmp_path / "other", tmp_path / "run"
    spied(of, other)
    here, foreign = (arm_folder(folder, of.arms[0], 3) / "ledger.sqlite" for folder in (home, other))
    opened = opened_inputs(monkeypatch)

    def after(rounds: int) -> None:
        run_arm(of, of.arms[0], world(of), home, lambda record: None, rounds=rounds)

    after(1)
    older = shutil.copy(here, tmp_path / "older.sqlite")
    if within:
        with monkeypatch.context() as patch:
            CutOff(patch, WAVES.index("sign") + 1)
            with pytest.raises(KeyboardInterrupt):
                after(2)
    else:
        after(2)
    if swap == "none":
        empty("journal", here)
    else:
        take(older if swap == "an older copy" else foreign, "journal", here)
    with pytest.raises(DataError, match="older copy" if swap == "an older copy" else "not the one"):
        after(3)
    assert len(opened) == len(set(opened)) == CLIENTS * (1 if within else 2)
    assert len(charged(of, home)) == 2 * CLIENTS
