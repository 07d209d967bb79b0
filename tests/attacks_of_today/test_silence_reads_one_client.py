"""A crafted model turns each client's silence into a comparison with a number of the server's choice.

Without noise a client abstains if an entry of its update lies beyond the grid (+-512). The server broadcasts one
model, which all sign, whose hidden unit multiplies a client's own share of a class by 512 / threshold. Who is
missing from the sum is read by name: one bit of one client a round, and by bisection its label counts, exactly.
Masks hide nothing of it. threat-model.md, "Masked sums": a server that lies "learns no more, but what a crafted
model ... makes the total tell"; crafted-models.md: "masks ... hide whose record it is".
"""

from __future__ import annotations

import numpy as np
import pytest
from support.tiny_study import study, world
from unit.sums.test_kept_state import EVERYBODY, Parties

from securefl.protocols.fedavg import FedAvg

LABEL, RECORDS, RATE = 3, 30, 0.2
BESIDES = 0.5  # between two counts


def asking(size: int, count: float) -> np.ndarray:
    """A model under which a client's update stays on the grid unless it has more records of LABEL."""
    model = np.zeros(size, np.float32)
    first, bias, second = 64 * 8, 8, 10 * 8
    model[first] = 1.0  # unit 0 is 1 for all records; the others are dead
    model[first + 1 : first + bias] = -1.0
    weights = model[first + bias : first + bias + second].reshape(10, 8)
    weights[LABEL, 0] = -512 / (RATE * count / RECORDS)
    return model


@pytest.mark.parametrize("how", ["masked", "two-server"])
def test_who_is_silent_tells_no_count_of_one_client(how: str) -> None:
    parties = Parties(
        FedAvg(fraction=1.0, aggregation="partial"), how, dropout=0.34, max_rounds=40, min_cohort_size=6
    )
    size = len(parties.algorithm.start().broadcast)
    true = [int((y[:RECORDS] == LABEL).sum()) for _, y in world(study()).records]
    read: dict[int, int] = {}
    for number, count in enumerate(range(12, 0, -1), 1):
        answers = parties.ask(number, EVERYBODY, asking(size, count - BESIDES))
        for client in set(EVERYBODY) - set(answers.survivors) if answers.survivors else ():
            read.setdefault(client, count)
    assert not read, f"read {read} of the true counts {true}"
