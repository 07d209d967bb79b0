"""Federated dropout: one public subnet a round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.supernets import MLP, context, problem
from support.tiny_study import spied, study

from securefl.algorithm.clients import ClientContext
from securefl.core.errors import DataError
from securefl.protocols.adds import FedDrop
from securefl.protocols.adds.contributions import packed
from securefl.protocols.adds.feddrop import UNITS, Dropped
from securefl.protocols.contributions import Sampling


def part(keep: float = 0.5) -> Dropped:
    return FedDrop(fraction=1.0, keep=keep).build(problem(MLP)).part  # type: ignore[attr-defined, no-any-return]


def ordered(own: Dropped, seed: int = 0, **changes: Any) -> ClientContext:
    units = own.drawn(np.random.default_rng(seed))
    there = own.supernet.entries(own.supernet.kept_groups(units))
    return replace(
        context(own.supernet), broadcast=own.initial[there], public={UNITS: packed(units)}, **changes
    )


def test_units_are_drawn_in_every_layer() -> None:
    own = part()
    first, second = (own.drawn(np.random.default_rng(seed)) for seed in (0, 1))
    assert not np.array_equal(first, second)
    assert [first[layer.own].sum() for layer in own.supernet.sampled] == [6, 3]
    assert part(keep=0.01).drawn(np.random.default_rng(0)).sum() == 2


def test_only_the_subnet_travels_and_moves(tmp_path: Path) -> None:
    arm = '[[arm]]\nname = "x"\nprotocol = "feddrop"\nfraction = 1.0\nkeep = 0.5\n'
    spy, finished = spied(study(arm, clients=3, rounds=2), tmp_path)
    for (query, _), before, after in zip(spy.asks, spy.states, spy.states[1:], strict=False):
        moved = before.broadcast != after.broadcast
        assert 0 < moved.sum() <= len(query.broadcast) == query.sums[0].size < len(before.broadcast)
    assert finished.records[-1]["accuracy"] > 0.15
    assert set(np.round(finished.records[0]["figures"]["macs"][1], 6)) == {0.5}


@every("defect", ["another length", "no units", "an empty layer", "no words"])
def test_orders_that_do_not_fit_are_refused(defect: str) -> None:
    own = part()
    (update,), good = own.contributions(Sampling()), ordered(part())
    assert update.compute(good).new_state is not None
    empty = own.supernet.whole
    empty[own.supernet.sampled[1].own] = False
    bad = {
        "another length": replace(good, broadcast=good.broadcast[:-1]),
        "no units": replace(good, public={UNITS: packed(np.zeros(own.supernet.units, np.bool_))}),
        "an empty layer": replace(good, public={UNITS: packed(empty)}),
        "no words": replace(good, public={}),
    }[defect]
    with pytest.raises(DataError, match="Expected"):
        update.compute(bad)
