"""All parties of a plan in one process, whose clients offer one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Value, ValueSpec
from securefl.engine.inprocess import InProcess, simulated


def engine(
    plan: Plan,
    spec: ValueSpec,
    compute: Callable[[Any], Value],
    counts: Sequence[int],
    ledger: Ledger | None = None,
) -> InProcess:
    """counts: how many records each client has."""
    records = [(np.ones((count, 1)), np.zeros(count)) for count in counts]
    own, book = ClientFunction(spec, compute), ledger or Ledger(None, plan.terms())
    return simulated(plan, [own], book, records, rng=lambda *_: np.random.default_rng(0))
