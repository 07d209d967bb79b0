"""No silence of a client of a hidden sum depends on its records, whatever epsilon is: no mask hides it.

A server broadcasts one model, which all sign, under which a client's update is beyond the grid, or is no
number, exactly if the client has more records of a class than a number t. Were it silent then, one round for
each t would read label counts by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from support.every import every
from support.lying_queries import EVERYBODY, Parties
from support.tiny_study import study, world

from securefl.algorithm.queries import Value
from securefl.core.errors import DataError
from securefl.protocols.fedavg import FedAvg

LABEL, RECORDS, RATE = 3, 30, 0.2
FIRST, BIAS = 64 * 8, 8
HIDDEN = ("masked", "two-server", "ckks")


def beyond(size: int, count: float) -> np.ndarray:
    """A model under which a client's update stays on the grid unless it has more records of LABEL."""
    model = np.zeros(size, np.float32)
    model[FIRST] = 1.0  # unit 0 is 1 for all records; the others are dead
    model[FIRST + 1 : FIRST + BIAS] = -1.0
    model[FIRST + BIAS : FIRST + BIAS + 80].reshape(10, 8)[LABEL, 0] = -512 / (RATE * count / RECORDS)
    return model


def parties(how: str, spied: Any = None) -> Parties:
    class Spied(Parties):
        def _spied(self, compute: Any) -> Any:
            return compute if spied is None else lambda context: spied(compute, context)

    options = FedAvg(fraction=1.0, aggregation="partial")
    return Spied(options, how, dropout=0.34, max_rounds=40, min_cohort_size=6)


@every("how", HIDDEN)
def test_a_crafted_model_makes_no_silence_of_a_count(how: str) -> None:
    asked = parties(how)
    size = len(asked.algorithm.start().broadcast)
    true = [int((y[:RECORDS] == LABEL).sum()) for _, y in world(study()).records]
    assert len(set(true)) > 2, "otherwise no threshold tells the clients apart"
    for number, count in enumerate(sorted(set(true))[1:3], 1):
        answers = asked.ask(number, EVERYBODY, beyond(size, count - 0.5))
        assert answers.survivors == EVERYBODY, f"read who has {count} of {true}"
        assert np.isfinite(answers.totals["update"].value).all()


def fails(error: Exception) -> Any:
    def own(compute: Any, context: Any) -> Value:
        if len(context.x) and context.client == 2:
            raise error
        return compute(context)

    return own


def gives(entry: float) -> Any:
    def own(compute: Any, context: Any) -> Value:
        value = compute(context)
        if not len(context.x) or context.client != 2:
            return value
        return Value(clear=np.full_like(value.floats(), entry))

    return own


@every(
    ("own", "adds"),
    [
        (fails(DataError("its training diverged")), 0.0),
        (fails(ZeroDivisionError()), 0.0),
        (gives(np.nan), 0.0),
        (gives(-np.inf), -512.0),
        (gives(-513.0), -512.0),
        (gives(1e30), 512.0),
    ],
)
def test_whatever_a_client_s_records_do_it_is_in_the_sum(own: Any, adds: float) -> None:
    asked = parties("masked", own)
    start = asked.algorithm.start().broadcast
    answers = asked.ask(1, EVERYBODY, start)
    others = parties("masked", gives(0.0))
    honest = others.ask(1, EVERYBODY, start)
    assert answers.survivors == honest.survivors == EVERYBODY
    np.testing.assert_allclose(asked.total(answers), others.total(honest) + adds, atol=1e-4)
