"""Composition of privacy events to epsilon: exact for Gaussians, an upper bound if steps are sampled.

The bound comes from privacy loss distributions (Koskela et al. 2020; Doroshenko et al. 2022, "connect the
dots"). It exceeds the exact epsilon by less than the interval times the square root of the number of
compositions. RDP gives a looser bound much faster. The RDP bound checks the first bound, and the privacy
filter is built on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import numpy as np
from absl import logging
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.special import log_ndtr

from securefl.accounting.events import History

_Key = tuple[bool, float, frozenset[tuple[tuple[float, float], int]]]
FINE: Final = 1e-4
"""Discretisation of reported epsilons: four digits at a hundred rounds of DP-SGD."""
COARSE: Final = 5e-4
"""Discretisation inside a running study: a few milliseconds a round. Its epsilon is 0.02 % above that of
`FINE`, or more if epsilon is far below 1."""
NEAR: Final = 1.1
"""The coarse epsilon is at most this factor above the fine one: 5 % were measured at an epsilon of 0.06."""
_LARGEST_MU: Final = 1e6
_TAIL: Final = 1e-7
"""The fraction of delta that each composition may cut off. The tail counts as an infinite loss."""
_LEAST_DELTA: Final = 1e-14
"""Below it the rounding errors of the convolutions are as large as delta, so RDP is used."""
_FEW: Final = (2, 4, 8, 16, 32)
"""Orders of RDP for a first bound, in a thirtieth of the time: a broken order is a long series."""
_LARGEST: Final = 5e6
"""A loss distribution with more entries would take hours or exhaust the memory, so RDP is used."""


def epsilon(history: History, delta: float, *, interval: float = FINE) -> float:
    """Return the epsilon at `delta` of the whole history.

    If steps are sampled, it is the smaller of two upper bounds, by loss distributions and by RDP. One
    non-private release makes it infinite. A mu above 10^6 does so too: the exact formula loses its digits
    there, and an epsilon of that size protects no one.
    """
    if history.endless or history.mu_squared > _LARGEST_MU**2:
        return math.inf
    if history.steps:
        bound = rdp_epsilon(history, delta)
        if not _composable(history, delta, interval, bound):
            return bound
        return min(bound, float(_whole(history, interval, _tail(delta)).get_epsilon_for_delta(delta)))
    if history.mu_squared == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # log 0 on the way means a delta of 0, which is intended
        return gaussian_epsilon(1 / math.sqrt(history.mu_squared), delta)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Return the epsilon of one Gaussian of sensitivity 1 (Balle and Wang 2018, Theorem 8).

    It expects sigma > 0 and 0 < delta < 1. It takes the same steps as dp_accounting's `get_epsilon_gaussian`
    and gives the same number bit for bit, in a thirtieth of the time: that function calls a slow scipy object
    for each value, and a ledger has thousands of values.
    """
    goal = np.log(delta)

    def excess(eps: float) -> float:
        # delta(eps) = Phi(1/sigma - t) - e^eps Phi(-t), as logarithms: either term may underflow
        t = eps * sigma + 1 / (2 * sigma)
        x, y = log_ndtr(1 / sigma - t), eps + log_ndtr(-t)
        return float((x + np.log1p(-np.exp(y - x)) if y <= x else -np.inf) - goal)

    if excess(0.0) < 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) > 0:
        low, high = high, high * 10
    return float(brentq(excess, low, high, xtol=1e-12))


def composable(history: History, delta: float, *, interval: float = FINE) -> bool:
    """Whether loss distributions of affordable size can bound the cost of these steps. If not, RDP does."""
    # A few orders give a bound that is no smaller. Only where it is too large do all of them decide.
    return any(
        _composable(history, delta, interval, rdp_epsilon(history, delta, orders)) for orders in (_FEW, None)
    )


def _composable(history: History, delta: float, interval: float, bound: float) -> bool:
    """Whether the steps are `composable`; `bound` is RDP's epsilon, which takes a quarter of a second."""
    # The loss of one step lies within (1/2 + 12 z) / z^2 of 0, except for a mass below 10^-30. The loss of
    # all steps lies within twice RDP's epsilon, except for delta's tail.
    spans = [2 * (0.5 + 12 * z) / z**2 for _, z in history.steps]
    if history.mu_squared > 0:
        spans.append(history.mu_squared + 24 * math.sqrt(history.mu_squared))
    return (
        delta >= _LEAST_DELTA
        and max(spans, default=0.0) / interval <= _LARGEST
        and 2 * bound / interval <= _LARGEST
    )


def _tail(delta: float) -> float:
    # A fixed 1e-12 is the whole of a delta of 1e-12: epsilon came out infinite, although RDP's was 4.35.
    return min(1e-12, _TAIL * delta)


def compose(events: Mapping[DpEvent, int], delta: float) -> float:
    """Return the epsilon of events, each with its count, at `delta`.

    Raises:
        UnsupportedEvent: if the accountant cannot compose an event.

    >>> from dp_accounting import GaussianDpEvent
    >>> from securefl.accounting import compose
    >>> round(compose({GaussianDpEvent(2.0): 4}, delta=1e-5), 3)
    4.377
    """
    return _known(History.of(events).key(), delta, FINE)


def within(events: Mapping[DpEvent, int], delta: float, budget: float) -> bool:
    """Whether these events cost at most the budget. The fine epsilon is computed only if it decides."""
    key = History.of(events).key()
    return fits(_known(key, delta, COARSE), budget, lambda: _known(key, delta, FINE))


def running_epsilon(events: Mapping[DpEvent, int], delta: float) -> float:
    """Return the largest epsilon that a ledger or a report states after these events.

    The rounds in which they come do not matter. A ledger (`Running`) composes each round's release as a
    loss distribution of its own, which adds up their discretisation and the tails that are cut off. Noise
    that is calibrated by this number never makes a ledger state more.

    Raises:
        UnsupportedEvent: if the accountant cannot compose an event.
    """
    history = History.of(events)
    if history.endless or not history.steps:
        return epsilon(history, delta)
    if not composable(history, delta):  # a report would state RDP's epsilon, the larger one
        return rdp_epsilon(history, delta)
    tail = _tail(delta)
    whole = _whole(History(steps=history.steps), COARSE, tail)
    for event, times in events.items():
        one = History.of({event: 1})
        if one.mu_squared > 0 and times > 0:
            apart = _gaussian(one.mu_squared, COARSE).self_compose(times, tail_mass_truncation=tail)
            whole = whole.compose(apart, tail_mass_truncation=tail)
    # At most a composition for each release and one more for its noise cut off a tail each.
    cut = min(2 * tail * sum(events.values()), delta / 2)
    found = float(whole.get_epsilon_for_delta(delta - cut))
    return found if found < math.inf else rdp_epsilon(history, delta)


def fits(rough: float, budget: float, exact: Callable[[], float]) -> bool:
    """Whether an epsilon is within a budget.

    `rough` exceeds the epsilon by at most the factor NEAR. `exact` is called only if `rough` cannot decide.
    """
    return exact() <= budget if budget < rough <= budget * NEAR else rough <= budget


def falls_short(found: float, noted: float) -> bool:
    """Whether an epsilon is below an earlier one by more than two ways of composition can differ."""
    return found * NEAR < noted


@lru_cache(maxsize=256)
def _known(key: _Key, delta: float, interval: float) -> float:
    """Return a cached epsilon: the parties of a plan and the arms of a study often have equal histories."""
    endless, mu_squared, steps = key
    return epsilon(History(endless, mu_squared, dict(steps)), delta, interval=interval)


def rdp_epsilon(history: History, delta: float, orders: tuple[float, ...] | None = None) -> float:
    """Return an upper bound on `epsilon` by Renyi differential privacy (Mironov 2017)."""
    return _rdp(history.key(), delta, orders)


@lru_cache(maxsize=256)
def _rdp(key: _Key, delta: float, orders: tuple[float, ...] | None) -> float:
    """Cached as `_known` is: it takes a fifth of a second, and each party of each round asks for it."""
    history = History(key[0], key[1], dict(key[2]))
    if history.endless:
        return math.inf
    accountant = RdpAccountant(orders)
    if history.mu_squared > 0:
        accountant.compose(GaussianDpEvent(1 / math.sqrt(history.mu_squared)))
    with without_remarks():
        for (q, z), count in history.steps.items():
            accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), count)
    return float(accountant.get_epsilon(delta)) if history.mu_squared or history.steps else 0.0


@contextmanager
def without_remarks() -> Iterator[None]:
    """Silence dp_accounting's warning that an order close to 1 does not converge.

    The accountant then leaves that order out. RDP's epsilon is the minimum over the orders, so leaving one
    out cannot lower it.
    """
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _whole(history: History, interval: float, tail: float) -> Any:
    parts = [_steps(q, z, count, interval, tail) for (q, z), count in history.steps.items()]
    if history.mu_squared > 0:
        parts.append(_gaussian(history.mu_squared, interval))
    first, *others = parts
    for other in others:
        first = first.compose(other, tail_mass_truncation=tail)
    return first


# There are three caches because a step is costly to discretise and cheap to repeat: one cached `_step` serves
# every count. One self-composition is about 100 times faster than the same number of single compositions.
@lru_cache(maxsize=64)
def _gaussian(mu_squared: float, interval: float) -> Any:
    return pld.from_gaussian_mechanism(1 / math.sqrt(mu_squared), value_discretization_interval=interval)


@lru_cache(maxsize=64)
def _step(q: float, z: float, interval: float) -> Any:
    return pld.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=interval)


@lru_cache(maxsize=64)
def _steps(q: float, z: float, count: int, interval: float, tail: float) -> Any:
    return _step(q, z, interval).self_compose(count, tail_mass_truncation=tail)


class Running:
    """Epsilon of a growing history, such as a data holder's. It keeps the composition of earlier events.

    If a round adds the same events as the round before, it costs one composition with a cached distribution.
    """

    def __init__(self, delta: float, *, interval: float = COARSE) -> None:
        self._delta, self._interval = delta, interval
        self._before, self._composed_before = History(), None
        self._sizes: dict[object, bool] = {}

    def epsilon(self, history: History) -> float:
        """Return the epsilon of the history at the running discretisation."""
        if history.endless or not history.steps:
            return epsilon(history, self._delta)
        if not self._affordable(history):
            return rdp_epsilon(history, self._delta)
        tail = _tail(self._delta)
        news = _difference(history, self._before)
        if news is None or self._composed_before is None:
            whole = _whole(history, self._interval, tail)
        elif not news.steps and not news.mu_squared:
            whole = self._composed_before
        else:
            whole = self._composed_before.compose(
                _cached(news.key(), self._interval, tail), tail_mass_truncation=tail
            )
        self._before, self._composed_before = history, whole
        found = float(whole.get_epsilon_for_delta(self._delta))
        # RDP is used only if this is infinite: otherwise its bound is smaller by the discretisation at most,
        # and it takes as long as a round.
        return found if found < math.inf else rdp_epsilon(history, self._delta)

    def _affordable(self, history: History) -> bool:
        """Whether the history is `composable`, computed again only if it has doubled or has new steps."""
        # `composable` runs the slow RDP accountant. Its limit needs no more than the order of magnitude.
        steps = frozenset(history.steps)
        size = steps, sum(history.steps.values()).bit_length(), math.frexp(history.mu_squared)[1]
        if size not in self._sizes:
            self._sizes[size] = composable(history, self._delta, interval=self._interval)
        return self._sizes[size]


@lru_cache(maxsize=64)
def _cached(key: _Key, interval: float, tail: float) -> Any:
    endless, mu_squared, steps = key
    return _whole(History(endless, mu_squared, dict(steps)), interval, tail)


def _difference(now: History, before: History) -> History | None:
    """Return the events added since `before`, or None if events of `before` are missing."""
    steps: Mapping[tuple[float, float], int] = {
        key: now.steps.get(key, 0) - before.steps.get(key, 0) for key in {*now.steps, *before.steps}
    }
    # rounded, so that equal rounds give equal differences
    mu_squared = round(now.mu_squared - before.mu_squared, 12)
    if mu_squared < 0 or min(steps.values(), default=0) < 0:
        return None
    return History(False, mu_squared, {key: count for key, count in steps.items() if count})


class Filter:
    """A privacy filter: it allows or refuses a further release whose parameters depend on earlier releases.

    For Gaussians alone it bounds the sum of mu^2, a valid filter at the full Gaussian accuracy (Smith and
    Thakurta 2022, "Fully adaptive composition for Gaussian differential privacy"). If steps are sampled, it
    bounds RDP at one order (Feldman and Zrnic 2021), the order that leaves the most room for a Gaussian.
    """

    def __init__(self, budget: float, delta: float) -> None:
        self._budget, self._delta = budget, delta
        # The order depends on public numbers only. The best order of a history would depend on earlier
        # releases, which the filter's theorem does not cover.
        orders = np.concatenate([np.linspace(1.1, 64, 630), [128, 256, 512, 1024]])
        room = (budget - math.log(1 / delta) / (orders - 1)) / orders
        self._order = float(orders[int(np.argmax(room))])

    def allows(self, history: History) -> bool:
        """Whether the whole history, including the new release, stays within the budget."""
        return self.epsilon(history) <= self._budget

    def epsilon(self, history: History) -> float:
        """Return the epsilon that the filter compares with the budget."""
        if history.endless:
            return math.inf
        if not history.steps:
            return epsilon(history, self._delta)
        accountant = RdpAccountant(orders=[self._order])
        if history.mu_squared > 0:
            accountant.compose(GaussianDpEvent(1 / math.sqrt(history.mu_squared)))
        for (q, z), count in history.steps.items():
            accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), count)
        return float(accountant.get_epsilon(self._delta))
