"""What the card says of the worst legal query holds for each length, each model and each number of scores.

Of few elements the spread is no bound, and under a crafted model no other element varies: then one legal
score is one mean, but for the noise. The parties themselves play it.
"""

from __future__ import annotations

import re

import numpy as np
from legal_queries import Population, Search, pad_noise
from support.every import every
from support.tiny_he import pad_holder, pad_request, pad_score, pad_server
from support.tiny_study import FEDPROF, composed, text

from securefl.core.signing import AgreementKey, SigningKey
from securefl.dp.moments import MeanVariance
from securefl.engine.privacy_card import learns
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import mask
from securefl.linear.registry import left_open
from securefl.matching.profiles import Anchor, Bounds, Variant, features, linear_query
from securefl.study.config import parse

SIGNING, HOLDER = SigningKey.generate(), AgreementKey.generate()


def error(length: int, count: int = 60, *, alone: bool) -> float:
    """How far a guess of one mean from one legal score errs, in units of the anchor: played by the parties.

    alone: whether no other element varies, and all weights are of one size. Otherwise one weight is large.
    """
    bounds, anchor = Bounds(), Anchor(np.zeros(length), np.ones(length))
    sizes = np.full(length, 0.99 * bounds.weight_norm(length) / np.sqrt(length))
    if not alone:
        sizes = np.zeros(length)
        sizes[0] = 0.99 * bounds.weight_norm(length)
    variance = np.full(length, bounds.variance_high)
    query = linear_query(MeanVariance(-sizes * bounds.variance_high, variance, 1), anchor, bounds)
    rng, scores, means, masked = np.random.default_rng(1), [], [], []
    terms = PadTerms(bounds=query.bounds, context=b"")
    varies = np.arange(length) == 0 if alone else np.ones(length, np.bool_)
    server = pad_server(terms, 0, "profile", SIGNING, query)
    holder = pad_holder(HOLDER, terms, ("profile",), count, SIGNING.public)
    for _ in range(count):
        own = MeanVariance(
            varies * rng.normal(size=length), np.exp(0.1 * varies * rng.normal(size=length)), 50
        )
        parts = features(own, anchor, bounds).split(Variant.FULL)
        masked.append(mask(parts.hidden, terms, "profile", server.declared.told, HOLDER.public))
        means.append(own.mean[0])
    replies = holder.open(pad_request(server, masked))
    for k, one in enumerate(masked):
        scores.append(pad_score(server, one, replies[8 * k : 8 * k + 8]).value)
    told = np.stack([scores, np.ones(count)], axis=1)
    fitted = told @ np.linalg.lstsq(told, np.array(means), rcond=None)[0]
    return float(np.std(fitted - means))


def said(scores: str) -> tuple[float, int, float]:
    """What the card of a FedProf study states: a figure for one score, the number of all, and theirs."""
    study = parse(text(FEDPROF, scores=scores))
    algorithm, plan = composed(study)
    card = learns(plan, [one.spec for one in algorithm.contributions], "server")
    found = re.search(
        r"one that is legal reads one entry to ([\d.]+) %[^,]*, (\d+) on one vector to ([\d.]+) %", card
    )
    assert found is not None
    return float(found[1]) / 100, int(found[2]), float(found[3]) / 100


@every(("length", "alone"), [(8, False), (24, False), (84, True)])
def test_one_legal_score_errs_by_what_the_card_says_or_more(length: int, alone: bool) -> None:
    found = error(length, alone=alone)
    assert found < 0.01, "otherwise nothing was read, and the test compares nothing"
    assert found > left_open("pads", 1)


@every("scheme", ["pads", "ckks"])
def test_the_card_has_these_figures(scheme: str) -> None:
    one, count, all_ = said(scheme)
    assert count > 1
    # In one digit, rounded down.
    assert 0.5 < one / left_open(scheme, 1) <= 1
    assert 0.5 < all_ / left_open(scheme, count) <= 1


@every("varies", [0.1, 1.0])
@every("length", [1, 2, 24, 84])
@every("variant", Variant)
def test_a_search_under_crafted_models_reads_no_entry_further(
    variant: Variant, length: int, varies: float
) -> None:
    """One element varies, by this much, and no other: what remains is its own square, and the noise."""
    none, one = np.zeros(length), varies * (np.arange(length) == 0)
    bounds = Bounds().linear(length, variant)
    terms = PadTerms(bounds=bounds, context=b"")
    search = Search(Population(none, one, none, none), variant, bounds, steps=20, starts=0)
    for releases in (1, 2, 3, 10):
        found = varies * search.of_scores(releases, lambda row: pad_noise(terms, row))
        assert found > 0.95 * left_open("pads", releases)
        if length <= 2 and releases == 2:
            assert found < 1.1 * left_open("pads", releases), "the card is as sharp as the worst case"
