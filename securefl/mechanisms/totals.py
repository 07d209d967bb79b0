"""Noise on totals: the server's, and noise of either party that is correlated over rounds."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery, Sum, Total
from securefl.core.agreement import fields, u32
from securefl.core.entropy import derived
from securefl.core.errors import LocalProtocolError
from securefl.core.keys import SecretKey
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.dp.gaussian import Integers
from securefl.dp.noise import Source
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.mechanism import Mechanism
from securefl.mechanisms.outside import Outside
from securefl.storage.own_record import OwnRecord


def with_noise(
    plan: Plan, record: OwnRecord, ask: CohortQuery, answers: Answers, header: Header
) -> Answers | None:
    """The answers with the server's noise on each total whose mechanism draws noise at the server.

    None if correlated noise of this round was drawn for another total: with the same noise, the two totals
    would tell their difference, and with other noise they would be two releases.
    """
    # Nothing was opened, or in the clear zeros of nobody: they would bind the round's row of noise.
    if not answers.survivors:
        return answers
    totals = dict(answers.totals)
    for wanted in ask.sums:
        own, total = Protection(plan, wanted.spec), totals[wanted.spec.name]
        mechanism = own.mechanism
        if mechanism.total_by != SERVER:
            continue
        drawn = _drawn(record, mechanism, wanted, total, header)
        if drawn is None:
            return None
        # In grid units, whole numbers: rounding a total and its noise apart would tell one from the other.
        step = wanted.spec.grid.step
        noised = np.float64(step) * (np.rint(total.value / step) + drawn)
        # Of the clients' values only a part was drawn. Their expected number is public; how many were is not.
        totals[wanted.spec.name] = replace(total, value=noised / own.sampling_rate)
    return replace(answers, totals=totals)


def _drawn(
    record: OwnRecord, mechanism: Mechanism | Outside, wanted: Sum, total: Total, header: Header
) -> Integers | None:
    """The server's noise on a total. It is the same if the round is run again.

    Fresh noise on the same total would be a second release of it. Another total, or one at another place,
    gets independent noise, or none if noise is correlated.
    """
    secret = record.secret(header.session, header.round)
    if secret is None:
        raise LocalProtocolError(
            f"Expected a round that is not over, got {header.round}: rounds go up. Query in a later round."
        )
    name, of = wanted.spec.name, hashlib.sha256(total.value.tobytes()).digest()
    if mechanism.correlation.correlated:
        before = record.row(header, name, of)
        return row_noise(mechanism, record.lasting(header.session), header, wanted, before)
    return mechanism.total_noise(SERVER, wanted.size, _source(secret, name, of, header))


def _source(secret: SecretKey, name: str, of: bytes, at: Header) -> Source:
    """The randomness of independent noise on the total with the digest `of`."""
    return Source(derived(secret, b"central|" + fields(u32(*at.place()), name.encode(), of)))


def row_noise(
    mechanism: Mechanism | Outside, secret: SecretKey, at: Header, wanted: Sum, before: int | None
) -> Integers | None:
    """The correlated noise of a round's one total, int64 (size,), in grid units.

    The round is the row. The total also gets the noise of the rounds before it that have none: a lost round
    counts as the total 0 of no client (`dp.correlated`).

    Args:
        mechanism: of the value, whose noise is that of its `total_by`.
        secret: of the party that draws, for the session: rows of former rounds are drawn again.
        at: the place of the query.
        wanted: the sum.
        before: the newest row before that has a total, as `Journal.row` gives it once the total is bound.

    Returns:
        None if `before` is: the row has another total.
    """
    if before is None:
        return None
    assert isinstance(mechanism, Mechanism), "the registry refuses others with correlated noise"
    rows = [_row(secret, at.session, wanted, row) for row in range(1, at.round + 1)]
    return mechanism.correlation.noise(wanted.size, mechanism.sigma, rows, before)


def _row(secret: SecretKey, session: bytes, wanted: Sum, row: int) -> Source:
    # A stream does not begin with the values of a shorter one. So each length has rows of its own:
    # else a few entries of a row of another length would keep the noise that it should cancel.
    of = fields(session, wanted.spec.name.encode(), u32(row), u32(wanted.size))
    return Source(derived(secret, b"correlated rows|" + of))
