"""A target epsilon: the noise of private training follows, and no ledger states more than was asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import DpEvent, GaussianDpEvent
from support.every import every
from support.offenders import offenders
from support.private_studies import AVERAGING, DISTRIBUTED, DPSGD, FEDPROF, private
from support.tiny_study import composed, run, world

from securefl.accounting.composition import compose, running_epsilon
from securefl.accounting.events import History, steps_event
from securefl.accounting.ledger import Ledger
from securefl.core.errors import ConfigError
from securefl.core.messages import client_name
from securefl.dp.calibration import (
    epsilon_of,
    multiplier_beside,
    shared_training_noise,
)
from securefl.engine.privacy_card import learns
from securefl.mechanisms.charges import Protection
from securefl.study.arm import arm_folder
from securefl.study.composition import composition
from securefl.study.config import parse
from securefl.study.forecast import forecast
from securefl.study.seeded import World
from securefl.sweep.cells import parse_sweep
from securefl.sweep.check import check, lines

TARGET = DPSGD.replace("noise_multiplier = 1.2", "epsilon = 2.0").replace("rate = 0.1", "rate = 0.5")
"""At half of the records a step its noise is found in a third of the time. Tests share what was found."""
FEDLOG = 'body = "dp-sgd"'


asked = partial(private, rounds=4, extra=TARGET)


STUDIES = {
    "training alone": lambda: asked("fedavg", AVERAGING["fedavg"]),
    "statistic, local noise": lambda: asked("fedlog", FEDLOG, noise='"local"'),
    "statistic, shares of noise, retries": lambda: asked(
        "fedlog", FEDLOG, sum='"masked"', max_retries="2", **DISTRIBUTED
    ),
    "profiles": lambda: asked("fedprof", FEDPROF, noise='"local"'),
    "losses": lambda: asked("pow_d", "fraction = 0.5\nloss_bound = 3.0", noise='"local"'),
    "nothing private is trained": lambda: asked("fedlog", 'body = "public"', noise='"local"'),
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_ledger_states_the_target_and_never_more(name: str, tmp_path: Path) -> None:
    of = STUDIES[name]()
    algorithm, plan = composed(of)
    records = run(of, tmp_path).records
    assert max(records[-1]["epsilon"][party] for party in plan.adversaries) <= 2.0
    # A client that is in every round, with all retries: this is what the noise is sized for.
    worst: Counter[DpEvent] = Counter()
    for spec in (own.spec for own in algorithm.contributions):
        retries = plan.max_retries if spec.reduction == "sum" else 0
        assert plan.max_releases[spec.name] == spec.schedule.asked(4) + retries
        often = plan.max_releases[spec.name] - spec.schedule.initial
        worst[Protection(plan, spec).charge().others] += often
        worst[Protection(plan, spec).charge(trained=False).others] += spec.schedule.initial
    assert 0.98 * 2.0 <= compose(+worst, plan.delta) <= 2.0


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "rounds", "releases"),
    [
        pytest.param(0.5, 0.1, 5, 20, 0, marks=pytest.mark.slow),
        (2.0, 0.2, 30, 20, 0),
        (8.0, 1.0, 1, 7, 0),
        (1.0, 0.5, 15, 5, 5),
        pytest.param(1.0, 0.2, 15, 5, 5, marks=pytest.mark.slow),
        pytest.param(4.0, 0.02, 9, 6, 3, marks=pytest.mark.slow),
    ],
)
def test_noise_fits_the_target_round_by_round(
    epsilon: float, rate: float, steps: int, rounds: int, releases: int
) -> None:
    """As a ledger composes it: one release after the other, at the discretisation of a running study."""
    delta = 1e-5
    z = shared_training_noise(epsilon, delta, {steps_event(rate, 1.0, steps): rounds}, releases=releases)
    one = steps_event(rate, z, steps)
    noise = multiplier_beside(epsilon, delta, releases=releases, spent={one: rounds}) if releases else 1.0
    stated = 0.0
    for number in range(1, rounds + 1):
        stated = running_epsilon(
            History.of({one: number, GaussianDpEvent(noise): min(number, releases)}), delta
        )
        assert stated <= epsilon
    assert stated >= 0.98 * epsilon
    assert compose({one: rounds, GaussianDpEvent(noise): releases}, delta) <= epsilon
    if releases:
        own = (compose({one: rounds}, delta), epsilon_of(noise, delta, releases=releases, sensitivity=1.0))
        assert own[0] == pytest.approx(own[1], rel=5e-3), "training alone and the rest alone cost the same"


def test_holders_of_different_sizes_have_one_noise_and_one_epsilon(tmp_path: Path) -> None:
    """The rate is public: a client of 3 records and one of 900 draw at the same rate, with the same noise."""
    of = asked("fedavg", AVERAGING["fedavg"])
    here = world(of)
    x, y = np.concatenate([own[0] for own in here.records]), np.concatenate([own[1] for own in here.records])
    cuts = [(x[:3], y[:3]), (x[3:20], y[3:20]), (x[20:300], y[20:300]), (x[300:], y[300:])]
    uneven: World = replace(here, records=cuts)
    run(of, tmp_path, here=uneven)
    terms = composition(of, of.arms[0], uneven)[1].terms()
    with Ledger(arm_folder(tmp_path, of.arms[0], 3) / "ledger.sqlite", terms) as ledger:
        spent = [ledger.epsilon(client_name(number), "server") for number in range(4)]
    assert len(set(spent)) == 1
    assert 1.96 <= spent[0] <= 2.0
    assert composition(of, of.arms[0], uneven)[0].contributions[0].spec.training == (
        composed(of, here)[0].contributions[0].spec.training
    )


def test_a_client_charges_and_trains_by_its_own_copy() -> None:
    """A server whose study has a larger target changes neither the noise nor the charge of a client."""
    own = asked("fedavg", AVERAGING["fedavg"])
    server = parse(own.text.replace("epsilon = 2.0", "epsilon = 4.0"))
    mine, other = (composed(of)[0].contributions[0] for of in (own, server))
    assert mine.spec.training == steps_event(0.5, mine.part.problem.private.noise_multiplier, 5)  # type: ignore[attr-defined]
    assert mine.spec.training != other.spec.training
    assert compose({mine.spec.training: 4}, own.privacy.delta) <= 2.0  # type: ignore[dict-item]
    assert composed(own)[0].contributions[0].spec.training == mine.spec.training


def test_epsilon_stands_in_either_section() -> None:
    other = TARGET.replace("epsilon = 2.0\n", "")
    in_privacy = asked("fedlog", FEDLOG, extra=other, noise='"local"', epsilon="2.0")
    in_training = asked("fedlog", FEDLOG, noise='"local"')
    in_both = asked("fedlog", FEDLOG, noise='"local"', epsilon="2.0")
    assert in_privacy.dpsgd == in_training.dpsgd == in_both.dpsgd
    assert in_privacy.privacy == in_training.privacy == in_both.privacy


BAD = (
    ({"epsilon = 2.0": "epsilon = 0.0"}, r"^\[dpsgd\] .* got 0\."),
    ({"epsilon = 2.0": "epsilon = inf"}, r"^\[dpsgd\] .* got inf"),
    ({"epsilon = 2.0": "epsilon = nan"}, r"^\[dpsgd\] .* got nan"),
    ({"epsilon = 2.0": ""}, r"^\[dpsgd\] .* neither"),
    ({"epsilon = 2.0": "epsilon = 2.0\nnoise_multiplier = 1.0"}, r"^\[dpsgd\] .* both"),
    ({"budget = inf": "budget = 1.0"}, r"^\[dpsgd\] .* `budget`"),
    ({'noise = "none"': 'noise = "local"\nepsilon = 3.0'}, r"^\[dpsgd\] .* = 3, .* got 2"),
    ({'noise = "none"': 'noise = "none"\nepsilon = 2.0'}, r"^\[privacy\] .*`epsilon`"),
)


def test_a_bad_target_is_explained() -> None:
    def refused(case: tuple[dict[str, str], str]) -> None:
        whole = asked("fedavg", AVERAGING["fedavg"]).text
        for old, new in case[0].items():
            assert old in whole
            whole = whole.replace(old, new, 1)
        with pytest.raises(ConfigError, match=case[1]):
            parse(whole)

    assert offenders(BAD, refused) == []


@every(
    ("changes", "said"),
    [
        ({"epsilon = 2.0": "epsilon = 1e-7", "delta = 1e-4": "delta = 1e-12"}, r"^\[dpsgd\] .* 1e-07"),
        ({'adjacency = "add-remove"': 'adjacency = "replace-one"'}, r"^\[dpsgd\] .*unit"),
    ],
)
def test_a_target_that_no_noise_reaches_is_explained(changes: dict[str, str], said: str) -> None:
    whole = asked("fedavg", AVERAGING["fedavg"]).text
    for old, new in changes.items():
        whole = whole.replace(old, new, 1)
    of = parse(whole)
    with pytest.raises(ConfigError, match=said):
        composed(of)


def test_a_target_beside_a_value_without_noise_is_refused() -> None:
    of = asked("fedprof", FEDPROF, non_private='["profile"]')
    with pytest.raises(ConfigError, match=r"^\[dpsgd\] .*'profile'"):
        composed(of)


def test_too_small_an_epsilon_beside_given_noise_names_both_sections() -> None:
    of = asked("fedlog", FEDLOG, extra=DPSGD, noise='"local"', epsilon="0.1")
    with pytest.raises(ConfigError, match=r"^\[privacy\].*\[dpsgd\]"):
        composed(of)


def test_the_plan_says_noise_rounds_and_parts() -> None:
    of = STUDIES["statistic, local noise"]()
    found = forecast(of, of.arms[0], world(of))
    assert "from epsilon = 2 over 4 rounds" in found.noise
    assert [*found.by_round] == [1, 2, 4]
    assert found.by_round[4] == pytest.approx(2.0, rel=1e-3)
    assert {part.name: part.releases for part in found.takes} == {"training": 4, "statistic": 5}
    training, statistic = found.takes
    assert training.epsilon == pytest.approx(statistic.epsilon, rel=5e-3)
    assert max(training.epsilon, statistic.epsilon) < 2.0 < training.epsilon + statistic.epsilon


def test_the_plan_says_what_is_kept_for_retries() -> None:
    of = STUDIES["statistic, shares of noise, retries"]()
    found = forecast(of, of.arms[0], world(of))
    assert "over 4 rounds and 2 retries" in found.noise
    assert found.by_round[4] < 1.9


def test_the_plan_says_that_a_public_number_replaces_that_of_records() -> None:
    """Under add-remove a client's number of records is data. The card said that the server learns it."""
    of = asked("fedavg", "fraction = 1.0")
    algorithm, plan = composed(of)
    told = learns(plan, [own.spec for own in algorithm.contributions], "server")
    assert told.endswith("trained privately, a public number in place of its number of records")
    bounded = replace(plan, adjacency="replace-one", public_num_examples=None)
    told = learns(bounded, [own.spec for own in algorithm.contributions], "server")
    assert told.endswith(", its number of records")


def test_a_sweep_goes_over_the_target_and_its_plan_says_the_noise_of_every_cell() -> None:
    grid = '[sweep.grid]\n"dpsgd.epsilon" = [2.0, 4.0]\n'
    found = parse_sweep(f"{STUDIES['statistic, local noise']().text}\n{grid}")
    assert [cell.study.privacy.epsilon for cell in found.cells] == [2.0, 4.0]
    checked = check(found.cells, costs=True)
    noises = []
    for cell, own in zip(found.cells, checked, strict=True):
        planned = own.arms[0]
        algorithm, plan = composition(cell.study, cell.study.arms[0], world(cell.study))
        noises.append((planned.training_noise, plan.noise_multiplier))
        assert algorithm.contributions[0].spec.training == steps_event(0.5, planned.training_noise, 5)
    assert all(small < large for small, large in zip(noises[1], noises[0], strict=True))
    told = "\n".join(lines(found, checked))
    assert all(f"noise multiplier {noise:g}" in told for noise, _ in noises)
