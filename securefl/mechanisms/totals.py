"""The server's noise on totals, for a mechanism that trusts the server to add it before others see them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery, Sum, Total
from securefl.core.agreement import fields, u32
from securefl.core.entropy import derived
from securefl.core.errors import LocalProtocolError
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.dp.noise import Source
from securefl.mechanisms.charges import Protection
from securefl.storage.own_record import OwnRecord


def with_noise(plan: Plan, record: OwnRecord, ask: CohortQuery, answers: Answers, header: Header) -> Answers:
    """The answers with the server's noise on each total whose mechanism draws noise at the server."""
    if not answers.totals:  # nothing was opened
        return answers
    totals = dict(answers.totals)
    for wanted in ask.sums:
        mechanism, total = Protection(plan, wanted.spec).mechanism, totals[wanted.spec.name]
        if mechanism.total_by != SERVER:
            continue
        drawn = mechanism.total_noise(SERVER, wanted.size, [_source(record, wanted, total, header)])
        assert drawn is not None
        totals[wanted.spec.name] = replace(total, value=total.value + drawn * wanted.spec.grid.step)
    return replace(answers, totals=totals)


def _source(record: OwnRecord, wanted: Sum, total: Total, header: Header) -> Source:
    """The randomness of the server's noise on a total. It is the same if the round is run again.

    Fresh noise on the same total would be a second release of it. Another total, or one at another place,
    gets independent noise.
    """
    secret = record.secret(header.session, header.round)
    if secret is None:
        raise LocalProtocolError(
            f"Expected a round that is not over, got {header.round}: rounds go up. Query in a later round."
        )
    name = wanted.spec.name.encode()
    of = hashlib.sha256(total.value.tobytes()).digest()
    return Source(derived(secret, b"central|" + fields(u32(*header.place()), name, of)))
