"""Clients that are held out whole take part in nothing, and models are tested on their records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.every import every
from support.tiny_study import FEDAVG, run, text

from securefl.core.errors import ConfigError
from securefl.data import load
from securefl.study import world
from securefl.study.config import parse

CLIENTS, APART = 6, 2


def built(apart: int, seed: int = 3) -> world.World:
    written = text(FEDAVG, clients=CLIENTS).replace("[data]\n", f"[data]\ntest_clients = {apart}\n", 1)
    return world.build(parse(written), seed)


def rows(x: np.ndarray) -> set[bytes]:  # type: ignore[type-arg]
    return {row.tobytes() for row in x}


def test_their_records_are_the_servers_and_nobody_trains_on_them() -> None:
    here, train = built(APART), load("digits", seed=3).train
    tests, trained = rows(here.problem.server_x), set().union(*(rows(x) for x, _ in here.records))
    assert len(here.records) == here.problem.clients == here.population().clients == CLIENTS
    assert not tests & trained
    assert tests | trained == rows(train.x)
    assert here.problem.records == sum(len(x) for x, _ in here.records)


def test_another_seed_holds_out_others() -> None:
    assert rows(built(APART, 3).problem.server_x) != rows(built(APART, 4).problem.server_x)


def test_a_run_with_them_ends(tmp_path: Path) -> None:
    written = text(FEDAVG, clients=CLIENTS, rounds=2).replace("[data]\n", "[data]\ntest_clients = 2\n", 1)
    finished = run(parse(written), tmp_path, here=built(2))
    assert [0 < record["accuracy"] <= 1 for record in finished.records] == [True, True]


@every(("apart", "said"), [(-1, "test_clients"), (10**6, "clients <= ")])
def test_numbers_that_cannot_be_are_refused(apart: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        built(apart)
