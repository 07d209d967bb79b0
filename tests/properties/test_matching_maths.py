"""Every way of matching against the divergence in float64, on ordinary and on extreme profiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support import tiny_he
from support.every import every
from support.tiny_he import SIGNER, Checked, keys, pad_holder, pad_request, pad_score, pad_server, seeded

from securefl.core.signing import AgreementKey
from securefl.dp.moments import MeanVariance
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters
from securefl.linear.encrypted import LinearEvaluator, Opener
from securefl.linear.encryptor import Encryptor
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import mask
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Anchor, Variant, divergence, features, linear_query

LENGTHS = (1, 10, 84, 511, 512, 2000)
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


def ciphertext_score(
    own: MeanVariance,
    base: MeanVariance,
    anchor: Anchor,
    *,
    parameters: Parameters,
    variant: Variant,
) -> tuple[float, float]:
    """The score and its bound."""
    asked, split = linear_query(base, anchor, BOUNDS, variant), features(own, anchor, BOUNDS).split(variant)
    if not parameters.encrypted_baseline:
        score = Checked(parameters, asked).score(split.hidden, split.clear)
        return score.value, score.error_bound
    terms, pair = LinearTerms(parameters=parameters, bounds=asked.bounds, scores=500), keys(parameters)
    client, evaluator = Encryptor(pair.public, terms), LinearEvaluator(pair.public, terms, SIGNER)
    baseline = evaluator.encrypted_baseline(client.encrypt_baseline(asked))
    request = evaluator.addressed(client.encrypt(split.hidden), baseline, split.clear)
    score = Opener(pair, terms, SIGNER.public, rng=seeded()).read(request)
    return score.value, score.error_bound


def padded_score(
    own: MeanVariance, base: MeanVariance, anchor: Anchor, variant: Variant
) -> tuple[float, float]:
    terms = PadTerms(bounds=BOUNDS.linear(len(own), variant), context=b"maths")
    server = pad_server(terms, 0, "profile", SIGNER, linear_query(base, anchor, BOUNDS, variant))
    holder = pad_holder(AGREEMENT, terms, ("profile",), 1, SIGNER.public)
    split = features(own, anchor, BOUNDS).split(variant)
    masked = mask(split.hidden, terms, "profile", server.declared.told, AGREEMENT.public)
    score = pad_score(server, masked, holder.open(pad_request(server, [masked])), split.clear)
    return score.value, score.error_bound


@every("variant", Variant)
@every("q", LENGTHS)
def test_all_ways_give_the_divergence_of_extreme_profiles(q: int, variant: Variant) -> None:
    """Mean-only = full, mode E = mode P, pads = ciphertexts: all are the KL divergence."""
    own, base, anchor = extreme(q, 7 * q)
    assert features(own, anchor, BOUNDS).clipped == 0, "choose another seed: clipping is another number"
    expected = divergence(own, base)
    for parameters in (STRONG, COMPACT, STRONG_ENCRYPTED):
        score, bound = ciphertext_score(own, base, anchor, parameters=parameters, variant=variant)
        assert abs(score - expected) <= bound, parameters.name
    if q <= 512:
        score, bound = padded_score(own, base, anchor, variant)
        assert abs(score - expected) <= bound


def test_the_anchor_is_needed() -> None:
    """Unanchored, the values lie far outside the bounds: they are clipped, which is another number."""
    own, _, _ = extreme(84, 1)
    assert features(own, Anchor(np.zeros(84), np.ones(84)), BOUNDS).clipped > 60
