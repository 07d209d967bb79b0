"""Composition of privacy events to epsilon: exact for Gaussians, an upper bound if steps are sampled.

The bound comes from privacy loss distributions (Koskela et al. 2020; Doroshenko et al. 2022, "connect the
dots"). Its grid is fine beside one step's loss, so the bound is within 1 % of the exact epsilon. RDP is the
bound where no such grid is affordable, and the privacy filter is built on it.

Reports, ledgers and calibration all take `epsilon` of the whole `History`, whatever the rounds in which its
events came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Final

import numpy as np
from absl import logging
from dp_accounting import DpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.special import log_ndtr

from securefl.accounting.events import History

Floats = NDArray[np.float64]
FINE: Final = 1e-4
"""The largest discretisation of reported epsilons: four digits at a hundred rounds of DP-SGD."""
COARSE: Final = 4 * FINE
"""The largest discretisation inside a running study: a few milliseconds a round. Its epsilon is 0.01 % above
that of `FINE`, or the same. It is `FINE` times a power of 2, so it never is the smaller one."""
NEAR: Final = 1.1
"""The coarse epsilon is at most this factor above the fine one."""
_PART: Final = 0.1
"""The largest discretisation over the standard deviation of one step's loss. Connecting the dots adds up to a
sixth of its square to the variance of each step: less than 0.1 % of the deviation."""
_LARGEST_MU: Final = 1e6
_REACH: Final = 10.0
"""The losses of noise within so many deviations are on the grid. Beyond lies a mass of 10^-23."""
_LOG_CUT: Final = math.log(1e-10)
"""The log of the tilted mass that may lie beyond either end of a composition."""
_EXACT: Final = 1 - 1e-7
"""The part of delta that a composition may spend, so that no rounding error makes epsilon too small."""
_LEAST_DELTA: Final = 1e-14
"""Below it the mass of noise beyond `_REACH`, at millions of steps, is as large as delta: RDP is used."""
_FEW: Final = (2, 4, 8, 16, 32)
"""Orders of RDP for a first bound, in a thirtieth of the time: a broken order is a long series."""
_USUAL: Final = 2.0**18
"""No discretisation is refined beyond so many entries of one step's distribution."""
_TILTED: Final = 1e-9
"""The delta for which the first convolution of a curve is tilted. It has the digits down to 10^-14."""
_LARGEST: Final = 5e6
"""A loss distribution with more entries would take hours or exhaust the memory, so RDP is used."""


@lru_cache(maxsize=4096)  # a long run has a new history every round, and its parties have equal ones
def epsilon(history: History, delta: float, *, interval: float = FINE) -> float:
    """Return the epsilon at `delta` of the whole history.

    If steps are sampled, it is the smaller of two upper bounds, by loss distributions and by RDP. One
    non-private release makes it infinite. A mu above 10^6 does so too: the exact formula loses its digits
    there, and an epsilon of that size protects no one.

    Args:
        history: all events.
        delta: in (0, 1).
        interval: the largest discretisation of the losses. A history of small losses has a finer one.

    Raises nothing.
    """
    if history.endless or history.mu_squared > _LARGEST_MU**2:
        return math.inf
    if history.steps:
        for largest in (interval, max(interval, COARSE)):
            found = _by_losses(history, delta, largest)
            if found < math.inf:
                return min(found, rdp_epsilon(history, delta, _FEW))
        return rdp_epsilon(history, delta)
    if history.mu_squared == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # log 0 on the way means a delta of 0, which is intended
        return gaussian_epsilon(1 / math.sqrt(history.mu_squared), delta)


def deltas(history: History, epsilons: Floats) -> Floats:
    """Return the delta of the whole history at each epsilon, from the bounds that `epsilon` takes.

    Args:
        history: all events.
        epsilons: each at least 0, of any shape.

    Returns:
        Deltas of that shape: exact for Gaussians, upper bounds if steps are sampled.

    Raises nothing.
    """
    if history.endless or history.mu_squared > _LARGEST_MU**2:
        return np.ones_like(epsilons)
    if not history.steps:
        mu = math.sqrt(history.mu_squared)
        return _gaussian_delta(1 / mu, epsilons) if mu > 0 else np.zeros_like(epsilons)
    found, orders = np.ones_like(epsilons), None
    if composable(history, _TILTED):
        interval, orders = _interval(history, COARSE), _FEW
        found = np.maximum(*(_deltas_of(parts, interval, epsilons) for parts in _composed(history, interval)))
    accountant = _accountant(history, orders)
    by_rdp = [accountant.get_delta(one) for one in np.ravel(epsilons).tolist()]
    return np.minimum(found, np.reshape(by_rdp, np.shape(epsilons)))


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


def _by_losses(history: History, delta: float, largest: float) -> float:
    """The upper bound by loss distributions; infinity if they would be too large."""
    if not composable(history, delta, interval=largest):
        return math.inf
    interval = _interval(history, largest)
    return max(_epsilon_of(parts, interval, delta) for parts in _composed(history, interval))


def composable(history: History, delta: float, *, interval: float = COARSE) -> bool:
    """Whether loss distributions of affordable size can bound the cost of these steps. If not, RDP does."""
    if delta < _LEAST_DELTA:
        return False
    fine, variance = _interval(history, interval), _variance(history)
    if max(_span(q, z) for q, z in history.steps) / fine > _LARGEST:
        return False
    # The loss of all steps lies within this, by the central limit, but for a mass below 10^-20. Few steps of
    # large losses have no such limit: theirs lies within twice RDP's epsilon, but for delta's tail. A few
    # orders give a bound that is no smaller. Only where it is too large do all of them decide.
    entries = (variance + 20 * math.sqrt(variance)) / fine
    return entries <= _LARGEST or any(
        2 * rdp_epsilon(history, delta, orders) / fine <= _LARGEST for orders in (_FEW, None)
    )


def _variance(history: History) -> float:
    """The variance of all losses, by the central limit (Bu et al. 2020): that of a Gaussian mechanism."""
    # e^709 is the largest float. There the loss of a step is far above any interval.
    steps = (n * q**2 * math.expm1(min(1 / z**2, 700.0)) for (q, z), n in history.steps.items())
    return history.mu_squared + math.fsum(steps)


def _interval(history: History, largest: float) -> float:
    """The discretisation: `largest` over a power of 2, and at most a part of a step's standard deviation.

    With powers of 2, the rounds of a run share the distribution of a step.
    """
    count = sum(history.steps.values()) + (history.mu_squared > 0)
    wanted = _PART * math.sqrt(_variance(history) / count)
    # A rare large loss beside common small ones would take too many entries. It keeps a coarser grid.
    affordable = max(_span(q, z) for q, z in history.steps) / _USUAL
    ratio = max(wanted, affordable) / largest
    return largest if ratio >= 1 else largest * 2.0 ** math.floor(math.log2(ratio))


def _span(q: float, z: float) -> float:
    """An interval of this length has the loss of one sampled step, except for a mass below 10^-23."""
    most = (0.5 + _REACH * z) / z**2
    return _sampled_loss(q, most) + min(most, math.inf if q == 1 else -math.log1p(-q))


def compose(events: Mapping[DpEvent, int], delta: float) -> float:
    """Return the epsilon of events, each with its count, at `delta`.

    Raises:
        UnsupportedEvent: if the accountant cannot compose an event.

    >>> from dp_accounting import GaussianDpEvent
    >>> from securefl.accounting import compose
    >>> round(compose({GaussianDpEvent(2.0): 4}, delta=1e-5), 3)
    4.377
    """
    return epsilon(History.of(events), delta, interval=FINE)


def within(events: Mapping[DpEvent, int], delta: float, budget: float) -> bool:
    """Whether these events cost at most the budget. The fine epsilon is computed only if it decides."""
    history = History.of(events)
    return fits(running_epsilon(history, delta), budget, lambda: epsilon(history, delta, interval=FINE))


def running_epsilon(history: History, delta: float) -> float:
    """Return the largest epsilon that a ledger or a report states after this history.

    Noise that is calibrated by this number never makes a ledger state more. Parties of equal history share
    one composition.
    """
    return epsilon(history, delta, interval=COARSE)


def fits(rough: float, budget: float, exact: Callable[[], float]) -> bool:
    """Whether an epsilon is within a budget.

    `rough` exceeds the epsilon by at most the factor NEAR. `exact` is called only if `rough` cannot decide.
    """
    return exact() <= budget if budget < rough <= budget * NEAR else rough <= budget


def falls_short(found: float, noted: float) -> bool:
    """Whether an epsilon is below an earlier one by more than two ways of composition can differ."""
    return found * NEAR < noted


@lru_cache(maxsize=256)  # it takes a fifth of a second, and each party of each round asks for it
def rdp_epsilon(history: History, delta: float, orders: tuple[float, ...] | None = None) -> float:
    """Return an upper bound on `epsilon` by Renyi differential privacy (Mironov 2017)."""
    if history.endless:
        return math.inf
    return float(_accountant(history, orders).get_epsilon(delta))


def _accountant(history: History, orders: tuple[float, ...] | None) -> RdpAccountant:
    accountant = RdpAccountant(orders)
    with without_remarks():
        for event, count in history.events():
            accountant.compose(event, count)
    return accountant


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


@dataclass(frozen=True, eq=False)
class _Tail:
    """Upper bounds on delta at the points of a grid, from the largest loss down.

    most: the largest loss, in intervals. infinite: the mass of all above it, and the delta there. above: (m,)
    the mass of the losses of `most` - k intervals and above. below: (m,) the delta one interval lower. Both
    are empty if the grid would be too large.
    """

    interval: float
    most: int
    infinite: float
    above: Floats
    below: Floats

    @property
    def least(self) -> float:
        """The smallest loss on the grid. At smaller epsilons nothing is known."""
        return (self.most - len(self.above) + 1) * self.interval if len(self.above) else math.inf

    def epsilon(self, delta: float) -> tuple[float, bool]:
        """The epsilon at delta, and whether it is in the window of the FFT, or 0."""
        if not len(self.above):
            return math.inf, self.infinite < delta
        beyond = np.flatnonzero(self.below > delta)
        if not len(beyond):
            return max(0.0, self.least), self.least <= 0
        k = int(beyond[0])
        at = self.below[k - 1] if k else self.infinite
        further = math.log1p(-(delta - at) / (self.above[k] - at))
        return max(0.0, (self.most - k) * self.interval + further), True

    def deltas(self, epsilons: Floats) -> Floats:
        """The delta at each epsilon; 1 below the grid."""
        if not len(self.above):
            return np.ones_like(epsilons)
        k = np.clip(np.floor(self.most - epsilons / self.interval), 0, len(self.above) - 1).astype(np.int64)
        # As in `_tail`. Above the grid delta falls no further.
        share = np.exp(np.minimum(epsilons - (self.most - k) * self.interval, 0.0))
        found = share * np.append(self.infinite, self.below)[k] + (1 - share) * self.above[k]
        return np.where(epsilons < self.least, 1.0, np.minimum(found / _EXACT, 1.0))


@dataclass(frozen=True, eq=False)
class _Losses:
    """Privacy losses on a grid: `masses` (m,) at `first`, `first` + 1, ... intervals, and one at infinity."""

    first: int
    masses: Floats
    infinite: float

    @cached_property
    def _logs(self) -> Floats:
        with np.errstate(divide="ignore"):
            logs: Floats = np.log(self.masses)
        return logs

    def tilted(self, theta: float) -> tuple[float, Floats]:
        """The log of the moment E e^(theta x), x in intervals, and the masses times e^(theta x) over it."""
        logs = self._logs + theta * (self.first + np.arange(len(self.masses)))
        most = float(logs.max())
        weights = np.exp(logs - most)
        whole = float(weights.sum())
        return most + math.log(whole), weights / whole

    def spread(self, masses: Floats) -> tuple[float, float]:
        """The mean and the variance under these masses, in intervals."""
        # Not by `@`: BLAS wakes a thread a core for each product, a hundred times its work on a busy machine.
        places = np.arange(len(masses))
        mean = float((masses * places).sum())
        return self.first + mean, float((masses * (places - mean) ** 2).sum())


def _composed(history: History, interval: float) -> tuple[list[tuple[_Losses, int]], ...]:
    """The losses of all events and their counts, as a record is removed and as one is added."""
    steps = [(_step(q, z, interval), count) for (q, z), count in history.steps.items()]
    if history.mu_squared > 0:
        steps.append((_step(1.0, 1 / math.sqrt(history.mu_squared), interval), 1))
    return tuple([(both[way], count) for both, count in steps] for way in (0, 1))


def _epsilon_of(parts: Sequence[tuple[_Losses, int]], interval: float, delta: float) -> float:
    """Return an upper bound on the epsilon at `delta` of composed losses."""
    found = math.inf
    for theta in _tilts(parts, interval, delta):
        new, reached = _tail(parts, interval, delta * _EXACT, theta).epsilon(delta * _EXACT)
        found = min(found, new)
        if reached:
            break
    return found


def _deltas_of(parts: Sequence[tuple[_Losses, int]], interval: float, epsilons: Floats) -> Floats:
    """Return upper bounds on the deltas at epsilons of composed losses."""
    found = np.ones_like(epsilons)
    for theta in _tilts(parts, interval, _TILTED):
        tail = _tail(parts, interval, math.inf, theta)
        before, found = found, np.minimum(found, tail.deltas(epsilons))
        # A tilt for small deltas magnifies the rounding errors of the FFT at losses far below them.
        if tail.least <= np.min(epsilons, initial=math.inf) and np.allclose(found, before, 1e-6, 0.0):
            break
    return found


def _tilts(parts: Sequence[tuple[_Losses, int]], interval: float, delta: float) -> Iterator[float]:
    """Yield tilts, the first for the tail in which `delta` lies, and smaller ones for smaller losses."""

    @cache
    def bound(theta: float) -> float:
        # RDP's epsilon over the interval; t is its order less 1 (Canonne, Kamath and Steinke 2020, Prop. 12)
        t = theta / interval
        of_delta = math.log(delta) - t * math.log(t / (1 + t)) + math.log1p(t)
        return (_log_moment(parts, theta) - of_delta) / theta

    deviation = math.sqrt(math.fsum(count * own.spread(own.masses)[1] for own, count in parts))
    # The bound has one minimum, mostly at some deviations. Any tilt is sound, and one near it is exact.
    theta = 4 / deviation
    for factor in (2.0, 0.5):
        while 2**-6 < theta * deviation < 2**8 and bound(theta * factor) < bound(theta):
            theta *= factor
    # Where delta is about as large as the whole mass of positive losses, epsilon lies far below RDP's.
    while theta * deviation >= 2**-7:
        yield theta
        theta /= 4


def _log_moment(parts: Sequence[tuple[_Losses, int]], theta: float) -> float:
    return math.fsum(count * own.tilted(theta)[0] for own, count in parts)


def _tail(parts: Sequence[tuple[_Losses, int]], interval: float, delta: float, theta: float) -> _Tail:
    """Return the tail of composed losses, empty if so much of it is infinite that delta has no epsilon.

    The masses are convolved after a tilt by e^(theta loss), which moves their mean to about epsilon. So the
    rounding errors of the FFT are small beside the tail, not only beside the whole mass. All that the window
    leaves out on the right counts as an infinite loss, and what wraps around only adds mass.
    """
    tilted = [(*own.tilted(theta), own, count) for own, count in parts]
    log_whole = math.fsum(count * log for log, _, _, count in tilted)
    deviation = math.sqrt(math.fsum(count * own.spread(masses)[1] for _, masses, own, count in tilted))
    # Chernoff's bound on the tilted masses beyond either end of the window
    start = least = sum(count * own.first for own, count in parts)
    most = end = sum(count * (own.first + len(own.masses) - 1) for own, count in parts)
    longest = max(len(own.masses) for own, _ in parts)
    for step in np.geomspace(min(1 / deviation, 2 / longest), 16 / deviation, 6):
        ahead, back = _log_moment(parts, theta + step), _log_moment(parts, theta - step)
        most = min(most, math.ceil((ahead - log_whole - _LOG_CUT) / step))
        least = max(least, math.floor((log_whole + _LOG_CUT - back) / step))
    infinite = -math.expm1(math.fsum(count * math.log1p(-own.infinite) for own, count in parts))
    if most < end:
        infinite += math.exp(min(_LOG_CUT + log_whole - theta * most, 0.0))
    if infinite >= delta or most - least > _LARGEST:
        return _Tail(interval, most, infinite, np.empty(0), np.empty(0))
    length = next_fast_len(max(most - least + 1, longest), real=True)
    transform: NDArray[np.complex128] = np.ones(length // 2 + 1, np.complex128)
    for _, masses, _, count in tilted:
        transform *= rfft(masses, length) ** count
    found = np.maximum(np.roll(irfft(transform, length), start - least)[: most - least + 1], 0.0)[::-1]
    with np.errstate(under="ignore"):
        masses = found * np.exp(np.minimum(log_whole - theta * np.arange(most, least - 1, -1), 700.0))
    # With P the mass of losses of x and above, delta(y) = e^(y - x) delta(x) + (1 - e^(y - x)) P, y below x.
    above, less = infinite + np.cumsum(masses), math.exp(-interval)
    below, _ = lfilter([-math.expm1(-interval)], [1.0, -less], above, zi=[less * infinite])
    return _Tail(interval, most, infinite, above, below)


@lru_cache(maxsize=16)  # the rounds of a run repeat one step
def _step(q: float, z: float, interval: float) -> tuple[_Losses, _Losses]:
    """The losses of a sampled step, as a record is removed and as one is added.

    With delta_G of the Gaussian alone, the deltas are q delta_G(t), e^t = 1 + (e^eps - 1) / q, if a record is
    removed, and (1 - (1 - q) e^eps) delta_G(-t), e^t = 1 + (e^-eps - 1) / q, if one is added.
    """
    most = (0.5 + _REACH * z) / z**2
    lowest = -math.inf if q == 1 else math.log1p(-q)
    ends = max(_sampled_loss(q, -most), lowest), _sampled_loss(q, most)

    def removed(losses: Floats) -> Floats:
        inside = losses > lowest
        of = losses[inside]
        small = np.minimum(of, 1.0)
        with np.errstate(over="ignore", divide="ignore"):
            large = of - math.log(q) + np.log1p(-(1 - q) * np.exp(-np.maximum(of, 1.0)))
            t = np.where(of < 1, np.log1p(np.expm1(small) / q), large)
        deltas = -np.expm1(np.minimum(losses, 0.0))
        deltas[inside] = q * _gaussian_delta(z, t)
        return deltas

    def added(losses: Floats) -> Floats:
        inside = losses < -lowest
        of = losses[inside]
        left = q - (1 - q) * np.expm1(of)  # 1 - (1 - q) e^eps
        deltas = np.zeros(len(losses))
        with np.errstate(over="ignore"):  # a loss of -inf has a delta of 1
            deltas[inside] = left * _gaussian_delta(z, -np.log1p(np.expm1(-of) / q))
        return deltas

    one = _dots(removed, *ends, interval)
    return one, one if q == 1 else _dots(added, -ends[1], -ends[0], interval)


def _dots(deltas: Callable[[Floats], Floats], low: float, high: float, interval: float) -> _Losses:
    """Losses on the grid whose deltas are these at its points and linear in e^eps between them.

    They are an upper bound (Doroshenko et al. 2022, Algorithm 1).
    """
    first, last = math.floor(low / interval), math.ceil(high / interval)
    found = deltas(interval * np.arange(first, last + 1, dtype=np.float64))
    falls = -np.diff(found) / math.expm1(interval)
    masses = np.zeros(len(found))
    masses[:-1] = math.exp(interval) * np.append(0.0, falls[:-1]) - falls
    masses[0] += 1 - found[0]
    masses[-1] = math.exp(interval) * falls[-1]
    return _Losses(first, np.maximum(masses, 0.0), float(found[-1]))


def _gaussian_delta(z: float, losses: Floats) -> Floats:
    """The delta of one Gaussian at each epsilon: Phi(1/2z - eps z) - e^eps Phi(-1/2z - eps z)."""
    above = log_ndtr(0.5 / z - losses * z)
    with np.errstate(invalid="ignore"):  # of a loss of -inf, at which delta is 1
        share = losses + log_ndtr(-0.5 / z - losses * z) - above
    found: Floats = -np.exp(above) * np.expm1(np.where(losses == -np.inf, -np.inf, np.minimum(share, 0.0)))
    return found


def _sampled_loss(q: float, loss: float) -> float:
    """The loss of a step where that of the Gaussian alone is `loss`: log(1 + q (e^loss - 1))."""
    if q == 1:
        return loss
    return loss + math.log(q) if loss > 100 else math.log1p(q * math.expm1(loss))


def filtered_epsilon(history: History, delta: float, budget: float) -> float:
    """Return the epsilon that a privacy filter compares with the budget, after the whole history.

    A filter allows or refuses a further release whose parameters depend on earlier releases. For Gaussians
    alone it bounds the sum of mu^2, a valid filter at the full Gaussian accuracy (Smith and Thakurta 2022,
    "Fully adaptive composition for Gaussian differential privacy"). If steps are sampled, it bounds RDP at
    one order (Feldman and Zrnic 2021), the order that leaves the most room for a Gaussian.
    """
    if not history.steps:
        return epsilon(history, delta)
    return rdp_epsilon(history, delta, (_filter_order(budget, delta),))


@cache
def _filter_order(budget: float, delta: float) -> float:
    # The order depends on public numbers only. The best order of a history would depend on earlier releases,
    # which the filter's theorem does not cover.
    orders = np.concatenate([np.linspace(1.1, 64, 630), [128, 256, 512, 1024]])
    room = (budget - math.log(1 / delta) / (orders - 1)) / orders
    return float(orders[int(np.argmax(room))])
