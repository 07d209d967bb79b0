"""The benchmark of secure aggregation plays sums that are right (`benchmarks/secagg.py`)."""

from __future__ import annotations

import numpy as np
import pytest
from masked_round import TERMS, Sum, grid, ours
from secagg import by_two_servers
from support.every import every

from securefl.accounting.ledger import Ledger
from securefl.secagg import Policy, Vector
from securefl.secagg.policy import Mode
from securefl.storage.journal import Journal

STEP = grid(3).step


@every("mode", ["active", "semi-honest"])
def test_a_masked_sum_is_that_of_the_survivors(mode: Mode) -> None:
    found = ours(Policy(mode=mode, corrupt=0.0, dropout=0.34), 3, 10, 1)
    assert found["error"] <= STEP
    assert found["bytes_up"] > 40


def test_a_sum_by_two_servers_has_a_row() -> None:
    row = by_two_servers(3, 10, 1)
    assert row["error"] <= STEP
    assert row.keys() > {"client_ms", "server_ms", "key_holder_ms", "client_over_floor"}


def test_a_wrong_sum_ends_the_benchmark() -> None:
    vector = Vector(name="update", length=4, bits=32, bound=grid(3).limit)
    with Ledger(None, TERMS) as ledger, Journal() as journal:
        played = Sum(vector, grid(3), ledger, journal)
        with pytest.raises(SystemExit, match="the exact sum"):
            played.figures(np.ones(4, np.int64))
