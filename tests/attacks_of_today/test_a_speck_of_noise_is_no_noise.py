"""Rules for sums "without noise" ask whether an epsilon is finite, and a speck of noise makes it finite.

`epsilon = 1e9` (unit = "client", noise = "local") is noise of 1e-5 of the bound; 1e12 is less than half a
step of the grid, so it rounds to 0: the bytes are those without noise. Yet kept state is then allowed,
sessions are not counted, and the card drops what it says of crafted models and of differences of rounds.
Breaks: PROOF.md ("refused without a finite epsilon"), parties.md "Sessions", i59.1, i59.2, i59.3.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import private_studies
from support.private_studies import client_level
from support.tiny_study import world
from unit.sums import test_kept_state as attacks

from securefl.core.errors import ConfigError
from securefl.engine.privacy_card import learns
from securefl.mechanisms.charges import bare
from securefl.study.composition import composition

WORDS = {"sum": '"masked"', "noise": '"local"', "dropout": "0.0", "corrupt": "0.0", "min_cohort_size": "5"}
HUGE = ["1e6", "1e9", "1e12"]


def made(epsilon: str):  # type: ignore[no-untyped-def]
    study = client_level(epsilon=epsilon, max_client_weight="0.5", **WORDS)
    algorithm, plan = composition(study, study.arms[0], world(study))
    return plan, [one.spec for one in algorithm.contributions]


@pytest.mark.parametrize("epsilon", HUGE)
def test_its_sessions_are_counted(epsilon: str) -> None:
    plan, specs = made(epsilon)
    assert any(bare(plan, spec) for spec in specs)


@pytest.mark.parametrize("epsilon", HUGE)
def test_its_card_says_what_a_crafted_model_reads(epsilon: str) -> None:
    plan, specs = made(epsilon)
    assert "crafts the model" in learns(plan, specs, "server")


@pytest.mark.parametrize("multiplier", [1e-5, 1e-7])
def test_state_that_a_lying_server_chose_opens_nobody(
    multiplier: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack on LG-FedAvg of test_kept_state.py, under this noise."""
    problem = attacks.problem()
    problem = replace(problem, local=replace(problem.local, update_bound=16.0))
    noise = {
        "noise": "local",
        "noise_multiplier": multiplier,
        "unit": "client",
        "adjacency": "zero-out",
        "non_private": (),
        "max_retries": 0,
    }
    plain = attacks.Parties
    monkeypatch.setattr(attacks, "problem", lambda: problem)
    monkeypatch.setattr(attacks, "Parties", lambda *args: plain(*args, **noise))
    answers, read = attacks.lg_bodies("masked")
    if answers.survivors:
        found, true = read()
        error = float(np.abs(found - true).max())
        assert error > np.abs(true).max(), f"read to {error:.2g} of {np.abs(true).max():.2g}"


@pytest.mark.parametrize("name", ["lg_fedavg", "fedavg"])
def test_a_speck_in_private_training_is_none_either(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`[dpsgd] noise_multiplier = 1e-6` opens the same three doors."""
    speck = private_studies.DPSGD.replace("noise_multiplier = 1.2", "noise_multiplier = 1e-6")
    monkeypatch.setattr(private_studies, "DPSGD", speck)
    words = {**WORDS, "noise": '"none"', "min_cohort_size": "4", "max_client_weight": "0.5"}
    study = private_studies.private(name, private_studies.AVERAGING[name], **words)
    try:
        algorithm, plan = composition(study, study.arms[0], world(study))
    except ConfigError:
        return
    specs = [one.spec for one in algorithm.contributions]
    assert any(bare(plan, spec) for spec in specs)
    assert "crafts the model" in learns(plan, specs, "server")
