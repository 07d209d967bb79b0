"""What a legal query tells of one entry: its form is bounded, and the low bits of an opened number are noise.

The attacks are played by the parties themselves. `benchmarks/legal_queries.py` searches for the best ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf

import numpy as np
import pytest
from scipy import stats
from support.every import every
from support.tiny_he import lie, pad_holder, pad_request, pad_score, pad_server

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.linear import LinearBounds, LinearQuery
from securefl.core.signing import AgreementKey, SigningKey
from securefl.dp.moments import MeanVariance
from securefl.linear import words
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import admit, mask
from securefl.matching.profiles import Anchor, Bounds, Variant, features, linear_query

Q, VICTIM, OWNERS = 84, 3, 2000
BOUNDS, ANCHOR = Bounds(), Anchor(np.zeros(Q), np.ones(Q))
SIGNING, HOLDER = SigningKey.generate(), AgreementKey.generate()
NAME = "profile"


def drawn(seed: int, count: int, q: int = Q) -> list[MeanVariance]:
    rng = np.random.default_rng(seed)
    return [MeanVariance(rng.normal(size=q), np.exp(rng.normal(size=q)), 50) for _ in range(count)]


# The form of a query -----------------------------------------------------------------------------------


def left_over(baseline: MeanVariance, anchor: Anchor = ANCHOR, spread: float = BOUNDS.spread) -> float:
    """What the best guess of one mean from the score errs by, as a share of its standard deviation.

    baseline: in units of the anchor.
    """
    bounds = Bounds(spread=spread)
    query = linear_query(baseline, ANCHOR, bounds)
    query.row(encrypted=False)  # refuses weights outside the bounds
    scores, means = [], []
    for own in drawn(38, OWNERS):
        parts = features(own, anchor, bounds).split(Variant.FULL)
        scores.append(query.number(parts.hidden, parts.clear))
        means.append(own.mean[VICTIM])
    told = np.stack([scores, np.ones(OWNERS)], axis=1)
    fitted = told @ np.linalg.lstsq(told, np.array(means), rcond=None)[0]
    return float(np.std(fitted - means) / np.std(means))


def spike(size: float, others: float = 0.0) -> MeanVariance:
    """A baseline whose weights are `size` for the victim's mean and `others` for every other mean."""
    mean = np.full(Q, -others * BOUNDS.variance_high)
    mean[VICTIM] = -size * BOUNDS.variance_high
    return MeanVariance(mean, np.full(Q, BOUNDS.variance_high), 1)


def test_a_sharp_baseline_is_refused_and_would_read_one_mean_to_two_percent() -> None:
    sharp = spike(0.99 * BOUNDS.weight_norm(Q))
    with pytest.raises(ConfigError, match="nearly that one entry"):
        left_over(sharp)
    assert 0.01 < left_over(sharp, spread=inf_for(2 * Q + 1)) < 0.025, "docs/threat-model.md states it"


def inf_for(weights: int) -> float:
    """A spread that is no bound."""
    return float(weights)


def test_an_anchor_that_the_server_chose_helps_a_sharp_baseline_alone() -> None:
    """Under scales without end all other elements are at their bounds, whatever a client has."""
    scale = np.full(Q, 1e9)
    scale[VICTIM] = 1.0
    sharp = spike(0.99 * BOUNDS.weight_norm(Q))
    error = left_over(sharp, Anchor(np.zeros(Q), scale), inf_for(2 * Q + 1))
    assert 0.001 < error < 0.0025, "docs/threat-model.md states it"


def test_the_sharpest_baseline_that_passes_leaves_most_of_a_mean_open() -> None:
    """Others weigh as little as the spread allows. No element of this population varies less than another."""
    assert 0.7 < left_over(spike(100.0, 14.2)) < 0.8


def test_a_baseline_as_servers_have_tells_no_single_mean() -> None:
    assert left_over(MeanVariance(np.full(Q, 0.3), np.ones(Q), 1)) > 0.98


SPREAD = LinearBounds(
    hidden_length=100, norm=10.0, weight_norm=10.0, row_norm=10.0, product=100.0, spread=5.0, least=-inf
)
ALTERNATING = np.tile([1.0, -1.0], 50)
SHAPES: dict[str, tuple[np.ndarray, bool]] = {
    "one spike": (np.eye(100)[7], False),
    "one spike that is negative": (-9 * np.eye(100)[7], False),
    "a spike on equal weights": (0.1 + 5 * np.eye(100)[7], False),
    "a spike below the bound": (0.1 + 0.4 * np.eye(100)[7], True),
    "all equal": (np.ones(100), True),
    "alternating signs": (ALTERNATING, True),
    "alternating signs and a spike": (0.1 * ALTERNATING + 3 * np.eye(100)[0], False),
    "denormals": (np.full(100, 5e-324), False),
    "a denormal spike": (5e-324 * np.eye(100)[0], False),
    "denormals beside weights": (np.where(np.arange(100) < 50, 5e-324, 1.0), True),
}


@every("word_bits", [64, 128])
@every("shape", SHAPES)
def test_server_and_key_holder_judge_the_spread_alike(shape: str, word_bits: int) -> None:
    weights, legal = SHAPES[shape]
    terms = PadTerms(bounds=SPREAD, context=b"", word_bits=word_bits)
    holder = pad_holder(HOLDER, terms, (NAME,), 1, SIGNING.public)
    message = mask(np.zeros(100), terms, NAME, bytes(32), HOLDER.public)
    if legal:
        server = pad_server(terms, 0, NAME, SIGNING, LinearQuery(SPREAD, weights))
        assert holder.open(pad_request(server, [message]))
        return
    with pytest.raises(ConfigError):
        pad_server(terms, 0, NAME, SIGNING, LinearQuery(SPREAD, weights))
    server = pad_server(terms, 0, NAME, SIGNING, LinearQuery(SPREAD, np.ones(100)))
    # A server that breaks the protocol asks all the same.
    lie(server, words.from_floats(np.rint(weights * terms.weight_scale), word_bits))
    with pytest.raises(RemoteProtocolError, match="Expected"):
        holder.open(pad_request(server, [message]))


def test_a_spread_is_part_of_the_terms() -> None:
    """So a client whose bounds are others than the call's has other pads, as well as it abstains."""
    looser = LinearBounds(**{**{n: getattr(SPREAD, n) for n in vars(SPREAD)}, "spread": 6.0})
    texts = {PadTerms(bounds=one, context=b"").place for one in (SPREAD, looser)}
    assert len(texts) == 2
    for wrong in (0.99, np.nan, -inf):
        with pytest.raises(ConfigError, match="spread"):
            LinearBounds(**{**{n: getattr(SPREAD, n) for n in vars(SPREAD)}, "spread": wrong})


# The low bits of an opened number ------------------------------------------------------------------------


class Exchange:
    """Server and key holder of one query, whose weights the server chooses as whole numbers."""

    def __init__(self, terms: PadTerms, weights: np.ndarray, q: int) -> None:
        bounds = terms.bounds
        self.terms, self.variant = terms, Variant.MEAN_ONLY if bounds.clear else Variant.FULL
        self.anchor = Anchor(np.zeros(q), np.ones(q))
        clear = np.zeros(bounds.clear_length)
        self.query = LinearQuery(bounds, weights / terms.weight_scale, clear)
        self.server = pad_server(terms, 0, NAME, SIGNING, self.query)
        self.holder = pad_holder(HOLDER, terms, (NAME,), 600, SIGNING.public)

    def opened(self, owners: list[MeanVariance]) -> list[int]:
        """The whole number that the server opens of each, before it makes a score of it."""
        messages = []
        for own in owners:
            hidden = features(own, self.anchor, BOUNDS).split(self.variant).hidden
            messages.append(mask(hidden, self.terms, NAME, self.server.declared.told, HOLDER.public))
        reply, size, bits = (
            self.holder.open(pad_request(self.server, messages)),
            self.terms.word_bytes,
            self.terms.word_bits,
        )
        found = []
        for at, one in enumerate(messages):
            pad = int.from_bytes(reply[at * size : (at + 1) * size], "little")
            whole = (
                words.product(admit(one, self.terms, sender="x").words, self.server.declared.factors) - pad
            )
            found.append(words.centred(whole % 2**bits, bits))
        return found


@every("word_bits", [64, 128])
@every("variant", Variant)
def test_a_legal_score_modulo_a_number_reads_no_entry(variant: Variant, word_bits: int) -> None:
    """All weights are multiples of m = 2^k but the victim's, which is 1 more: S mod m was its mean, to
    1e-5.
    """
    terms = PadTerms(bounds=BOUNDS.linear(Q, variant), context=b"", word_bits=word_bits)
    power = min(terms.data_bits + 4, terms.weight_bits - 1)
    m = 2.0**power
    weights = np.full(terms.row, m)
    weights[VICTIM] += 1
    if variant is Variant.FULL:
        weights[-1] = -terms.weight_scale / 2
    owners = drawn(5, 60)
    means = np.array([own.mean[VICTIM] for own in owners])
    told = Exchange(terms, weights, Q).opened(owners)
    read = np.array([words.centred(one % 2**power, power) for one in told]) / terms.data_scale
    error = float(np.sqrt(np.mean((np.clip(read, -3, 3) - means) ** 2)))
    assert error > 0.9, f"{error} of a standard deviation"


@every("factor", [3, 1009, 2**13 + 1])
def test_a_legal_score_modulo_an_odd_number_reads_no_entry_either(factor: int) -> None:
    """A second form: every other weight is a multiple of a number that is no power of two."""
    terms = PadTerms(bounds=BOUNDS.linear(Q, Variant.MEAN_ONLY), context=b"")
    m = 2 ** (terms.data_bits + 4) // factor * factor + factor
    weights = np.where(np.arange(terms.row) % 2, 2.0 * m, float(m))
    weights[VICTIM] += 1
    owners = drawn(6, 60)
    means = np.array([own.mean[VICTIM] for own in owners])
    read = np.array([(one + m // 2) % m - m // 2 for one in Exchange(terms, weights, Q).opened(owners)])
    error = float(np.sqrt(np.mean((np.clip(read / terms.data_scale, -3, 3) - means) ** 2)))
    assert error > 0.9


@cache
def honest(q: int = Q) -> Exchange:
    bounds = BOUNDS.linear(q, Variant.FULL)
    terms = PadTerms(bounds=bounds, context=b"honest")
    base = MeanVariance(np.full(q, 0.3), np.ones(q), 9)
    query = linear_query(base, Anchor(np.zeros(q), np.ones(q)), BOUNDS)
    return Exchange(terms, np.rint(query.hidden * terms.weight_scale), q)


def test_the_noise_is_uniform_on_the_sum_of_the_weights_sizes_and_no_wider() -> None:
    """Kolmogorov and Smirnov on 600 openings; false alarm 1e-7."""
    exchange = honest()
    owners = drawn(7, 600)
    weights = [words.centred(int(one), 64) for one in exchange.server.declared.factors[:, 0]]
    most = 4 * sum(map(abs, weights))
    noise = []
    for own, told in zip(owners, exchange.opened(owners), strict=True):
        hidden = features(own, exchange.anchor, BOUNDS).split(Variant.FULL).hidden
        row = [int(one) for one in np.rint(hidden * exchange.terms.data_scale)]
        noise.append(told - sum(x * v for x, v in zip(row, weights, strict=True)))
    assert max(map(abs, noise)) <= most
    share = (np.array(noise, dtype=float) / most + 1) / 2
    assert stats.kstest(share, "uniform").pvalue > 1e-7
    assert max(map(abs, noise)) > 0.9 * most


def test_a_repeated_request_has_the_same_noise_in_whatever_list_it_comes() -> None:
    """Noise that was drawn again would average out."""
    terms = honest().terms
    server = honest().server
    masked = [mask(np.zeros(terms.row), terms, NAME, server.declared.told, HOLDER.public) for _ in range(3)]

    def replies(*which: int) -> list[bytes]:
        holder = pad_holder(HOLDER, terms, (NAME,), 600, SIGNING.public)  # one that forgot what it answered
        reply = holder.open(pad_request(server, [masked[at] for at in which]))
        return [reply[at : at + 8] for at in range(0, len(reply), 8)]

    first = replies(0, 1, 2)
    assert (replies(2, 0), replies(1)) == ([first[2], first[0]], [first[1]])
    assert len(set(first)) == 3


def test_a_key_holder_that_lost_its_secret_lost_the_pads_with_the_noise() -> None:
    """So there is no second noise on one sum: what it answers is unrelated to the vector."""
    exchange = honest()
    masked = mask(
        np.zeros(exchange.terms.row), exchange.terms, NAME, exchange.server.declared.told, HOLDER.public
    )
    sums = []
    for holder in (HOLDER, AgreementKey.generate()):
        own = pad_holder(holder, exchange.terms, (NAME,), 600, SIGNING.public)
        reply = own.open(pad_request(exchange.server, [masked]))
        whole = words.product(
            admit(masked, exchange.terms, sender="x").words, exchange.server.declared.factors
        )
        sums.append(words.centred((whole - int.from_bytes(reply, "little")) % 2**64, 64))
    most = 4 * words.total(exchange.server.declared.factors)
    assert abs(sums[0]) <= most
    # An unrelated one is uniform: as small as this in one of a million runs.
    assert abs(sums[1]) > most
    assert most < 2**63 / 1e6


def test_no_honest_client_is_blamed_for_noise_at_the_least_score() -> None:
    """Profiles that are the baseline: their divergence is 0, and half of the scores fall below it."""
    exchange = honest()
    base = MeanVariance(np.full(Q, 0.3), np.ones(Q), 9)
    hidden = features(base, exchange.anchor, BOUNDS).split(Variant.FULL).hidden
    query = linear_query(base, exchange.anchor, BOUNDS)
    server = pad_server(exchange.terms, 0, NAME, SIGNING, query)
    holder = pad_holder(HOLDER, exchange.terms, (NAME,), 600, SIGNING.public)
    masked = [mask(hidden, exchange.terms, NAME, server.declared.told, HOLDER.public) for _ in range(400)]
    reply = holder.open(pad_request(server, masked))
    scores = [pad_score(server, one, reply[8 * at : 8 * at + 8]) for at, one in enumerate(masked)]
    assert all(abs(one.value) <= one.error_bound for one in scores), "the true score is 0"
    assert sum(one.value < 0 for one in scores) > 100
    assert scores[0].error_bound < exchange.terms.error_bound


def test_terms_without_room_for_the_noise_are_refused() -> None:
    """Of narrow products at wide norms the noise would wrap, and an honest score be another number."""
    bounds: Callable[[float], LinearBounds] = lambda product: LinearBounds(  # noqa: E731
        hidden_length=10**6, norm=1.0, weight_norm=1.0, row_norm=1.0, product=product
    )
    for power in range(0, 60):
        try:
            terms = PadTerms(bounds=bounds(2.0**-power), context=b"")
        except ConfigError:
            assert power > 10
            break
        assert terms.bounds.product + terms.error_bound <= terms.capacity
    else:
        pytest.fail("none was refused")


def test_the_error_bound_covers_the_noise_where_nothing_is_rounded() -> None:
    terms = PadTerms(bounds=SPREAD, context=b"")
    server = pad_server(terms, 0, NAME, SIGNING, LinearQuery(SPREAD, ALTERNATING))
    holder = pad_holder(HOLDER, terms, (NAME,), 100, SIGNING.public)
    masked = [mask(np.zeros(100), terms, NAME, server.declared.told, HOLDER.public) for _ in range(100)]
    reply = holder.open(pad_request(server, masked))
    values = [pad_score(server, one, reply[8 * at : 8 * at + 8]).value for at, one in enumerate(masked)]
    assert 0.5 * server.declared.error < max(map(abs, values)) <= server.declared.error
