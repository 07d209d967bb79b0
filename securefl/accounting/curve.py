"""Privacy curves: delta(epsilon), the trade-off of false alarms and misses, mu and zCDP of a history.

All are of the same composition as the one epsilon of a ledger (`composition`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from securefl.accounting.composition import Floats, deltas, running_epsilon
from securefl.accounting.events import History
from securefl.accounting.statements import releases_of
from securefl.accounting.store import require_delta
from securefl.core.errors import ConfigError
from securefl.core.release import PARTIES, Charge

_POINTS: Final = 513
"""Points of a curve whose tangents bound the misses. With twice as many, none moves by 0.001."""
_LARGEST_EPSILON: Final = 700.0
"""The e^epsilon of a larger one is no float."""


@dataclass(frozen=True)
class Curve:
    """The privacy curve of all releases of one data holder, against one party. Raises nothing.

    Attributes:
        history: the sum of the events.

    >>> from dp_accounting import GaussianDpEvent
    >>> from securefl.accounting import Curve
    >>> found = Curve.of({GaussianDpEvent(2.0): 4})
    >>> found.mu, found.rho, round(float(found.delta(4.377)), 7), round(float(found.miss(0.05)), 3)
    (1.0, 0.5, 1e-05, 0.74)
    """

    history: History

    @classmethod
    def of(cls, events: Mapping[DpEvent, int]) -> Curve:
        """Return the curve of events, each with its count.

        Raises:
            UnsupportedEvent: if the accountant cannot compose an event.
        """
        return cls(History.of(events))

    @property
    def gaussian(self) -> bool:
        """Whether no step is sampled and noise covers all, so that mu alone gives the whole curve."""
        return not (self.history.steps or self.history.endless)

    @property
    def mu(self) -> float:
        """The least mu of Gaussian differential privacy (Dong, Roth and Su 2019); see `rho`."""
        return math.sqrt(2 * self.rho)

    @property
    def rho(self) -> float:
        """The least rho of zero-concentrated differential privacy (Bun and Steinke 2016), in nats.

        Sampling of steps does not lower it: at large orders, the Renyi divergence of a sampled step comes as
        near as one likes to that of a step on all records, and never exceeds it.
        """
        if self.history.endless:
            return math.inf
        steps = (count / z / z for (_, z), count in self.history.steps.items())
        return (self.history.mu_squared + math.fsum(steps)) / 2

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at a delta, as ledgers and reports state it.

        Raises:
            ConfigError: unless delta is in (0, 1).
        """
        require_delta(delta)
        return running_epsilon(self.history, delta)

    def delta(self, epsilon: ArrayLike) -> Floats:
        """Return the delta at each epsilon: exact for Gaussians, an upper bound if steps are sampled.

        Args:
            epsilon: at least 0, one or an array.

        Returns:
            Deltas of the same shape.

        Raises:
            ConfigError: if an epsilon is below 0 or no number.
        """
        of = np.asarray(epsilon, np.float64)
        if not np.all(of >= 0):
            raise ConfigError(f"Expected each epsilon to be 0 or more, got {of}: pass 1.0.")
        return deltas(self.history, of)

    def miss(self, false_alarm: ArrayLike) -> Floats:
        """Return the least rate of misses of any test that tells neighbouring data apart.

        It is exact for Gaussians, and a lower bound if steps are sampled.

        Args:
            false_alarm: the test's rate of false alarms, in [0, 1], one or an array.

        Returns:
            Rates of the same shape.

        Raises:
            ConfigError: if a rate is not in [0, 1].
        """
        of = np.asarray(false_alarm, np.float64)
        if not np.all((of >= 0) & (of <= 1)):
            raise ConfigError(f"Expected each rate of false alarms in [0, 1], got {of}: pass 0.05.")
        if self.history.endless:
            return np.zeros_like(of)
        if self.gaussian:
            return np.asarray(ndtr(-ndtri(of) - self.mu))
        # Each point of the curve bounds the misses by two lines (Kairouz, Oh and Viswanath 2015).
        points, found = self.points, of[..., None]
        steep = 1 - found * np.exp(points[0]) - points[1]
        flat = np.exp(-points[0]) * (1 - found - points[1])
        bound: Floats = np.max(np.maximum(steep, flat), axis=-1, initial=0.0)
        return bound

    @cached_property
    def points(self) -> tuple[Floats, Floats]:
        """float64 (m,) each: epsilons from 0 to that at a delta of 1e-10, and their deltas."""
        epsilons = np.linspace(0.0, min(self.epsilon(1e-10), _LARGEST_EPSILON), _POINTS)
        return epsilons, self.delta(epsilons)


def beside_epsilon(own: Curve) -> str:
    """What a curve says beside its epsilon, for a sentence. Empty if epsilon is 0 or infinite."""
    if own.history.endless or own.mu == 0:
        return ""
    exact = f"μ = {own.mu:.3g} (Gaussian DP) and ρ = {own.rho:.3g} (zCDP); " if own.gaussian else ""
    misses = f"{100 * float(own.miss(0.05)):.3g} %"
    return f"{exact}a test for one unit with 5 % of false alarms misses at least {misses}"


def against(party: str, releases: Mapping[tuple[str, Charge], int]) -> Curve:
    """Return the curve of one holder's releases (`releases_of`) against a party."""
    events = Counter[DpEvent]()
    for (_, charge), count in releases.items():
        events[charge.by_party()[party]] += count
    return Curve.of(events)


def curves(path: Path, *, holder: str | None = None) -> dict[str, dict[str, Curve]]:
    """Return the curves of a ledger's file, by data holder and by party. The file is not changed.

    Args:
        path: the ledger's file.
        holder: include only this data holder. None includes all.

    Returns:
        For each holder its curves against the "server", the "key-holder" and the "others". Holders of equal
        history share one.

    Raises:
        DataError: if the file is damaged, has lost entries, or is not a ledger of this version.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from securefl import Plan
    >>> from securefl.accounting import Ledger, curves
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "ledger.sqlite")
    ...     Ledger(path, Plan(delta=1e-5, max_rounds=10, budget=2.0).terms()).close()
    ...     curves(path)
    {}
    """
    made: dict[History, Curve] = {}
    found: dict[str, dict[str, Curve]] = {}
    for who, releases in releases_of(path).items():
        if holder not in (None, who):
            continue
        for party in PARTIES:
            one = against(party, releases)
            found.setdefault(who, {})[party] = made.setdefault(one.history, one)
    return found
