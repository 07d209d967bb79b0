"""The search for the best legal queries in its quick form, and the figures that the card has from it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from legal_queries import RELEASES, RESULTS, Population, Search, lattices, modular, pad_noise, query_of

from securefl.linear.pad_terms import PadTerms
from securefl.linear.registry import left_open
from securefl.matching.profiles import Bounds, Variant

KEPT = json.loads((RESULTS / "legal_queries.json").read_text(encoding="utf-8"))
SEARCHED = [own for name, own in KEPT.items() if not name.startswith(("lattice", "command"))]


@pytest.mark.parametrize("scheme", ["pads", "ckks"])
@pytest.mark.parametrize("releases", RELEASES)
def test_the_card_promises_no_more_than_the_search_left_open(scheme: str, releases: int) -> None:
    assert left_open(scheme, releases) <= min(own[scheme][str(releases)] for own in SEARCHED)


@pytest.fixture(scope="module")
def search() -> Search:
    bounds = Bounds().linear(64, Variant.MEAN_ONLY)
    return Search(Population.digits(), Variant.MEAN_ONLY, bounds, steps=60, starts=1)


def test_the_quick_search_finds_what_the_long_one_found(search: Search) -> None:
    terms = PadTerms(bounds=search.bounds, context=b"")
    kept = KEPT["digits, mean-only"]["pads"]
    for releases in RELEASES:
        found = search.of_scores(releases, lambda row: pad_noise(terms, row))
        assert found == pytest.approx(kept[str(releases)], rel=0.3)


def test_what_the_search_tries_is_legal_and_as_sharp_as_the_rules_allow(search: Search) -> None:
    for weights in (search.sharpest, search.opposite()):
        query_of(search.bounds, weights).row(encrypted=False)
        spread = np.abs(weights).max() / np.sqrt(np.mean(weights**2))
        assert 0.8 * search.bounds.spread < spread <= search.bounds.spread
        assert int(np.abs(weights).argmax()) == search.victim


def test_weights_that_cancel_what_one_element_tells_are_found(search: Search) -> None:
    """(-2 m b, b) on a mean and its square: no such query tells more than the card says."""
    length, (low, high) = len(search.population.mean), search.limits
    terms, found = PadTerms(bounds=search.bounds, context=b""), []
    for element in set(range(length)) - {search.victim}:
        pair = [element, length + element]
        own = np.linalg.eigh(search.covariance[np.ix_(pair, pair)])[1][:, 0]
        weights = np.zeros(len(low))
        weights[search.victim] = 1.0
        weights[pair] = np.sign(own[1]) * own * np.sqrt(len(low) / search.bounds.spread**2 - 1) * 1.001
        weights *= 0.999 * search.bounds.weight_norm / np.linalg.norm(weights)
        weights = np.clip(weights, low, high)
        if search.passes(weights):
            found.append(search.left_open([weights], [pad_noise(terms, weights)]))
    assert min(found) > 0.9 * left_open("pads", 1)
    assert search.of_scores(1, lambda row: pad_noise(terms, row)) < 1.1 * min(found)


@pytest.mark.parametrize("noised", [False, True])
def test_residues_read_an_entry_without_the_noise_alone(search: Search, noised: bool) -> None:
    terms = PadTerms(bounds=search.bounds, context=b"")
    left = modular(
        search, terms, count=30, powers=range(terms.weight_bits - 5, terms.weight_bits), noised=noised
    )
    assert left > 0.8 if noised else left < 1e-4


def test_a_lattice_reads_an_entry_without_the_noise_alone() -> None:
    found = lattices(count=20, length=4)
    assert found["1 score, without noise"] < 1e-4
    assert found["2 scores, without noise"] < 0.1
    for scores in ("1 score", "2 scores"):
        # No better than the best linear guess from the same scores, but for the error of 20 draws.
        assert found[scores] > 0.6 * found[f"{scores}, linear"] > 0.2
