"""The card's "one that is legal leaves 5 % of an entry's standard deviation open" where the spread is no
bound.

Below 32 elements (full) a spike is legal: its score is one mean, but for the noise. `left_open` knows no
length and no bounds, so the card says 5 % for every study. docs/threat-model.md: "Below 32 elements the
default is no bound"; the card: issue 60.2, "stood on the card".
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.tiny_study import FEDPROF, text, world

from securefl.core.signing import AgreementKey, SigningKey
from securefl.dp.moments import MeanVariance
from securefl.engine.privacy_card import learns
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import PadKeyHolder, PadServer, mask
from securefl.matching.profiles import Anchor, Bounds, Variant, features, linear_query
from securefl.study.composition import composition
from securefl.study.config import parse

SIGNING, HOLDER = SigningKey.generate(), AgreementKey.generate()


def open_share(length: int, variant: Variant, count: int = 200, *, alone: bool = False) -> float:
    """What one legal score leaves open of a mean, as a share of its deviation: played by the parties."""
    bounds, anchor = Bounds(), Anchor(np.zeros(length), np.ones(length))
    sizes = (
        np.full(length, 0.99 * bounds.weight_norm(length) / np.sqrt(length)) if alone else np.zeros(length)
    )
    if not alone:
        sizes[0] = 0.99 * bounds.weight_norm(length)
    mean = -sizes * bounds.variance_high
    query = linear_query(MeanVariance(mean, np.full(length, bounds.variance_high), 1), anchor, bounds)
    rng, scores, means = np.random.default_rng(1), [], []
    terms = PadTerms(bounds=query.bounds, context=b"")
    varies = np.arange(length) == 0 if alone else np.ones(length, np.bool_)
    owners = [
        MeanVariance(varies * rng.normal(size=length), np.exp(0.1 * varies * rng.normal(size=length)), 50)
        for _ in range(count)
    ]
    server = PadServer(terms, 0, "profile", SIGNING, query)
    holder = PadKeyHolder(HOLDER, terms, ("profile",), count, SIGNING.public)
    masked = []
    for own in owners:
        parts = features(own, anchor, bounds).split(variant)
        masked.append(mask(parts.hidden, parts.clear, terms, "profile", server.told, HOLDER.public))
        means.append(own.mean[0])
    replies = holder.open(server.request(masked))
    for k, one in enumerate(masked):
        scores.append(server.score(one, replies[8 * k : 8 * k + 8]).value)
    told = np.stack([scores, np.ones(count)], axis=1)
    fitted = told @ np.linalg.lstsq(told, np.array(means), rcond=None)[0]
    return float(np.std(fitted - means) / np.std(means))


def said(hidden: int) -> float:
    """The share that the card of a FedProf study of this width states."""
    written = text(FEDPROF, scores="pads").replace("hidden = [8]", f"hidden = [{hidden}]")
    study = parse(written)
    algorithm, plan = composition(study, study.arms[0], world(study))
    specs = [one.spec for one in algorithm.contributions]
    found = re.search(r"one that is legal leaves ([\d.]+) %", learns(plan, specs, "server"))
    assert found is not None
    return float(found[1]) / 100


@pytest.mark.parametrize("length", [8, 16, 24])
def test_the_card_states_what_one_legal_score_leaves_open(length: int) -> None:
    assert open_share(length, Variant.FULL) > 0.5 * said(length)


def test_the_card_counts_a_crafted_model() -> None:
    """84 elements, of which the crafted model holds all but one constant; weights of one size (1.4)."""
    assert open_share(84, Variant.FULL, alone=True) > 0.5 * said(84)
