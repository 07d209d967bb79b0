"""Six clients of one algorithm and a server that chooses their queries, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, ByDraws, CohortQuery, Sum, Value
from securefl.core.wire import Header
from securefl.engine.exchange import client
from securefl.engine.inprocess import simulated
from securefl.protocols.lg_fedavg import LGFedAvg
from support.tiny_study import study, world

EVERYBODY, VICTIM = tuple(range(6)), 0
OTHERS = EVERYBODY[1:]
SESSION = bytes(32)
Vector = NDArray[Any]


def problem() -> Any:
    found = world(study()).problem
    return replace(found, local=replace(found.local, epochs=1))


class Parties:
    """Six clients of one algorithm. `own` has the values that they computed, newest last."""

    def __init__(self, options: Any, how: str, of: Any = None, **words: Any) -> None:
        self.algorithm = options.build(of or problem())
        # A form that refuses maps in hidden sums is another rule, which does not stand in here.
        specs = [replace(one.spec, form="discrete") for one in self.algorithm.contributions]
        self.specs = specs
        plan = Plan(
            **{
                "sum": how,
                "delta": 1e-5,
                "max_rounds": 9,
                "non_private": tuple(spec.name for spec in specs),
                "corrupt": 0.0,
                "min_cohort_size": 5,
                "max_cohort_size": 6,
                "min_honest": 2,
                "max_client_weight": 0.5,
                "weights": {spec.name: spec.weighs for spec in specs if spec.weighs != "equal"},
                "draws": max(spec.draws for spec in specs),
                "secagg": "active",
                **words,
            }
        )
        self.own: dict[int, list[Vector]] = {k: [] for k in EVERYBODY}
        computed = [self._spied(one.compute) for one in self.algorithm.contributions]
        parts = [ClientFunction(spec, own) for spec, own in zip(specs, computed, strict=True)]
        self.engine = simulated(
            plan,
            parts,
            Ledger(None, plan.terms()),
            [(x[:30], y[:30]) for x, y in world(study()).records],
            rng=lambda number, k, again: np.random.default_rng([number, k, again]),
        )

    def _spied(self, compute: Callable[[Any], Value]) -> Callable[[Any], Value]:
        def spied(context: Any) -> Value:
            value = compute(context)
            self.own[context.client].append(value.floats())
            return value

        return spied

    def ask(
        self, number: int, cohort: tuple[int, ...], sent: Vector, at: int = 0, stage: int = 0, **more: Any
    ) -> Answers:
        spec = self.specs[at]
        said = {"weights": ByDraws(dict.fromkeys(cohort, 1)), "size": len(sent), "session": SESSION, **more}
        size, session = said.pop("size"), said.pop("session")
        query = CohortQuery(cohort=cohort, broadcast=sent, **{"sums": (Sum(spec, size),), **said})
        return self.engine.query(query, Header(session, number, stage, 0))[0]

    def total(self, answers: Answers) -> Vector:
        """The plain sum of the values."""
        total = answers.totals["update"]
        return np.asarray(total.value * len(answers.survivors) / total.weight)


def dead(model: Vector) -> Vector:
    """A model of which no hidden unit fires: training moves only the biases of its last layer."""
    found = model.copy()
    found[64 * 8 : 64 * 8 + 8] = -1e6
    return found


FIRST_LAYER = slice(0, 64 * 8)


@contextmanager
def unequal(crafted: Mapping[int, Vector]) -> Iterator[None]:
    """The server shows these clients another model."""
    whole = client.Client._whole

    def lying(self: Any, broadcast: Any) -> Any:
        return whole(self, replace(broadcast, model=crafted.get(self.number, broadcast.model)))

    with mock.patch.object(client.Client, "_whole", lying):
        yield


Read = tuple[Answers, Callable[[], tuple[Vector, Vector]]]
"""The last answers of an attack, what the server reads of the victim, and what the victim sent."""


def lg_bodies(how: str, of: Any = None, **words: Any) -> Read:
    """Crafted heads kill the others' bodies. Then all get one honest head."""
    parties = Parties(LGFedAvg(), how, of, **words)
    head = parties.algorithm.start().broadcast
    deadly = np.zeros_like(head)  # class 0 at any price: what is of another class pushes each unit down
    deadly[:8] = 1e4
    for number in (1, 2):
        parties.ask(number, OTHERS, deadly)
    asked = parties.ask(3, EVERYBODY, head)
    weights = slice(0, 80)  # the others move their biases alone
    return asked, lambda: (parties.total(asked)[weights], parties.own[VICTIM][-1][weights])
