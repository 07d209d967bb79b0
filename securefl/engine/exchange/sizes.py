"""The size limits of the messages of one query. They are checked before a message is decoded."""

from __future__ import annotations

from securefl.algorithm.queries import CohortQuery
from securefl.core.messages import OVERHEAD
from securefl.core.sparse import most_bytes
from securefl.core.wire import Limit


def limits(query: CohortQuery, sealed: int) -> tuple[Limit, Limit]:
    """Limits of broadcast or order, and of a contribution with encrypted numbers of `sealed` bytes."""
    # broadcast and order share one limit
    asked = len(query.sums) + len(query.per_client)
    broadcast = 4 * query.broadcast.size + 8 * sum(a.size for a in query.public.values())
    numbers = 8 * sum(sum(e.lengths()) for e in query.per_client)
    contribution = sum(most_bytes(s.size) for s in query.sums) + numbers + sealed * len(query.per_client)
    return (
        Limit(broadcast + OVERHEAD, max(2 * len(query.public), asked)),
        Limit(contribution + OVERHEAD, asked),
    )
