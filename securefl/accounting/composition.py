"""Epsilon of a history: exact for Gaussians, by privacy loss distributions with sampled steps; RDP checks.

Privacy loss distributions (Koskela et al. 2020; Doroshenko et al. 2022, "connect the dots") are pessimistic:
their epsilon is an upper bound, above the exact one by less than the interval times the square root of the
number of compositions. RDP is looser and costs nothing; it is the check, and the filter's currency.
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
"""Discretisation of reported figures: four digits at a hundred rounds of DP-SGD."""
COARSE: Final = 5e-4
"""Discretisation inside a running study: a few milliseconds a round, 0.02 % above the fine one, or more
where epsilon is far below 1."""
NEAR: Final = 1.1
"""More than the coarse figure is above the fine one: 5 % were measured at an epsilon of 0.06."""
_LARGEST_MU: Final = 1e6
_TAIL: Final = 1e-7
"""Of delta: the mass that each composition may cut off, which counts as an infinite loss."""
_LEAST_DELTA: Final = 1e-14
"""Below it the rounding of the convolutions is as large as delta: RDP alone speaks."""
_LARGEST: Final = 5e6
"""Entries of a loss distribution, above which RDP alone speaks: it would take hours, or all of the memory."""


def epsilon(history: History, delta: float, *, interval: float = FINE) -> float:
    """Epsilon at `delta` of everything in the history together.

    Of sampled steps the smaller of two upper bounds: by loss distributions, and by RDP.
    One unprotected release makes it infinite; so does mu above 10^6, where the exact formula loses its
    digits: no epsilon of that size protects anything.
    """
    if history.endless or history.mu_squared > _LARGEST_MU**2:
        return math.inf
    if history.steps:
        bound = rdp_epsilon(history, delta)
        if not composable(history, delta, interval=interval):
            return bound
        return min(bound, float(_whole(history, interval, _tail(delta)).get_epsilon_for_delta(delta)))
    if history.mu_squared == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # log 0 on the way is a delta of 0, as meant
        return gaussian_epsilon(1 / math.sqrt(history.mu_squared), delta)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Epsilon of one Gaussian of sensitivity 1 (Balle and Wang 2018, Theorem 8), 0 < sigma, 0 < delta < 1.

    The same steps as dp_accounting's `get_epsilon_gaussian`, and the same number bit for bit, in a thirtieth
    of the time: that one makes a distribution of scipy say each value, and a ledger has thousands.
    """
    goal = np.log(delta)

    def excess(eps: float) -> float:
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
    """Whether loss distributions can say what these steps cost; where not, RDP alone does."""
    # the loss of one step lies within (1/2 + 12 z) / z^2 of 0 but for a mass below 10^-30, and with delta's
    # tail all of them together within RDP's epsilon and as much again
    spans = [2 * (0.5 + 12 * z) / z**2 for _, z in history.steps]
    if history.mu_squared > 0:
        spans.append(history.mu_squared + 24 * math.sqrt(history.mu_squared))
    return (
        delta >= _LEAST_DELTA
        and max(spans, default=0.0) / interval <= _LARGEST
        and (2 * rdp_epsilon(history, delta) / interval <= _LARGEST)
    )


def _tail(delta: float) -> float:
    return min(1e-12, _TAIL * delta)


def compose(events: Mapping[DpEvent, int], delta: float) -> float:
    """Epsilon of events, each as often as counted."""
    return _known(History.of(events).key(), delta, FINE)


def within(events: Mapping[DpEvent, int], delta: float, budget: float) -> bool:
    """Whether these events cost no more than the budget; worked out finely only where it is close."""
    key = History.of(events).key()
    return fits(_known(key, delta, COARSE), budget, lambda: _known(key, delta, FINE))


def fits(rough: float, budget: float, exact: Callable[[], float]) -> bool:
    """Whether an epsilon is within a budget, from a figure that is a little above it.

    The exact one is worked out only where the rough one cannot tell.
    """
    return exact() <= budget if budget < rough <= budget * NEAR else rough <= budget


def falls_short(found: float, noted: float) -> bool:
    """Whether an epsilon is less than one that was noted of it, by more than two ways to compose differ."""
    return found * NEAR < noted


@lru_cache(maxsize=256)
def _known(key: _Key, delta: float, interval: float) -> float:
    """The parties of a plan, and the arms of a study, often have the same history."""
    endless, mu_squared, steps = key
    return epsilon(History(endless, mu_squared, dict(steps)), delta, interval=interval)


def rdp_epsilon(history: History, delta: float) -> float:
    """An upper bound on `epsilon` by Renyi differential privacy (Mironov 2017)."""
    if history.endless:
        return math.inf
    accountant = RdpAccountant()
    if history.mu_squared > 0:
        accountant.compose(GaussianDpEvent(1 / math.sqrt(history.mu_squared)))
    with _without_remarks():
        for (q, z), count in history.steps.items():
            accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), count)
    return float(accountant.get_epsilon(delta)) if history.mu_squared or history.steps else 0.0


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Silent where an order close to 1 does not converge: it is left out, which never lowers the bound."""
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
    """Epsilon of a history that grows, such as a holder's: what was composed before is kept.

    A round that adds the same as the one before costs one composition with a distribution that is cached.
    """

    def __init__(self, delta: float, *, interval: float = COARSE) -> None:
        self._delta, self._interval = delta, interval
        self._before, self._composed_before = History(), None
        self._sizes: dict[object, bool] = {}

    def epsilon(self, history: History) -> float:
        """As `epsilon`, at the running discretisation."""
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
        # a finite one is the smaller but for the discretisation, and RDP takes as long as a round
        return found if found < math.inf else rdp_epsilon(history, self._delta)

    def _affordable(self, history: History) -> bool:
        """As `composable`, worked out anew only where the history has doubled, or has other steps."""
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
    """What was added since; None where something is gone."""
    steps: Mapping[tuple[float, float], int] = {
        key: now.steps.get(key, 0) - before.steps.get(key, 0) for key in {*now.steps, *before.steps}
    }
    # rounded, so that equal rounds give equal differences
    mu_squared = round(now.mu_squared - before.mu_squared, 12)
    if mu_squared < 0 or min(steps.values(), default=0) < 0:
        return None
    return History(False, mu_squared, {key: count for key, count in steps.items() if count})


class Filter:
    """Whether one more release may follow, where each may be chosen in view of the ones before.

    Gaussians alone: the sum of mu^2, a valid filter at the full Gaussian accuracy (Smith and Thakurta 2022,
    "Fully adaptive composition for Gaussian differential privacy"). With sampled steps: RDP at one order that
    is fixed beforehand (Feldman and Zrnic 2021), the one that leaves a Gaussian most.
    """

    def __init__(self, budget: float, delta: float) -> None:
        self._budget, self._delta = budget, delta
        orders = np.concatenate([np.linspace(1.1, 64, 630), [128, 256, 512, 1024]])
        room = (budget - math.log(1 / delta) / (orders - 1)) / orders
        self._order = float(orders[int(np.argmax(room))])

    def allows(self, history: History) -> bool:
        """Whether everything in the history, the new release included, stays inside the budget."""
        if history.endless:
            return math.isinf(self._budget)
        if not history.steps:
            return epsilon(history, self._delta) <= self._budget
        accountant = RdpAccountant(orders=[self._order])
        if history.mu_squared > 0:
            accountant.compose(GaussianDpEvent(1 / math.sqrt(history.mu_squared)))
        for (q, z), count in history.steps.items():
            accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), count)
        return float(accountant.get_epsilon(self._delta)) <= self._budget
