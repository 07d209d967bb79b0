"""Noise fits the budget it was calibrated for, whoever looks; odd events end with a figure and a word."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, isfinite, sqrt
from pathlib import Path

import pytest
from click.testing import CliRunner
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from support.every import every
from support.hidden_plans import hidden
from support.noises import own_sigma, reach
from support.tiny_study import text

from securefl.accounting.composition import compose, epsilon, rdp_epsilon, running_epsilon, within
from securefl.accounting.events import History, steps_event
from securefl.accounting.ledger import Ledger, Terms
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.commands.ledger import ledger as ledger_command
from securefl.core.errors import ConfigError
from securefl.core.grid import Grid
from securefl.dp.calibration import sigma
from securefl.mechanisms.charges import Protection
from securefl.study.config import parse

BUDGETS = (0.1, 0.25, 0.5, 1, 2, 4, 8, 16)


@every("budget", BUDGETS)
def test_a_budget_of_epsilon_bears_its_whole_schedule(budget: float) -> None:
    for rounds in range(1, 31):
        multiplier = sigma(budget, 1e-5, releases=rounds, sensitivity=1.0)
        spent = {GaussianDpEvent(multiplier): rounds}
        assert budget * (1 - 1e-9) < compose(spent, 1e-5) <= budget, rounds
        assert within(spent, 1e-5, budget)


@every("adaptive", [False, True])
def test_the_ledger_bears_it_too(tmp_path: Path, adaptive: bool) -> None:
    for budget, rounds in ((0.25, 3), (0.5, 7), (16, 30)):
        multiplier = sigma(budget, 1e-5, releases=rounds, sensitivity=1.0)
        terms = Terms(unit="record", adjacency="add-remove", delta=1e-5, budget=budget, adaptive=adaptive)
        spec = ValueSpec(name="a", reduction="sum", reveals="it", sensitivity={("record", "add-remove"): 1.0})
        plan = Plan(
            noise="local",
            noise_multiplier=multiplier,
            delta=1e-5,
            adjacency="add-remove",
            max_rounds=rounds,
        )
        with Ledger(tmp_path / f"{budget}.sqlite", terms) as ledger:
            assert ledger.rounds_left("client-0000", [Protection(plan, spec).charge()]) == rounds


SAMPLED = History(steps={(0.02, 1.1): 50})


@every("delta", [1e-9, 1e-12, 1e-13, 1e-15, 1e-200])
def test_a_small_delta_has_a_finite_epsilon_no_larger_than_by_rdp(delta: float) -> None:
    """Tails of a fixed 1e-12 said infinity at 1e-12, where RDP says 4.35."""
    for found in (epsilon(SAMPLED, delta), running_epsilon(SAMPLED, delta)):
        assert isfinite(found)
        assert found <= rdp_epsilon(SAMPLED, delta) * 1.01
    assert epsilon(SAMPLED, delta) <= rdp_epsilon(SAMPLED, delta)


@every("z", [50.0, 63.7, 200.0])
def test_little_noise_events_count_beside_sampled_steps(z: float) -> None:
    """mu^2 of 25 releases at z >= 50 is below 0.01: to round it away would be seen here."""
    of = History(mu_squared=25 / z**2, steps={(0.02, 1.1): 50})
    more = History(mu_squared=26 / z**2, steps=of.steps)
    assert epsilon(SAMPLED, 1e-5) < epsilon(of, 1e-5) < epsilon(more, 1e-5)
    for count in range(26):
        came = running_epsilon(History(mu_squared=count / z**2, steps=of.steps), 1e-5)
    assert came >= epsilon(of, 1e-5)
    assert came == pytest.approx(epsilon(of, 1e-5), rel=0.02)


@every(
    ("events", "delta"),
    [
        ([{"event": "poisson_gaussian", "sampling_probability": 0.5, "noise_multiplier": 0.01}], "1e-5"),
        ([{"event": "poisson_gaussian", "sampling_probability": 0.5, "noise_multiplier": 1.0}], "1e-300"),
    ],
)
def test_absurd_events_end_with_a_clear_word(tmp_path: Path, events: list[object], delta: str) -> None:
    path = tmp_path / "events.json"
    path.write_text(json.dumps(events))
    said = CliRunner().invoke(ledger_command, ["epsilon", "--events", str(path), "--delta", delta, "--json"])
    assert said.exit_code == 0
    assert "epsilon is the bound by RDP" in said.stderr
    found = json.loads(said.stdout)
    assert found["epsilon"] == found["rdp_epsilon"]


def test_the_papers_theorem_is_refused_beside_private_training() -> None:
    arm = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\n'
    section = (
        "[dpsgd]\nclip_norm = 1.0\nnoise_multiplier = 1.2\nsampling_rate = 0.1\nexpected_batch = 20\n"
        'steps = 5\noptimizer = "sgd"\nlearning_rate = 0.5\n'
    )
    privacy = parse(text(arm, rounds=2, clients=4, extra=section)).privacy
    changed = replace(privacy, noise="local", epsilon=9.0, adjacency="add-remove")
    trained = replace(SHARED, training=steps_event(0.1, 1.2, 5))
    assert changed.plan(2, [trained]).noise_multiplier > 0
    with pytest.raises(ConfigError, match=r"calibration = \"exact\""):
        replace(changed, calibration="paper").plan(2, [trained])
    assert replace(changed, calibration="paper").plan(2, [SHARED]).noise_multiplier > 0


SHARED = ValueSpec(
    name="own",
    reduction="sum",
    reveals="it",
    sensitivity={("record", "add-remove"): 1.0},
    grid=Grid(step=2.0**-10, bound=2.0**12),
    cohort=5,
)
SHARES = hidden(
    Plan(
        noise="distributed",
        noise_multiplier=3.0,
        dropout=0.2,
        corrupt=0.0,
        adjacency="add-remove",
        delta=1e-5,
        max_rounds=1,
    ),
    5,
    min_cohort_size=5,
)


@every(("corrupt", "honest"), [(0.0, 3), (0.2, 3), (0.4, 2)])
def test_a_client_that_knows_its_own_share_sees_enough_noise(corrupt: float, honest: int) -> None:
    """Of 5 clients 4 answer: without its own share, a client of a promise to others faces 3 of them."""
    plan = replace(SHARES, corrupt=corrupt)
    left = honest * own_sigma(plan, SHARED) ** 2
    assert sqrt(left - 4) / reach(plan, SHARED) == pytest.approx(3.0, rel=1e-12)
    assert Protection(plan, SHARED).charge().others == GaussianDpEvent(3.0)


def test_where_others_are_trusted_they_are_charged_with_what_they_see() -> None:
    plan = replace(SHARES, adversaries=("server", "key-holder"))
    charge = Protection(plan, SHARED).charge()
    assert charge.server == GaussianDpEvent(3.0)
    assert isinstance(charge.others, GaussianDpEvent)
    assert charge.others.noise_multiplier == pytest.approx(3.0 * sqrt(3 / 4), rel=1e-3)
    alone = replace(SHARED, cohort=1)
    assert isinstance(Protection(plan, alone).charge().others, NonPrivateDpEvent)
    with pytest.raises(ConfigError, match="more survivors"):
        Protection(SHARES, alone).charge()
    assert compose({NonPrivateDpEvent(): 1}, 1e-5) == inf
