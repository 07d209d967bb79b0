"""Draws with replacement under hidden sums: the server draws until clients would take them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from support.every import every
from support.tiny_study import run, text, with_privacy

from securefl.algorithm.plan import Plan
from securefl.algorithm.weighing import admits
from securefl.protocols.selection import with_replacement
from securefl.study.config import parse

ARM = '[[arm]]\nname = "x"\nprotocol = "fedavg_rp"\nscheme = "I"\nfraction = {}\n'
SAID = {"sum": '"masked"', "dropout": "0.0", "corrupt": "0.0", "min_cohort_size": "3", "max_retries": "0"}
PLAN = Plan(
    sum="masked",
    corrupt=0.0,
    delta=1e-5,
    max_rounds=1,
    min_cohort_size=3,
    max_cohort_size=6,
    min_honest=2,
    max_client_weight=0.5,
    weights={"update": "draws"},
    draws=6,
)


@every("fraction", [0.5, 1.0])
def test_a_study_that_draws_with_replacement_sums_under_masks(fraction: float, tmp_path: Path) -> None:
    written = with_privacy(text(ARM.format(fraction), clients=12, rounds=3), SAID)
    for record in run(parse(written), tmp_path).records:
        draws = np.unique(record["selected"], return_counts=True)[1]
        assert len(record["answered"]) == len(draws)
        assert draws.max() ** 2 <= (np.sort(draws)[:-1] ** 2).sum(), "half of the squared weight at most"


def test_a_draw_that_clients_would_refuse_is_drawn_again() -> None:
    chances = np.log(np.array([8.0, 1.0, 1.0, 1.0, 1.0]))
    rng = np.random.default_rng(1)
    drawn = [with_replacement(chances, 6, rng, partial(admits, PLAN)) for _ in range(200)]
    assert all(admits(PLAN, one) for one in drawn)
    free = [with_replacement(chances, 6, rng) for _ in range(200)]
    assert not all(admits(PLAN, one) for one in free)


def test_in_the_clear_every_draw_is_taken() -> None:
    assert admits(Plan(delta=1e-5, max_rounds=1), {0: 6})


def test_what_is_never_admitted_ends_in_a_draw_that_nobody_asks_for() -> None:
    alone = np.array([0.0, -np.inf])
    assert with_replacement(alone, 6, np.random.default_rng(0), partial(admits, PLAN)) == {0: 6}
