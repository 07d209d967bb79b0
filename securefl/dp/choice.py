"""Private hyperparameter selection: the cost of publishing the best of several private runs.

Papernot and Steinke 2022, "Hyperparameter Tuning with Renyi Differential Privacy" (arXiv:2110.03620). A
random number K of trials is drawn. Each trial runs one candidate, drawn uniformly, with fresh noise. The
trial with the best score is published. K and all other trials stay secret.

    truncated negative binomial (eta, gamma), K >= 1     Definition 1; its cost by Theorem 2:
        eps'(a) = eps(a) + (1 + eta) ((1 - 1/b) eps(b) + log(1/gamma) / b) + log(E K) / (a - 1), for every b
    Poisson (mu), where K may be 0                        its cost by Theorem 6:
        eps'(a) = eps(a) + mu delta + log(mu) / (a - 1), where a trial is (log(1 + 1/(a - 1)), delta)-DP

eps(a) is the RDP cost of one trial at the order a. A fixed number of trials has no such bound: stating the
epsilon of one run for the best of K is wrong (their Section 1). dp-accounting computes the cost
(`RepeatAndSelectDpEvent`).

Guarantees, for the record or client that the candidates' events protect:
    - The published trial, its candidate and its score together cost `epsilon_of_choice`.
    - That holds if the score of a trial depends on protected records only through the trial's release. It is
      computed on public records, or its cost is among the events.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq

from securefl.accounting.composition import without_remarks
from securefl.accounting.events import History
from securefl.core.ranges import Range, Ranged
from securefl.dp.noise import Source

_MOST = 10**6
"""The largest number of trials drawn. For every allowed mean the chance of more is below 10^-40."""


@dataclass(frozen=True, kw_only=True)
class Trials(Ranged):
    """The distribution of the number of trials.

    Attributes:
        trials: the family of the distribution.
        mean: the expected number of trials, above 1.
        shape: eta of the negative binomial. 1 is the geometric distribution and 0 the logarithmic one, which
            costs less and varies more.

    Raises:
        ValueError: `mean` or `shape` is out of range, or `shape` is set for "poisson".
    """

    trials: Literal["poisson", "negative-binomial"]
    mean: Annotated[float, Range("(1, 1000]")]
    shape: Annotated[float, Range("[0, 10]")] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trials == "poisson" and self.shape != 1.0:
            raise ValueError('Expected `shape` only with trials = "negative-binomial". Leave it out.')

    @property
    def gamma(self) -> float:
        """gamma of the negative binomial with this mean and shape (after Definition 1)."""
        return float(brentq(lambda gamma: _mean(self.shape, gamma) - self.mean, 1e-12, 1 - 1e-9, xtol=1e-15))

    def chances(self) -> Iterator[float]:
        """P(K = k) for k = 0, 1 and so on."""
        if self.trials == "poisson":
            yield from (math.exp(k * math.log(self.mean) - self.mean - math.lgamma(k + 1)) for k in count())
            return
        eta, gamma = self.shape, self.gamma
        yield 0.0
        # Definition 1, term by term: p(k + 1) / p(k) = (1 - gamma) (k + eta) / (k + 1)
        chance = (
            (1 - gamma) / math.log(1 / gamma) if eta == 0 else (1 - gamma) * eta / (math.pow(gamma, -eta) - 1)
        )
        for k in count(1):
            yield chance
            chance *= (1 - gamma) * (k + eta) / (k + 1)

    def draw(self, source: Source) -> int:
        """The number of trials, drawn from the secret source. It must stay secret: the cost assumes so."""
        at = int(source.words(1)[0] >> 11) * 2.0**-53
        for k, chance in enumerate(self.chances()):
            at -= chance
            if at < 0 or k == _MOST:
                return k
        raise AssertionError  # chances never end


def _mean(eta: float, gamma: float) -> float:
    if eta == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return eta * (1 - gamma) / (gamma * (1 - math.pow(gamma, eta)))


def uniform(among: int, source: Source) -> int:
    """A uniform number below `among`."""
    limit = 2**64 - 2**64 % among  # with words beyond it, small numbers would be more likely
    while (word := int(source.words(1)[0])) >= limit:
        pass
    return word % among


def epsilon_of_choice(candidates: Sequence[Mapping[DpEvent, int]], trials: Trials, delta: float) -> float:
    """Epsilon at `delta` of publishing the best trial.

    Args:
        candidates: the events of one run of each candidate, with their counts.
        trials: the distribution of the number of trials.
        delta: the delta of the guarantee.

    A trial draws its candidate, so its RDP is at most the largest of the candidates': Renyi divergence is
    jointly quasi-convex. That largest is bounded by a history with, for each event, the largest count of any
    candidate.
    """
    histories = [History.of(own) for own in candidates]
    if any(own.endless for own in histories):
        return math.inf
    mu_squared = max(own.mu_squared for own in histories)
    steps: Counter[tuple[float, float]] = Counter()
    for own in histories:
        steps |= Counter(own.steps)  # the larger count of each
    parts: list[DpEvent] = [
        SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(z)), n) for (q, z), n in steps.items()
    ]
    if mu_squared > 0:
        parts.append(GaussianDpEvent(1 / math.sqrt(mu_squared)))
    if not parts:
        return 0.0
    shape = math.inf if trials.trials == "poisson" else trials.shape
    accountant = RdpAccountant()
    with without_remarks():
        accountant.compose(RepeatAndSelectDpEvent(ComposedDpEvent(parts), trials.mean, shape))
        return float(accountant.get_epsilon(delta))
