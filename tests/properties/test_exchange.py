"""One ask over an unreliable network: the sum over the stated survivors is exact, or nobody survived."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every import every
from support.hidden_plans import hidden
from support.tiny_orders import order

from securefl.accounting.ledger import Ledger, Terms
from securefl.algorithm.clients import (
    Algorithm,
    ClientContext,
    Contribution,
    Device,
    Evaluation,
    Population,
    State,
)
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, ByDraws, CohortQuery, PerClient, Sum, Value, ValueSpec
from securefl.core.errors import RemoteProtocolError
from securefl.core.grid import Grid
from securefl.core.messages import Cohort, ContributionMessage
from securefl.core.release import Delivered
from securefl.core.wire import Header, Limit
from securefl.engine.exchange import Client, Server
from securefl.engine.inprocess import simulated
from securefl.engine.network import Faults, Network
from securefl.engine.observer import Log

CLIENTS = 5
SUM, ONE = (
    ValueSpec(name="vector", reduction="sum", reveals="it", weighs="draws"),
    ValueSpec(name="number", reduction="none", reveals="it"),
)
DRAWS = {k: k + 1 for k in range(CLIENTS)}
WEIGHTS = {k: draws / 15 for k, draws in DRAWS.items()}
MODEL = np.zeros(3, dtype=np.float32)
ASK = CohortQuery(
    cohort=tuple(range(CLIENTS)),
    broadcast=MODEL,
    sums=(Sum(SUM, 3),),
    per_client=(PerClient(ONE),),
    weights=ByDraws(DRAWS),
)
PLAN = Plan(delta=1e-5, max_rounds=3, non_private=("vector", "number"))
TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)


def vector(client: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([client + 0.1, -client / 3, 1.0])


@dataclass(frozen=True)
class Vector:
    spec: ValueSpec = SUM

    def compute(self, context: ClientContext) -> Value:
        return Value(clear=context.x[0].astype(np.float64))


@dataclass(frozen=True)
class Number:
    spec: ValueSpec = ONE

    def compute(self, context: ClientContext) -> Value:
        return Value(clear=context.x[0, :1].astype(np.float64))


@dataclass(frozen=True)
class Toy:
    contributions: tuple[Contribution, ...] = field(default_factory=lambda: (Vector(), Number()))

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        return Evaluation(accuracy=0.0, loss=0.0)

    def start(self) -> State:
        return State(MODEL)

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[CohortQuery, Answers, State]:
        yield ASK
        return state


def header(stage: int = 0, number: int = 1) -> Header:
    return Header(bytes(32), number, 0, stage)


def run(
    *,
    faults: Faults = Faults(),  # noqa: B008  frozen
    seed: int = 0,
    tamper: Callable[[str, str, bytes], bytes] | None = None,
    records: dict[int, Any] | None = None,
    terms: Terms = TERMS,
    number: int = 1,
) -> tuple[Answers, Log, list[tuple[Any, ...]]]:
    algorithm: Algorithm = Toy()
    own = {k: np.array([vector(k)]) for k in range(CLIENTS)} | (records or {})
    with Ledger(None, terms) as ledger:
        engine = simulated(
            replace(PLAN, budget=terms.budget),
            algorithm.contributions,
            ledger,
            [(own[k], np.zeros(len(own[k]))) for k in range(CLIENTS)],
            rng=lambda number, client, query: np.random.default_rng(0),
        )
        network = Network(faults, rng=np.random.default_rng(seed), tamper=tamper)
        answers, log = engine.query(ASK, header(number=number), network)
        return answers, log, ledger.rows()


def assert_exact(answers: Answers, values: Callable[[int], Any] = vector) -> None:
    grid = Grid()
    expected = np.zeros(3, dtype=np.int64)
    for client in answers.survivors:
        expected += grid.quantise(WEIGHTS[client] * values(client))
    np.testing.assert_array_equal(answers.totals["vector"].value, expected * grid.step)
    assert answers.totals["vector"].weight == sum(WEIGHTS[k] for k in answers.survivors)
    assert answers.per_client["number"] == {k: values(k)[0] for k in answers.survivors}


def test_a_quiet_network_loses_nobody() -> None:
    answers, log, rows = run()
    assert answers.survivors == tuple(range(CLIENTS))
    assert_exact(answers)
    assert not log.abstained
    assert not log.traffic.rejected_from
    assert len(rows) == 2 * CLIENTS
    assert {row[7] for row in rows} == {"committed"}


@given(
    st.builds(
        Faults,
        reorder=st.booleans(),
        delay=st.sampled_from([0.0, 0.3, 1.0]),
        duplicate=st.sampled_from([0.0, 0.5, 1.0]),
        dropout=st.sampled_from([0.0, 0.2, 1.0]),
        patience=st.integers(1, 6),
    ),
    st.integers(0, 2**20),
)
@settings(max_examples=120)
def test_a_bad_network_never_spoils_the_sum(faults: Faults, seed: int) -> None:
    answers, log, rows = run(faults=faults, seed=seed)
    assert_exact(answers)
    assert not log.traffic.rejected_from
    committed = {row[0] for row in rows if row[7] == "committed"}
    assert {f"client-{k:04d}" for k in answers.survivors} <= committed


SPOILERS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[:-1],
    "longer": lambda data: data + b"\x00",
    "magic": lambda data: b"\x00" + data[1:],
    "garbage": lambda data: bytes(reversed(data)),
    "session": lambda data: data.replace(bytes(32), b"\x01" * 32, 1),
    "huge": lambda data: data + bytes(100_000),
    "out of the grid": lambda data: data[:-60] + b"\x7f" * 30 + data[-30:],
}


@every("spoil", SPOILERS.values())
def test_spoilt_bytes_cost_their_sender_alone(spoil: Callable[[bytes], bytes]) -> None:
    def tamper(sender: str, to: str, data: bytes) -> bytes:
        return spoil(data) if sender == "client-0002" else data

    answers, log, _ = run(tamper=tamper)
    assert answers.survivors == (0, 1, 3, 4)
    assert set(log.traffic.rejected_from) == {"client-0002"}
    assert_exact(answers)


@given(st.integers(0, 8 * 260), st.integers(0, 2**16))
@settings(max_examples=60)
def test_a_flipped_bit_costs_nobody_else(bit: int, seed: int) -> None:
    def tamper(sender: str, to: str, data: bytes) -> bytes:
        if sender != "client-0002":
            return data
        at = bit % (8 * len(data))
        return data[: at // 8] + bytes([data[at // 8] ^ (1 << at % 8)]) + data[at // 8 + 1 :]

    answers, log, _ = run(tamper=tamper, seed=seed)
    assert set(answers.survivors) >= {0, 1, 3, 4}
    assert set(log.traffic.rejected_from) <= {"client-0002"}
    for client in (0, 1, 3, 4):
        assert answers.per_client["number"][client] == vector(client)[0]


@every(
    ("spoilt", "why"),
    [
        (np.zeros((0, 3)), "at least one record"),
        (np.array([[np.nan, 0, 0]]), "not finite"),
        (np.array([[1e6, 0, 0]]), "within"),
    ],
)
def test_a_client_that_cannot_answer_abstains_alone(spoilt: Any, why: str) -> None:
    answers, log, rows = run(records={2: spoilt})
    assert answers.survivors == (0, 1, 3, 4)
    assert_exact(answers)
    assert why in log.abstained["client-0002"]
    assert [row[7] for row in rows if row[0] == "client-0002"] == ["reserved", "reserved"]  # stays booked


def test_an_exhausted_budget_keeps_everything_at_home() -> None:
    answers, log, rows = run(terms=replace(TERMS, budget=0.0))
    assert answers.survivors == ()
    assert len(log.abstained) == CLIENTS
    assert rows == []


def test_nothing_is_released_after_the_declared_schedule() -> None:
    answers, log, rows = run(number=PLAN.max_rounds + 1)
    assert (answers.survivors, rows) == ((), [])
    assert "schedule" in log.abstained["client-0000"]


# The machines -------------------------------------------------------------------------------------


def server() -> Server:
    return Server(query=ASK, header=header(), most=Limit(10_000, 99))


def contribution(**changes: Any) -> Any:
    """A contribution as the server decodes it."""
    good = {
        "vector": Delivered("vector", "open", np.array([1, 2, 3], dtype=np.int32), b""),
        "number": Delivered("number", "open", np.array([1.0]), b""),
    }
    return ContributionMessage(releases=tuple((good | changes).values()))


def test_the_first_of_two_contributions_counts_and_states_do_not_change() -> None:
    machine = server()
    start = machine.begin().state
    once = machine.receive(start, "client-0001", contribution()).state
    other = contribution(vector=Delivered("vector", "open", np.full(3, 9, dtype=np.int32), b""))
    assert machine.receive(once, "client-0001", other).state is once
    assert machine.deadline(start).result.survivors == ()
    np.testing.assert_array_equal(
        machine.deadline(once).result.totals["vector"].value / Grid().step, [1, 2, 3]
    )


def exchange_client(cohort: Cohort | None = None) -> Client:
    return Client(
        number=1,
        header=header(),
        plan=HIDDEN,
        contributions={"vector": SUM},
        most=Limit(1000, 99),
        cohort=cohort,
    )


HIDDEN = hidden(
    replace(PLAN, weights={"vector": "draws"}, draws=5, dropout=0.2),
    CLIENTS,
    max_client_weight=0.7,
)


def test_a_client_of_a_hidden_sum_sees_the_whole_cohort_and_its_weights() -> None:
    """Weights are not the server's to choose: every client sees them all, and none exceeds the declared."""

    def told(**changes: Any) -> Any:
        """What the client makes of an order for a cohort, after the call told that cohort."""
        good = {"members": (0, 1, 2, 3), "draws": (1, 2, 1, 1), "whole": 5, "most": 2, **changes}
        cohort = Cohort(members=good.pop("members"), draws=good.pop("draws"))
        client = exchange_client(cohort)
        named = order(sums=("vector",), cohort=cohort.digest, draws=0, **good)
        return client.receive(client.begin().state, "server", named)

    assert told().state.order is not None
    lies: tuple[tuple[dict[str, Any], str], ...] = (
        ({"members": (0, 1), "draws": (1, 1), "whole": 2, "most": 1}, "3 to 5 clients"),
        ({"members": (0, 1, 2, 3, 4, 5), "draws": (1,) * 6, "whole": 6, "most": 1}, "3 to 5 clients"),
        ({"draws": (1, 10**12, 1, 1), "whole": 10**12 + 3, "most": 10**12}, "5 draws in all"),
        ({"draws": (1, 4, 1, 1), "whole": 7, "most": 4}, "5 draws in all"),
        ({"members": (0, 1, 2), "draws": (1, 3, 1), "most": 3}, r"more than 0\.7 of the squared weight"),
        ({"draws": (1,) * 4, "whole": 0, "most": 0, "records": 9}, "weighs it by counts"),
        ({"draws": (1,) * 4, "whole": 0, "most": 0}, "weighs it equally"),
        ({"whole": 10**12}, "draws"),
        ({"most": 3}, "draws"),
        ({"members": (0, 2, 3, 4)}, "with us in it"),
    )
    for lie, said in lies:
        with pytest.raises(RemoteProtocolError, match=said):
            told(**lie)
    client = exchange_client()
    with pytest.raises(RemoteProtocolError, match="hidden"):
        client.receive(client.begin().state, "server", order("vector"))


def test_the_ledger_is_on_disk_before_the_bytes_exist(tmp_path: Path) -> None:
    algorithm: Algorithm = Toy()
    seen = []
    with Ledger(tmp_path / "l.sqlite", TERMS) as ledger, Ledger(tmp_path / "l.sqlite", TERMS) as other:
        records = [(np.array([vector(k)]), np.zeros(1)) for k in range(CLIENTS)]
        engine = simulated(
            PLAN,
            algorithm.contributions,
            ledger,
            records,
            rng=lambda number, client, query: np.random.default_rng(0),
        )

        def tamper(sender: str, to: str, data: bytes) -> bytes:
            if sender.startswith("client"):
                seen.append([row[7] for row in other.rows() if row[0] == sender])
            return data

        engine.query(ASK, header(), Network(tamper=tamper))
    assert seen == [["committed", "committed"]] * CLIENTS
