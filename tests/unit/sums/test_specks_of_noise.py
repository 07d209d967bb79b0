"""Noise that hides nothing counts as none in the rules of hidden sums without noise.

`epsilon = 1e9` (unit = "client", noise = "local") is noise of 1e-5 of the bound; 1e12 is less than half a
step of the grid: it rounds to 0. So kept state is refused, sessions are counted, and the card says what a
crafted model reads and that differences of rounds are not protected.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.every import every
from support.lying_queries import lg_bodies, problem
from support.private_studies import client_level
from support.tiny_study import composed

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.engine.privacy_card import learns
from securefl.mechanisms.charges import Protection

WORDS = {"sum": '"masked"', "noise": '"local"', "dropout": "0.0", "corrupt": "0.0", "min_cohort_size": "5"}
HUGE = ["1e6", "1e9", "1e12"]


def made(epsilon: str) -> tuple[Plan, list[ValueSpec]]:
    study = client_level(epsilon=epsilon, max_client_weight="0.5", **WORDS)
    algorithm, plan = composed(study)
    return plan, [one.spec for one in algorithm.contributions]


@every("epsilon", HUGE)
def test_its_sessions_are_counted_and_its_card_says_what_is_read(epsilon: str) -> None:
    plan, specs = made(epsilon)
    assert any(Protection(plan, spec).bare for spec in specs)
    said = learns(plan, specs, "server")
    assert "crafts the model" in said
    assert "differences" in said


def test_noise_that_hides_something_is_noise() -> None:
    plan, specs = made("50")
    assert not any(Protection(plan, spec).bare for spec in specs)
    assert "crafts the model" not in learns(plan, specs, "server")


@every("multiplier", [1e-5, 1e-7])
def test_state_that_a_lying_server_chose_opens_nobody(multiplier: float) -> None:
    """The attack on LG-FedAvg, under this noise."""
    plain = problem()
    of = replace(plain, local=replace(plain.local, update_bound=16.0))
    noise = {"noise": "local", "noise_multiplier": multiplier, "unit": "client", "adjacency": "zero-out"}
    answers, read = lg_bodies("masked", of, non_private=(), max_retries=0, **noise)
    if answers.survivors:
        found, true = read()
        error = float(np.abs(found - true).max())
        assert error > np.abs(true).max(), f"read to {error:.2g} of {np.abs(true).max():.2g}"
