"""A legal query can be sharp: what one score tells of one entry of a profile, measured.

A baseline inside the bounds may have one large weight. No check of its form refuses it, since honest ones can
have one too. What bounds the loss is the declared number of releases, and noise.
"""

from __future__ import annotations

import numpy as np

from securefl.dp.moments import MeanVariance
from securefl.matching.profiles import Anchor, Bounds, Variant, features, linear_query

Q, VICTIM, OWNERS = 84, 3, 2000
BOUNDS, ANCHOR = Bounds(), Anchor(np.zeros(Q), np.ones(Q))


def left_over(baseline: MeanVariance, anchor: Anchor = ANCHOR) -> float:
    """What the best guess of one mean from the score errs by, as a share of its standard deviation.

    baseline: in units of the anchor.
    """
    rng = np.random.default_rng(38)
    query = linear_query(baseline, ANCHOR, BOUNDS)
    query.row(encrypted=False)  # refuses a norm above the bounds
    scores, means = [], []
    for _ in range(OWNERS):
        own = MeanVariance(rng.normal(size=Q), np.exp(rng.normal(size=Q)), 50)
        parts = features(own, anchor, BOUNDS).split(Variant.FULL)
        scores.append(query.number(parts.hidden, parts.clear))
        means.append(own.mean[VICTIM])
    told = np.stack([scores, np.ones(OWNERS)], axis=1)
    fitted = told @ np.linalg.lstsq(told, np.array(means), rcond=None)[0]
    return float(np.std(fitted - means) / np.std(means))


def test_a_sharp_baseline_reads_one_mean_to_two_percent() -> None:
    sharp = np.zeros(Q)
    sharp[VICTIM] = -0.99 * BOUNDS.weight_norm(Q) * BOUNDS.variance_high
    error = left_over(MeanVariance(sharp, np.full(Q, BOUNDS.variance_high), 1))
    assert 0.01 < error < 0.025, "docs/threat-model.md states it"


def test_an_anchor_that_the_server_chose_leaves_one_element_of_the_score() -> None:
    """Under scales without end all other elements are at their bounds, whatever a client has."""
    scale = np.full(Q, 1e9)
    scale[VICTIM] = 1.0
    sharp = np.zeros(Q)
    sharp[VICTIM] = -0.99 * BOUNDS.weight_norm(Q) * BOUNDS.variance_high
    error = left_over(MeanVariance(sharp, np.full(Q, BOUNDS.variance_high), 1), Anchor(np.zeros(Q), scale))
    assert 0.001 < error < 0.0025, "docs/threat-model.md states it"


def test_a_baseline_as_servers_have_tells_no_single_mean() -> None:
    assert left_over(MeanVariance(np.full(Q, 0.3), np.ones(Q), 1)) > 0.98
