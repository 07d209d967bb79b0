"""`securefl plan` says before a run what the run's ledger says after it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.every import every
from support.private_studies import AVERAGING, KEY_HOLDER
from support.private_studies import FEDPROF as PROFILED
from support.private_studies import client_level as clients_protected
from support.private_studies import private as at_a_tenth
from support.tiny_fedlog import study as fedlog
from support.tiny_study import FEDPROF, run, study, world

from securefl.accounting import curves
from securefl.accounting.curve import beside_epsilon
from securefl.commands.plan import plan
from securefl.core.errors import ConfigError
from securefl.study.config import Study, parse
from securefl.study.forecast import forecast, lines


def private(name: str, options: str, **more: Any) -> Study:
    """About the same epsilon as at a tenth of the records a step, found in half of the time."""
    text = at_a_tenth(name, options, **more).text.replace("rate = 0.1", "rate = 0.5")
    return parse(text.replace("noise_multiplier = 1.2", "noise_multiplier = 3.7"))


def noised_fedprof(more: str = "", **privacy: Any) -> Study:
    return private(
        "fedprof", PROFILED + more, **{"noise": '"local"', "epsilon": "8.0", "rounds": 3} | privacy
    )


STUDIES = {
    "FedLog, local noise": lambda: fedlog("local", epsilon=2.0, rounds=3),
    "FedLog, dp-sgd": lambda: private("fedlog", 'body = "dp-sgd"', noise='"local"', epsilon="6.0", rounds=4),
    "FedAvg, private": lambda: private("fedavg", AVERAGING["fedavg"], rounds=3),
    "FedProf": lambda: study(FEDPROF.replace("0.5", "1.0"), rounds=2),
    "FedProf, private": lambda: noised_fedprof(rounds=4),
}


@pytest.mark.parametrize("name", STUDIES)
def test_epsilon_and_bytes_are_those_of_the_run(name: str, tmp_path: Path) -> None:
    of: Study = STUDIES[name]()
    here = world(of)
    found = forecast(of, of.arms[0], here)
    records = run(of, tmp_path, here=here).records
    for party, epsilon in found.epsilon.items():
        assert records[-1]["epsilon"][party] == pytest.approx(epsilon, rel=1e-3)
    (path,) = tmp_path.rglob("ledger.sqlite")
    filed = curves(path).values()
    for party, words in found.curves.items():
        assert words in {beside_epsilon(own[party]) for own in filed}
    told = [line for line in lines(of, [found]) if "after all rounds: " in line]
    assert len(told) == any(0 < found.epsilon[party] < math.inf for party in of.privacy.adversaries)
    assert found.bytes_up == (records[0]["bytes_up"], records[-1]["bytes_up"])
    assert found.bytes_down == (records[0]["bytes_down"], records[-1]["bytes_down"])
    assert found.affordable is None


BABU = '[[arm]]\nname = "x"\nprotocol = "fedbabu"\nfine_tune_epochs = 1\n'


@every("rounds", [2, 4])
def test_the_query_at_the_end_of_fedbabu_is_counted(rounds: int, tmp_path: Path) -> None:
    """All rounds together cost as many bytes as said, whether the last one is among the rehearsed or not."""
    of = study(BABU, rounds=rounds)
    here = world(of)
    found = forecast(of, of.arms[0], here)
    records = run(of, tmp_path, here=here).records
    for name, (first, later, *end) in (("bytes_up", found.bytes_up), ("bytes_down", found.bytes_down)):
        assert len(end) == (rounds > 2)
        assert first + (rounds - 1) * later + sum(end) == sum(record[name] for record in records)
    if rounds > 2:
        assert found.bytes_down[2] > 6 * 4 * (64 + 1) * 8, "the new body, of one layer, to each client"
        assert found.total_seconds(rounds, 2) > 2 * (found.seconds[0] + 3 * found.seconds[1])


def test_the_end_of_fedbabu_is_told() -> None:
    of = study(BABU, rounds=3)
    said = [line for line in lines(of, [forecast(of, of.arms[0], world(of))]) if "  bytes " in line]
    assert [line.endswith(" more in the last one") for line in said] == [True, True]
    never = study(BABU + 'fine_tuned = "never"\n', rounds=3)
    assert len(forecast(never, never.arms[0], world(never)).bytes_up) == 2


def test_epsilon_counts_rounds_without_a_profile() -> None:
    of = noised_fedprof("refresh = 2\n", rounds=3)
    assert forecast(of, of.arms[0], world(of)).epsilon["server"] == pytest.approx(8.0, rel=1e-3)


def fedcor(**privacy: str) -> Study:
    """Each client in every round; of six, one is a warm-up, and three have a trial."""
    options = "fraction = 1.0\nloss_bound = 3.0\nwarm_up = 1\ninterval = 1\nupdates = 3\nsteps = 1"
    return private("fedcor", options, rounds=6, noise='"local"', epsilon="8.0", **privacy)


def test_trials_are_forecast_as_the_ledger_counts_them(tmp_path: Path) -> None:
    of = fedcor()
    here = world(of)
    found, records = forecast(of, of.arms[0], here), run(of, tmp_path, here=here).records
    for party, epsilon in found.epsilon.items():
        assert records[-1]["epsilon"][party] == pytest.approx(epsilon, rel=1e-3)


def test_a_budget_need_not_bear_all_trials_in_round_1(tmp_path: Path) -> None:
    of = fedcor(budget="6.0")
    here = world(of)
    found, records = forecast(of, of.arms[0], here), run(of, tmp_path, here=here).records
    answered = sum(len(record["answered"]) > 0 for record in records)
    assert found.affordable in (answered - 1, answered, answered + 1)
    assert 1 < answered < 6
    assert records[-1]["epsilon"]["server"] <= 6


def test_a_budget_buys_as_many_rounds_as_it_says(tmp_path: Path) -> None:
    of = private("fedlog", 'body = "dp-sgd"', noise='"local"', epsilon="6.0", rounds=4, budget="4.5")
    here = world(of)
    found = forecast(of, of.arms[0], here)
    answered = [len(record["answered"]) > 0 for record in run(of, tmp_path, here=here).records]
    assert found.affordable == sum(answered) == 2


def test_a_rehearsal_costs_what_the_first_rounds_of_the_study_cost() -> None:
    """It is noised for the whole schedule: noise for two rounds alone would be less, and over this budget."""
    of = noised_fedprof(rounds=4, budget="7.0")
    assert forecast(of, of.arms[0], world(of)).affordable in range(2, 4)


def test_the_page_and_the_json() -> None:
    runner = CliRunner()
    page = runner.invoke(plan, ["fedlog_digits"])
    assert page.exit_code == 0, page.output
    assert "FedLog on digits: 2 arms, 1 round, 20 clients" in page.stdout
    assert "ε   1.00   learns the broadcast models" in page.stdout
    assert "trusted to sum them and add the noise" in page.stdout
    told = runner.invoke(plan, ["fedlog_digits", "--json"])
    arms = json.loads(told.stdout)["arms"]
    assert [arm["epsilon"]["server"] for arm in arms] == ["inf", "inf"]
    assert arms[0]["epsilon"]["others"] == pytest.approx(1.0)


def test_the_page_says_what_a_key_holder_that_adds_noise_could_do() -> None:
    of = clients_protected(**KEY_HOLDER)
    found = forecast(of, of.arms[0], world(of))
    assert found.epsilon["server"] == found.epsilon["others"] == pytest.approx(8.0, rel=1e-3)
    assert found.epsilon["key-holder"] == float("inf")
    assert found.learns["server"].startswith(
        "the total over the cohort of its model update, with the key holder's"
    )
    assert found.learns["key-holder"] == (
        "seeds of pads, drawn without regard to any record, and the noise that it draws, which it could "
        "subtract from a published total"
    )


@every("way", ["clear", "masked", "ckks"])
def test_the_key_holders_noise_needs_a_two_server_sum(way: str) -> None:
    changed = KEY_HOLDER | {"sum": f'"{way}"'}
    if way == "clear":
        changed = {name: value for name, value in changed.items() if name not in ("dropout", "corrupt")}
    with pytest.raises(ConfigError, match="two-server"):
        clients_protected(**changed)


def test_the_key_holder_cannot_be_protected_against_its_own_noise() -> None:
    of = clients_protected(**KEY_HOLDER | {"adversaries": '["server", "key-holder"]'})
    with pytest.raises(ConfigError, match="for the key holder"):
        forecast(of, of.arms[0], world(of))


def test_no_budget_bears_the_key_holder_that_draws_the_noise() -> None:
    """Whoever is named as an exception leaves bare for it, and epsilon against it is not 0."""
    changed = KEY_HOLDER | {"adversaries": '["key-holder"]', "non_private": '["update"]'}
    endless = clients_protected(**changed | {"budget": "inf"})
    found = forecast(endless, endless.arms[0], world(endless))
    assert found.epsilon == dict.fromkeys(("server", "key-holder", "others"), float("inf"))
    of = clients_protected(**changed | {"budget": "9.0"})
    with pytest.raises(ConfigError, match="without noise"):
        forecast(of, of.arms[0], world(of))
