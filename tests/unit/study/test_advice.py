"""What lowers the noise of a private run is told with what remains of it, as the calibration has it."""

from __future__ import annotations

from math import sqrt

import pytest
from support.private_studies import AVERAGING, client_level, private
from support.tiny_study import FEDAVG, study, world

from securefl.core.errors import ConfigError
from securefl.dp.calibration import sigma
from securefl.study.advice import advice
from securefl.study.composition import compositions
from securefl.study.config import Study, parse
from securefl.training.task import Problem


def told(of: Study, **more: float) -> tuple[str, Problem]:
    here = world(of).problem
    return advice(of, of.arms[0], here, **more), here


def test_noise_of_sums_is_compared_with_all_that_clients_could_send() -> None:
    said, here = told(client_level(epsilon="0.5"))
    values, clients, rounds = len(here.initial), 6, 2
    noise = sigma(0.5, 1e-2, releases=rounds, sensitivity=1.0) * sqrt(values)
    assert f"is {noise / clients / sqrt(rounds):.2g} times as long" in said
    head = sqrt(len(here.head) / values)
    told_first, _, heads = said.partition("; 50 % to 100 % with learning_rate = ")
    assert told_first.endswith(
        "there remain of it 50 % with 12 clients of as many records each; 50 % to 100 % with update_bound = "
        "0.25, the less the shorter updates are"
    ), "another number of rounds changes nothing, and is not listed"
    assert heads.startswith(
        f"{2 * here.local.learning_rate:g}, the less the shorter updates are; {100 * head:.0f} % with "
        'protocol = "heads" and a `client_bound` on frozen features, which sends once.'
    )
    assert told(client_level(epsilon="0.5"), least=1e3)[0] == ""


def test_a_head_with_a_client_bound_runs_where_it_is_advised() -> None:
    averaged = client_level(epsilon="0.5").text
    arm = averaged[averaged.index("protocol = ") :]
    heads = parse(averaged.replace(arm, 'protocol = "heads"\nclient_bound = 1.0\n'))
    assert compositions(heads, world(heads))
    bare = parse(averaged.replace(arm, 'protocol = "heads"\n'))
    with pytest.raises(ConfigError, match="`client_bound` in its arm"):
        compositions(bare, world(bare))


def test_where_no_change_suffices_it_is_said() -> None:
    said, _ = told(client_level(epsilon="0.01"))
    assert "None alone suffices: more than 0.5 times remain. Combine them. Ask for a larger epsilon" in said
    enough, _ = told(client_level(epsilon="60.0"))
    assert "suffices" not in enough


def test_noise_of_training_is_calibrated_anew_for_each_change() -> None:
    """Twice the rate takes at most twice the noise at the same epsilon, for twice the records."""
    said, here = told(private("fedavg", AVERAGING["fedavg"]))
    assert here.private is not None
    ratio = 1.2 * sqrt(len(here.initial)) / (20 * sqrt(4 * 2 * 5))
    assert f"is {ratio:.2g} times as long" in said
    assert "71 % with 8 clients" in said
    assert "50 % to 100 % with clip_norm = 0.5" in said
    share = int(said.partition(" % with sampling_rate = 0.2, expected_batch = 40")[0].rpartition(" ")[2])
    assert 50 < share <= 100


def test_without_noise_there_is_none_to_lower() -> None:
    assert told(study(FEDAVG))[0] == ""
