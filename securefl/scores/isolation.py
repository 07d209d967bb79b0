"""Many clients in few openings, without one client's junk costing another its score."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from securefl.errors import RemoteProtocolError
from securefl.scores.evaluator import Arrived, Baseline, Evaluator
from securefl.scores.opener import Score

Open = Callable[[bytes], bytes]
"""The key holder: `Opener.open`, here or at the other end of a channel."""


def match_many(
    evaluator: Evaluator, open_: Open, arrived: Sequence[Arrived], baseline: Baseline
) -> dict[str, Score | RemoteProtocolError]:
    """Every client's score by sender, or why it has none; batches of the baseline's K classes.

    A message that does not pass the gate never joins a batch. A batch with a score that no clipped profile
    gives is discarded, and its members are opened singly. That finds junk that shifts a batch out of range;
    clients that may be malicious are opened singly from the start, with terms of one class.
    """
    found: dict[str, Score | RemoteProtocolError] = {}
    fitting = []
    for one in arrived:
        try:
            evaluator.admit(one.ciphertext, sender=one.sender)
            fitting.append(one)
        except RemoteProtocolError as error:
            found[one.sender] = error
    size = max(1, len(baseline.classes))
    for start in range(0, len(fitting), size):
        found |= _batch(evaluator, open_, fitting[start : start + size], baseline)
    return found


def _batch(
    evaluator: Evaluator, open_: Open, members: Sequence[Arrived], baseline: Baseline
) -> dict[str, Score | RemoteProtocolError]:
    if len(members) > 1:
        try:
            blinded = evaluator.match_batch(members, baseline)
            scores = evaluator.unblind_batch(blinded, open_(blinded.request))
            return dict(zip(blinded.senders, scores, strict=True))
        except RemoteProtocolError:
            pass  # whose fault it is, single openings tell
    return {one.sender: _single(evaluator, open_, one, baseline) for one in members}


def _single(
    evaluator: Evaluator, open_: Open, one: Arrived, baseline: Baseline
) -> Score | RemoteProtocolError:
    try:
        blinded = evaluator.match(one.ciphertext, baseline, one.clear, sender=one.sender)
        return evaluator.unblind(blinded, open_(blinded.request))
    except RemoteProtocolError as error:
        return error
