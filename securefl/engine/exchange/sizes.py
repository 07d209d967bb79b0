"""The limits of the messages of one ask, for the gate in front of every decoder."""

from __future__ import annotations

from securefl.algorithm.queries import Ask
from securefl.core.messages import OVERHEAD
from securefl.core.sparse import most_bytes
from securefl.core.wire import Limit


def limits(ask: Ask, sealed: int) -> tuple[Limit, Limit]:
    """Limits of broadcast or order, and of a contribution with numbers concealed in `sealed` bytes."""
    # broadcast and order share one limit
    clients, asked = len(ask.cohort), len(ask.sums) + len(ask.each)
    broadcast = 4 * ask.broadcast.size + 8 * sum(a.size for a in ask.public.values())
    order = 2 * 8 * clients
    numbers = 8 * sum(sum(e.lengths()) for e in ask.each)
    contribution = sum(most_bytes(s.size) for s in ask.sums) + numbers + sealed * len(ask.each)
    return (
        Limit(max(broadcast, order) + OVERHEAD, max(2 * len(ask.public), asked + 2 * clients)),
        Limit(contribution + OVERHEAD, asked),
    )
