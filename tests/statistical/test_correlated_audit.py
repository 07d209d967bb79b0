"""An auditor of runs whose noise is correlated over rounds sees all totals, and proves what is told, no more.

The neighbours are a client that sends values of the largest norm in every round in which its ledger lets it
take part, and one that sends zeros (zero-out). The auditor knows all other values, the coefficients, and
which rounds were lost. So totals are Gaussians of one known covariance K over rounds, and of two means. The
best test of two such Gaussians is linear, along K^-1 times the difference of their means (Neyman and
Pearson). K^-1 undoes C^-1: the auditor sees C x + z. `proved` turns this statistic of many runs into a lower
bound of epsilon, which exceeds the truth with a probability of 10^-6. Noise is drawn from keys: what passes
once passes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, product
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from support.every import every

from securefl.accounting.composition import compose
from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientContext, ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.core.grid import Grid
from securefl.core.wire import Header
from securefl.dp.auditing import proved
from securefl.dp.correlated import CorrelatedNoise
from securefl.engine.inprocess import simulated
from securefl.mechanisms.charges import Protection, events_of
from securefl.storage.journal import Journal

Floats = NDArray[np.float64]
Pattern = tuple[int, ...]
ROUNDS: Final = 9
APART: Final = 3
RUNS: Final = 20
VICTIM: Final = 0
SPECS = [
    ValueSpec(
        name=f"own {number}",
        reduction="sum",
        reveals="it",
        accumulates=True,
        reads_state="none",
        sensitivity={("client", "zero-out"): 1.0},
        grid=Grid.around(1.0),
    )
    for number in range(60)
]
"""Values of one run, each with noise and a charge of its own: a run is one trial of each."""
PLAN = Plan(
    unit="client",
    adjacency="zero-out",
    delta=1e-5,
    max_rounds=ROUNDS,
    noise="central",
    noise_multiplier=0.6,
    separation=APART,
    coefficients=CorrelatedNoise.optimised(rounds=ROUNDS, separation=APART).coefficients,
    adversaries=("others",),
)


def opened(sent: float, key: int, lost: Sequence[int] = ()) -> tuple[Floats, Pattern]:
    """The totals (opened rounds, values) if the victim's values have this norm, and when it took part.

    The server asks the victim in every round that is not lost. Its own ledger lets it answer in one of
    `separation`.
    """

    def function(spec: ValueSpec) -> ClientFunction:
        def compute(context: ClientContext) -> Value:
            return Value.summed(np.array([[sent if context.client == VICTIM else 0.5]]), spec.grid, 1.0)

        return ClientFunction(spec, compute)

    secret = key.to_bytes(32, "little")
    engine = simulated(
        PLAN,
        [function(spec) for spec in SPECS],
        Ledger(None, PLAN.terms()),
        [(np.ones((1, 1)), np.zeros(1))] * (1 + APART),
        rng=lambda *_: np.random.default_rng(0),
        journal=Journal(random=lambda count: secret[:count]),
    )
    found, pattern = [], list[int]()
    for number in range(1, ROUNDS + 1):
        if number not in lost:
            cohort, sums = (VICTIM, 1 + number % APART), tuple(Sum(spec, 1) for spec in SPECS)
            query = CohortQuery(cohort=cohort, broadcast=np.zeros(1, np.float32), sums=sums)
            answers, _ = engine.query(query, Header(bytes(32), number, 0, 0))
            found.append([answers.totals[spec.name].value[0] for spec in SPECS])
            pattern += [number] * (VICTIM in answers.survivors)
    return np.array(found), tuple(pattern)


def covariance(lost: Sequence[int]) -> Floats:
    """K of the totals of rounds that are not lost, over the variance of z."""
    column = np.zeros(ROUNDS)
    column[: len(PLAN.coefficients)] = PLAN.coefficients
    noise = np.linalg.inv(toeplitz(column, np.zeros(ROUNDS)))
    rows, since = [], np.zeros(ROUNDS)  # the noise of a lost row goes into the next total
    for number in range(1, ROUNDS + 1):
        since = since + noise[number - 1]
        if number not in lost:
            rows.append(since)
            since = np.zeros(ROUNDS)
    found: Floats = np.array(rows) @ np.array(rows).T
    return found


def moved(lost: Sequence[int], pattern: Sequence[int]) -> Floats:
    """How far a client of this pattern moves the totals of rounds that are not lost."""
    return np.isin([number for number in range(1, ROUNDS + 1) if number not in lost], pattern).astype(float)


CLAIMED = compose(events_of(PLAN, SPECS[:1], "others", ROUNDS), PLAN.delta)


@every(("lost", "pattern"), [((), (1, 4, 7)), ((1, 6), (2, 5, 8))])
def test_all_totals_prove_no_more_than_the_claim_and_most_of_it(lost: Pattern, pattern: Pattern) -> None:
    """Of a client that takes part as often as its ledger lets it. False alarm: 10^-6 for each of the two."""
    samples = []
    for sent in (0.0, 1.0):
        runs = [opened(sent, 2 * key + int(sent), lost) for key in range(RUNS)]
        [own] = {own for _, own in runs}
        weights = np.linalg.solve(covariance(lost), moved(lost, own))
        samples.append(np.concatenate([weights @ totals for totals, _ in runs]))
    assert 0.8 * CLAIMED <= proved(*samples, PLAN.delta) <= CLAIMED
    assert own == pattern


def worst(separation: int) -> float:
    """The most that any client moves the totals, in deviations of their noise, on the grid of the values.

    Over all patterns of participation, all signs of its values, and all sets of lost rounds.
    """
    mechanism = Protection(PLAN, SPECS[0]).mechanism
    value = Value.summed(np.ones((1, 1)), SPECS[0].grid, 1.0).integers
    assert value is not None
    found = 0.0
    everything = range(1, ROUNDS + 1)
    for count in range(ROUNDS):
        for lost in combinations(everything, count):
            inverse, there = np.linalg.inv(covariance(lost)), [n for n in everything if n not in lost]
            for size in range(1, PLAN.correlation(SPECS[0]).max_participations + 1):
                for pattern in combinations(there, size):
                    if all(later - one >= separation for one, later in pairwise(pattern)):
                        at = [there.index(number) for number in pattern]
                        part = inverse[np.ix_(at, at)]
                        signs = (np.array(own) for own in product((1, -1), repeat=size) if own[0] > 0)
                        found = max(found, *(float(own @ part @ own) for own in signs))
    return float(value[0]) * sqrt(found) / mechanism.sigma


def test_no_pattern_and_no_loss_of_rounds_moves_totals_by_more_than_is_claimed() -> None:
    """By search over all of them, on the grid. With a separation less one some would."""
    claimed = sqrt(PLAN.correlation(SPECS[0]).max_participations) / PLAN.noise_multiplier
    assert 0.999 * claimed <= worst(APART) <= claimed * (1 + 1e-12)
    assert worst(APART - 1) > 1.1 * claimed
