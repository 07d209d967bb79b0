"""What FedCor asks, remembers and chooses, round by round, with clients played by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.choices import chosen
from support.tiny_problem import client_context
from support.tiny_study import spied, study, world

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import Population, State
from securefl.algorithm.queries import Answers, CohortQuery, Total
from securefl.core.streams import client_stream
from securefl.protocols.averaging import Averaging, Uniform, sampling
from securefl.protocols.fedcor import FedCor
from securefl.protocols.fedcor.options import ByCorrelation
from securefl.protocols.parts import Part, Update
from securefl.study.arm import arm_folder
from securefl.study.composition import composition
from securefl.study.config import parse
from securefl.training import mean_loss
from securefl.training.task import Problem

CLIENTS, COUNT = 8, 3
POPULATION = Population(clients=CLIENTS, seconds=np.ones(CLIENTS))
ARM = '[[arm]]\nname = "x"\nprotocol = "fedcor"\nfraction = 0.5\nwarm_up = 2\ninterval = 2\nupdates = 2\n'


@pytest.fixture(scope="module")
def problem() -> Problem:
    return world(study(ARM, clients=CLIENTS, rounds=20)).problem


def selection(problem: Problem, **options: Any) -> ByCorrelation:
    settings = {"fraction": COUNT / CLIENTS, "warm_up": 2, "interval": 2, "updates": 2, **options}
    algorithm = FedCor(**settings).build(problem)
    assert isinstance(algorithm, Averaging)
    assert isinstance(algorithm.selection, ByCorrelation)
    return algorithm.selection


class Clients:
    """Answer asks: losses from a function of the model, updates that move the model by 1."""

    def __init__(self, losses: Any = None, silent: tuple[int, ...] = ()) -> None:
        self.asks: list[CohortQuery] = []
        self.rng = np.random.default_rng(2)
        self.losses, self.silent = losses, silent

    def __call__(self, query: CohortQuery) -> Answers:
        self.asks.append(query)
        there = [k for k in query.cohort if k not in self.silent]
        told = self.rng.random(CLIENTS) if self.losses is None else self.losses
        per_client = {one.spec.name: {k: float(told[k]) for k in there} for one in query.per_client}
        totals = {
            one.spec.name: Total(np.full(one.size, float(len(there))), float(len(there)))
            for one in query.sums
        }
        return Answers(survivors=tuple(there), totals=totals if there else {}, per_client=per_client)

    def names(self) -> list[tuple[str, int, int]]:
        """What was asked: the value, the number, and of how many."""
        return [(spec.name, query.number, len(query.cohort)) for query in self.asks for spec in query.wants()]


def played(
    of: ByCorrelation, rounds: int, clients: Clients, population: Population = POPULATION
) -> list[tuple[Any, State]]:
    state = State(np.zeros(2, np.float32), {"size": np.ones(CLIENTS), "loss": np.full(CLIENTS, np.nan)})
    ends = []
    for number in range(1, rounds + 1):
        rng = np.random.default_rng(number)
        cohort, state = chosen(of, state, population, COUNT, rng, number=number, answer=clients)
        ends.append((cohort, state))
    return ends


def test_it_asks_as_its_schedule_says(problem: Problem) -> None:
    clients = Clients()
    of = selection(problem)
    asked = []
    for number in range(1, 12):
        clients.asks.clear()
        played(of, number, clients)
        asked.append(clients.names())
    every_loss = ("loss", 1, CLIENTS)
    trial = [every_loss, ("update", 1, COUNT), ("loss", 2, CLIENTS)]
    news = [now[len(before) :] for before, now in zip([[], *asked], asked, strict=False)]
    assert news[:3] == [[every_loss]] * 3
    assert news[3:8] == [[], trial, [], trial, []]
    assert news[8:] == [[]] * 3, "two trials were declared"


def test_what_it_asks_is_what_it_declares(problem: Problem) -> None:
    of, clients = selection(problem), Clients()
    played(of, 20, clients)
    losses = [query for query in clients.asks if query.per_client]
    (loss, _) = (contribution.spec.schedule for contribution in of.contributions)
    assert len(losses) == loss.extra == 7
    assert (loss.asked(20), loss.initial, loss.due(1)) == (7, 0, False)
    assert of.update.spec.schedule.extra == 2
    assert of.update.spec.schedule.asked(20) == 22


def test_the_warm_up_draws_the_cohorts_of_uniform_selection(problem: Problem) -> None:
    mine = [cohort for cohort, _ in played(selection(problem), 2, Clients())]
    state = State(np.zeros(2, np.float32))
    uniform = [
        chosen(Uniform(), state, POPULATION, COUNT, np.random.default_rng(number))[0] for number in (1, 2)
    ]
    assert mine == uniform


def test_a_trial_leaves_no_model(problem: Problem) -> None:
    for _, state in played(selection(problem), 6, Clients()):
        assert not state.broadcast.any()


def test_embeddings_move_when_something_was_learnt_and_annealing_begins_anew(problem: Problem) -> None:
    states = [state for _, state in played(selection(problem), 7, Clients())]
    moved = [not np.array_equal(a.memory["embedding"], b.memory["embedding"]) for a, b in pairwise(states)]
    assert moved == [True, True, False, True, False, True]
    times = [int(state.memory["chosen"].sum()) for state in states]
    assert times == [0, 0, 3, 6, 3, 6, 3]


def test_who_was_chosen_weighs_less_until_the_next_update(problem: Problem) -> None:
    ends = played(selection(problem, annealing=0.01, interval=50), 5, Clients())
    first, second = (set(cohort) for cohort, _ in ends[3:5])
    assert not first & set(ends[2][0])
    assert len(second - first) >= 2


def test_without_any_loss_it_still_chooses(problem: Problem) -> None:
    """A diverged model: every loss is nan, and every client abstains."""
    ends = played(selection(problem), 9, Clients(silent=tuple(range(CLIENTS))))
    assert all(len(cohort) == COUNT for cohort, _ in ends)
    assert all(np.isfinite(state.memory["embedding"]).all() for _, state in ends)


def test_a_client_without_a_loss_is_left_out_of_the_changes(problem: Problem) -> None:
    """Such as one that holds no record out. It keeps its embedding, and may be chosen."""
    ends = played(selection(problem), 3, Clients(silent=(4,)))
    begun, after = (ends[at][1].memory["embedding"] for at in (0, 2))
    assert np.array_equal(begun[:, 4], after[:, 4])
    assert (begun[:, :4] != after[:, :4]).all()
    assert np.isnan(ends[-1][1].memory["losses"][4])


def test_nobody_who_has_retired_is_asked_or_chosen(problem: Problem) -> None:
    clients, gone = Clients(), frozenset({0, 5})
    for cohort, _ in played(selection(problem), 8, clients, replace(POPULATION, retired=gone)):
        assert len(cohort) == COUNT
        assert not gone & set(cohort)
    assert not any(gone & set(query.cohort) for query in clients.asks)
    nobody = replace(POPULATION, retired=frozenset(range(CLIENTS)))
    clients.asks.clear()
    assert [cohort for cohort, _ in played(selection(problem), 6, clients, nobody)] == [{}] * 6
    assert not clients.asks


def test_the_window_holds_the_newest_changes(problem: Problem) -> None:
    of = selection(problem, warm_up=5, window=2, window_after=1)
    states = [state for _, state in played(of, 6, Clients())]
    assert states[-1].memory["changed"].tolist() == [6, 5, 4]
    newest = states[-1].memory["losses"] - states[-2].memory["losses"]
    np.testing.assert_array_equal(states[-1].memory["changes"][0], newest)


# Whole runs -----------------------------------------------------------------------------------------


def test_a_run_trains_on_what_is_not_held_out_and_shows_embeddings(tmp_path: Path) -> None:
    of = parse(study(ARM, rounds=5).text.replace('source = "digits"', 'source = "digits"\nholdout = 0.2'))
    here = world(of)
    assert here.held is not None
    spy, finished = spied(of, tmp_path, here)
    shown = {"loss", "embedding_1", "embedding_2", "local accuracy"}
    assert set(finished.records[-1]["figures"]) == shown
    known = spy.states[2].memory["losses"]
    model = here.problem.module(spy.states[1].broadcast)
    for client, (x, y) in enumerate(here.held):
        assert known[client] == pytest.approx(mean_loss(model, x, y))


def test_noised_losses_have_their_epsilon_and_bound(tmp_path: Path) -> None:
    """Updates leave as they are, so the whole epsilon is infinite; the losses' own is what was asked for."""
    arm = ARM + "loss_bound = 4.0\n"
    of = study(arm, rounds=5, non_private='["update"]')
    written = of.text.replace('noise = "none"', 'noise = "local"\nepsilon = 3.0')
    spy, finished = spied(parse(written), tmp_path)
    losses = [n for _, a in spy.asks for n in a.per_client.get("loss", {}).values()]
    assert len(losses) == 6 * 5
    assert all(0 <= loss <= 4 for loss in losses)
    assert len(finished.records) == 5
    _, plan = composition(parse(written), of.arms[0], world(of))
    assert plan.max_releases["loss"] == 5, "of two trials one is within these rounds"
    with Ledger(arm_folder(tmp_path, of.arms[0], 3) / "ledger.sqlite", plan.terms()) as ledger:
        charges = {row[6] for row in ledger.rows() if row[5] == "loss"}
    assert len(charges) == 1
    assert "gaussian" in charges.pop()


def test_what_remains_a_trial_and_its_round_tell_of_who_is_in_one_of_them() -> None:
    """Both are trained from one model. Where a mini-batch is all records, no draw tells them apart."""
    of = study(ARM, clients=4)
    here = world(of)
    x, y = here.records[0]
    distances = []
    for size in (len(x), 16):
        problem = replace(here.problem, local=replace(here.problem.local, batch_size=size))
        update = Update(Part(problem), sampling(COUNT, "partial", trials=1))
        trial, own = (
            update.compute(
                client_context(
                    x,
                    y,
                    round=4,
                    broadcast=problem.initial,
                    rng=client_stream(3, 4, 0, number),
                    number=number,
                )
            ).clear
            for number in (1, 0)
        )
        distances.append(np.linalg.norm(trial - own) / np.linalg.norm(own))
    assert distances[0] < 1e-4
    assert distances[1] > 1e-2
