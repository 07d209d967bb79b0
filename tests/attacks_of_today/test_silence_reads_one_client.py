"""A crafted model turns each client's silence into a comparison with a number of the server's choice.

Without noise a client of a masked sum is silent if its update is beyond the grid (+-512). The server
broadcasts one model, which all sign, so that this happens to a client that has more records of one class
than a number t. Who is missing from the sum is read by name: one bit of one client a round, and by
bisection its label counts, exactly. Under two-server and ckks it is cut. threat-model.md, "Masked sums": a
server that lies "learns no more, but what a crafted model ... makes the total tell"; crafted-models.md:
"masks ... hide whose record it is".
"""

from __future__ import annotations

import numpy as np
import pytest
from support.tiny_study import study, world
from unit.sums import test_kept_state as parties_of

from securefl.protocols.fedavg import FedAvg

EVERYBODY, LABEL, RECORDS, RATE = parties_of.EVERYBODY, 3, 30, 0.2
FIRST, BIAS = 64 * 8, 8


def beyond(size: int, count: float) -> np.ndarray:
    """A model under which a client's update stays on the grid unless it has more records of LABEL."""
    model = np.zeros(size, np.float32)
    model[FIRST] = 1.0  # unit 0 is 1 for all records; the others are dead
    model[FIRST + 1 : FIRST + BIAS] = -1.0
    model[FIRST + BIAS : FIRST + BIAS + 80].reshape(10, 8)[LABEL, 0] = -512 / (RATE * count / RECORDS)
    return model


@pytest.mark.parametrize("how", ["masked", "two-server", "ckks"])
def test_who_is_silent_tells_no_count_of_one_client(how: str) -> None:
    options = FedAvg(fraction=1.0, aggregation="partial")
    parties = parties_of.Parties(options, how, dropout=0.34, max_rounds=40, min_cohort_size=6)
    size = len(parties.algorithm.start().broadcast)
    true = [int((y[:RECORDS] == LABEL).sum()) for _, y in world(study()).records]
    read: dict[int, int] = {}
    for number, count in enumerate(range(12, 0, -1), 1):
        answers = parties.ask(number, EVERYBODY, beyond(size, count - 0.5))
        for client in set(EVERYBODY) - set(answers.survivors) if answers.survivors else ():
            read.setdefault(client, count)
    assert not read, f"read {read} of the true counts {true}"
