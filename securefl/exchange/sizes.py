"""Byte bounds of the messages of one ask, for the gate in front of every decoder."""

from __future__ import annotations

from securefl.rounds import Ask

OVERHEAD = 4096
"""Bytes of headers, names and lengths of one message, generously."""


def most_bytes(ask: Ask, sealed: int) -> tuple[int, int, int]:
    """Most bytes of broadcast or order, contribution and open request, with `sealed`-byte ciphertexts."""
    broadcast = 4 * ask.model.size + 8 * sum(a.size for a in ask.public.values()) + OVERHEAD
    order = 2 * 8 * len(ask.cohort) + OVERHEAD
    numbers = 8 * sum(sum(e.lengths()) for e in ask.each)
    contribution = 4 * sum(s.size for s in ask.sums) + numbers + sealed * len(ask.each) + OVERHEAD
    return max(broadcast, order), contribution, (sealed + 64) * len(ask.cohort) * len(ask.each) + OVERHEAD
