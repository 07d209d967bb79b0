"""One query to named clients, and its ledger: in memory, or in a lasting file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from securefl.accounting.named_ledger import Id
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery, Value, ValueSpec
from securefl.api.arguments import path_of
from securefl.core.linear import LinearBounds
from securefl.core.release import PARTIES
from securefl.engine.aggregator import SecureAggregator
from securefl.engine.party.computing import Records
from securefl.engine.privacy_card import learns

RECORDS: Final[Records] = (np.zeros((1, 1)), np.zeros(1))
"""The records of a client that sends the caller's value. A client without records would abstain."""


def ask(
    plan: Plan,
    spec: ValueSpec,
    clients: Sequence[Id],
    compute: Callable[[Id], Value],
    ledger: Path | str | None,
    *,
    bounds: LinearBounds | None = None,
    parameters: str = "strong",
    **asked: Any,
) -> tuple[Answers, list[Id], dict[str, Any], bool]:
    """Put one query to these clients, in this process, and charge its ledger.

    Args:
        plan, spec: of the query, and of its value.
        clients: their ids, in the caller's order.
        compute: makes the value of a client, by its id.
        ledger: its file; None is a ledger that lasts as long as the call.
        bounds, parameters: of a score.
        asked: `sums` or `per_client` of the query.

    Returns:
        The answers; the clients that have one; the reason why each other one is `absent`, what each party
        `learns` and the `epsilon` against it; and whether a budget did not bear it.

    Raises:
        ConfigError, DataError: as for `SecureAggregator`.
    """
    path = None if ledger is None else path_of("ledger", ledger, "a file")
    function = ClientFunction(spec, lambda context: compute(context.client), bounds)
    records = dict.fromkeys(clients, RECORDS)
    with SecureAggregator(plan, [function], records, ledger=path, parameters=parameters) as aggregator:
        query = CohortQuery(cohort=tuple(clients), broadcast=np.zeros(0, np.float32), **asked)
        answers = aggregator.query(query)
        there = answers.per_client.get(spec.name, answers.survivors)
        told = {
            "absent": {own: aggregator.log.abstained.get(own, "") for own in clients if own not in there},
            "learns": {party: learns(plan, [spec], party) for party in PARTIES},
            "epsilon": {party: aggregator.ledger.worst(party) for party in PARTIES},
        }
        return answers, [own for own in clients if own in there], told, bool(aggregator.log.refused)
