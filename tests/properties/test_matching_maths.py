"""Every way of matching against the divergence in float64, on ordinary and on extreme profiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support import tiny_he
from support.every import every
from support.tiny_he import SIGNER, pad_holder, pad_request, pad_score, pad_server, scored

from securefl.core.linear import Floats, LinearQuery
from securefl.core.signing import AgreementKey
from securefl.dp.moments import MeanVariance
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import mask
from securefl.linear.turn import Score
from securefl.matching.profiles import Anchor, Variant, divergence, features, linear_query

LENGTHS = (1, 10, 84, 511, 512, 2500)
BOUNDS = replace(tiny_he.BOUNDS, spread=16.0)  # of variances that differ by a factor of 100
AGREEMENT = AgreementKey.generate()


def extreme(q: int, seed: int) -> tuple[MeanVariance, MeanVariance, Anchor]:
    """A client, a baseline and a public anchor: |mu| up to 1e3, variances from 1e-8 to 1e4.

    The anchor is near both, as statistics of a broadcast model are; it is neither.
    """
    rng = np.random.default_rng(seed)
    centre, spread = rng.uniform(-1e3, 1e3, q), 10 ** rng.uniform(-8, 4, q)

    def near() -> MeanVariance:
        variance = np.clip(spread * rng.uniform(0.3, 3, q), 1e-8, 1e4)
        return MeanVariance(centre + rng.normal(size=q) * np.sqrt(variance), variance, 50)

    return near(), near(), Anchor.of(near())


def padded(query: LinearQuery, hidden: Floats, clear: Floats) -> Score:
    terms = PadTerms(bounds=query.bounds, context=b"maths")
    server = pad_server(terms, 0, "profile", SIGNER, query)
    holder = pad_holder(AGREEMENT, terms, ("profile",), 1, SIGNER.public)
    masked = mask(hidden, terms, "profile", server.declared.told, AGREEMENT.public)
    return pad_score(server, masked, holder.open(pad_request(server, [masked])), clear)


@every("variant", Variant)
@every("q", LENGTHS)
def test_all_ways_give_the_divergence_of_extreme_profiles(q: int, variant: Variant) -> None:
    """Mean-only = full, mode E = mode P, pads = ciphertexts: all are the KL divergence."""
    own, base, anchor = extreme(q, 7 * q)
    assert features(own, anchor, BOUNDS).clipped == 0, "choose another seed: clipping is another number"
    split, query = features(own, anchor, BOUNDS).split(variant), linear_query(base, anchor, BOUNDS, variant)
    scores = [scored(one, query, split.hidden, split.clear) for one in (STRONG, COMPACT, STRONG_ENCRYPTED)]
    if q <= 512:
        scores.append(padded(query, split.hidden, split.clear))
    for score in scores:
        assert abs(score.value - divergence(own, base)) <= score.error_bound


def test_the_anchor_is_needed() -> None:
    """Unanchored, the values lie far outside the bounds: they are clipped, which is another number."""
    own, _, _ = extreme(84, 1)
    assert features(own, Anchor(np.zeros(84), np.ones(84)), BOUNDS).clipped > 60
