"""What a round asks again bears a number: declared, charged, with a stream of its own, and asked once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.every import every
from support.hidden_plans import hidden
from support.tiny_orders import order

from securefl.accounting.events import steps_event
from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientContext, ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, PerClient, Schedule, Sum, Value, ValueSpec
from securefl.core.agreement import Vector
from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.messages import Broadcast
from securefl.core.release import SERVER
from securefl.core.streams import client_stream, stream
from securefl.core.wire import Header, Limit, encode
from securefl.engine.calls import QueryCall, encode_call
from securefl.engine.drive import Packet
from securefl.engine.inprocess import simulated
from securefl.engine.party.clients import ClientParty
from securefl.storage.journal import Journal
from securefl.study.privacy import PrivacySection

SESSION = bytes(32)
STEP = ValueSpec(
    name="step", reduction="sum", reveals="a step", depends_on="trained-state", schedule=Schedule(extra=2)
)
LOSS = ValueSpec(
    name="loss", reduction="none", reveals="a loss", schedule=Schedule(period=0, initial=1, extra=3)
)
PLAN = Plan(delta=1e-5, max_rounds=9, non_private=("step", "loss"), corrupt=0.0)
CALL = QueryCall(most=Limit(10**6, 99))
Seen = list[tuple[int, int, int, float, float]]


def place(number: int = 1, stage: int = 0, attempt: int = 0) -> Header:
    return Header(SESSION, number, attempt, stage)


class Attacked:
    """One client, and a server that asks it what it likes."""

    def __init__(self, plan: Plan = PLAN, spec: ValueSpec = STEP) -> None:
        self.seen: Seen = []
        self.ledger = Ledger(None, plan.terms())
        gives = [ClientFunction(spec, self._compute), ClientFunction(LOSS, self._compute)]
        records = {0: (np.ones((3, 2)), np.zeros(3))}
        whole = simulated(plan, gives, self.ledger, [records[0]], rng=partial(client_stream, 5))
        whole._enter(SESSION)
        (party,) = whole._clients
        assert isinstance(party, ClientParty)
        self.party = party

    def _compute(self, context: ClientContext) -> Value:
        draw = float(context.rng.random())
        self.seen.append(
            (context.round, context.initial, context.number, float(context.broadcast.sum()), draw)
        )
        return Value(clear=np.full(1, draw))

    def answers(self, at: Header, *wants: str, model: float = 0.0, **asked: int) -> bool:
        """Whether the client answers this order."""
        self.party.call(["client-0000"], encode_call(at, CALL))
        drive = self.party.drive
        assert drive is not None
        drive.begin()
        broadcast = Broadcast(model=np.full(1, model, np.float32), names=(), arrays=())
        lengths = (1,) * wants.count("step")  # the one value that is summed
        for message in (order(*wants, lengths=lengths, **asked), broadcast):
            drive.deliver(Packet(SERVER, "client-0000", encode(at, message)))
        return bool(drive.work())


# Streams --------------------------------------------------------------------------------------------


def test_number_0_has_the_stream_of_before_and_others_have_their_own() -> None:
    assert client_stream(7, 3, 2).random() == stream(7, "client", 3, 2).random()
    draws = {client_stream(7, 3, 2, query).random() for query in range(4)}
    assert len(draws | {client_stream(7, 3, 21).random()}) == 5


# Attacks --------------------------------------------------------------------------------------------


def test_further_asks_are_counted_over_rounds() -> None:
    one = Attacked()
    for number in (1, 2):
        assert one.answers(place(number), "step")
        assert one.answers(place(number, 1), "step", number=1)
    assert one.answers(place(3), "step")
    assert not one.answers(place(3, 1), "step", number=1), "two were declared for the run"
    assert "at most 2 declared extra queries of 'step'" in one.party.log.abstained["client-0000"]


@every("number", [-1, 3, 4])
def test_a_number_beyond_what_was_declared_is_refused(number: int) -> None:
    one = Attacked()
    assert not one.answers(place(), "step", number=number)
    assert not one.seen
    assert not one.ledger.rows()


def test_a_value_that_is_due_in_no_round_is_asked_by_number_alone() -> None:
    one = Attacked()
    assert not one.answers(place(), "loss")
    assert one.answers(place(stage=1), "loss", number=1)


def test_one_stream_is_not_drawn_for_two_models() -> None:
    """A trial asked as number 0 would train another model on the round's own draws."""
    one = Attacked()
    assert one.answers(place(), "step", model=1.0)
    assert not one.answers(place(stage=1), "step", model=2.0)
    assert "expected one stage for each query of 'step' in round 1" in one.party.log.abstained["client-0000"]
    assert one.answers(place(stage=2), "step", number=1, model=2.0)
    assert not one.answers(place(stage=3), "step", number=1, model=3.0)
    assert [model for *_, model, _ in one.seen] == [1.0, 2.0]
    assert one.seen[0][-1] != one.seen[1][-1]


@every("number", [2, 3])
def test_a_retry_asks_no_other_number(number: int) -> None:
    """Counted as the Ask it repeats, another one would be free of the count."""
    one = Attacked()
    assert one.answers(place(), "loss", number=1)
    assert not one.answers(place(attempt=1), "loss", number=number)
    assert one.answers(place(attempt=2), "loss", number=1), "a retry is the Ask that it repeats"
    assert {seen[2] for seen in one.seen} == {1}
    assert len({seen[-1] for seen in one.seen}) == 1


def test_an_introduction_after_training_is_none() -> None:
    """What was not declared as an introduction is none. A number does not make it one."""
    one = Attacked()
    assert not one.answers(place(), "step", initial=1)
    assert not one.answers(place(stage=1), "loss", initial=1, number=1)
    assert not one.answers(place(stage=2), "loss", initial=2)
    assert one.answers(place(stage=3), "loss", initial=1)
    assert one.seen == [(1, 1, 0, 0.0, one.seen[0][-1])]


def test_a_claimed_introduction_of_a_trained_value_costs_one_of_the_declared() -> None:
    trained = replace(
        STEP,
        training=steps_event(0.5, 0.4, 100),
        schedule=replace(STEP.schedule, initial=1),
        sensitivity={("record", "add-remove"): 1},
    )
    plan = replace(PLAN, adjacency="add-remove", noise="none", non_private=("step", "loss"))
    one = Attacked(plan, spec=trained)
    assert one.answers(place(1), "step")
    assert one.answers(place(2), "step", initial=1)
    assert one.seen[-1][1] == 1, "the client is told, and trains nothing"
    assert not one.answers(place(3), "step", initial=1)


def test_hidden_sums_of_two_numbers_are_two_questions() -> None:
    """Each is opened once. A number that the order did not bear has no agreement with the others."""
    seen: Seen = []

    def compute(context: ClientContext) -> Value:
        seen.append((context.round, context.initial, context.number, 0.0, float(context.rng.random())))
        return Value(clear=np.full(2, float(context.number + 1)))

    plan = hidden(PLAN, 4, min_cohort_size=4, corrupt=0.25)
    records = [(np.ones((2, 2)), np.zeros(2))] * 4
    gives, ledger = [ClientFunction(STEP, compute)], Ledger(None, plan.terms())
    whole = simulated(plan, gives, ledger, records, rng=partial(client_stream, 1), journal=Journal())

    def total(stage: int, number: int) -> float | None:
        query = CohortQuery(
            cohort=(0, 1, 2, 3), broadcast=np.zeros(2, np.float32), sums=(Sum(STEP, 2),), number=number
        )
        answers, _ = whole.query(query, place(stage=stage))
        return float(answers.totals["step"].value[0]) if answers.survivors else None

    assert total(0, 0) == 4
    assert total(1, 1) == 8
    assert total(2, 0) is None, "the question was opened"
    assert total(3, 1) is None
    assert len({draw for *_, draw in seen}) == 8


# Figures --------------------------------------------------------------------------------------------


def test_noise_is_calibrated_for_further_asks_too() -> None:
    section = PrivacySection(
        sum="clear",
        scores="clear",
        noise="local",
        unit="record",
        adjacency="replace-one",
        delta=1e-5,
        budget=float("inf"),
        adversaries=("server",),
        non_private=(),
        epsilon=1.0,
    )
    noised = replace(
        LOSS, sensitivity={("record", "replace-one"): 1.0}, schedule=replace(LOSS.schedule, initial=0)
    )
    more = replace(noised, schedule=replace(noised.schedule, extra=30))
    assert section.plan(4, [noised]).max_releases == {"loss": 3}
    assert section.plan(4, [more]).noise_multiplier > section.plan(4, [noised]).noise_multiplier


def test_an_ask_is_an_introduction_or_has_a_number() -> None:
    for wrong in ({"initial": 1, "number": 1}, {"number": -1}, {"initial": -1}):
        with pytest.raises(LocalProtocolError, match="`initial` or `number`"):
            CohortQuery(
                cohort=(0,), broadcast=np.zeros(0, np.float32), per_client=(PerClient(LOSS),), **wrong
            )


def test_a_vector_is_of_an_introduction_or_has_a_number() -> None:
    vector = Vector(name="step", length=1, bits=8, bound=3, number=2)
    questions = [own.question(place(4)) for own in (vector, replace(vector, ask=2, number=0))]
    assert [(one.round, one.ask) for one in questions] == [(4, 2), (0, 2)]
    with pytest.raises(ConfigError, match="`ask` or `number`"):
        replace(vector, ask=1)
