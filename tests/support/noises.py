"""Figures of a mechanism, as functions of a plan and a value's description."""

from __future__ import annotations

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.dp.gaussian import Integers
from securefl.dp.noise import Source
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.distributed import Distributed


def noised(plan: Plan, spec: ValueSpec) -> bool:
    """Whether any party noises these values."""
    return Protection(plan, spec).mechanism.noised


def reach(plan: Plan, spec: ValueSpec) -> float:
    """The sensitivity in grid units."""
    return Distributed(plan, spec).sensitivity_on_grid


def own_sigma(plan: Plan, spec: ValueSpec) -> float:
    """Sigma of a client's share of distributed noise, in grid units."""
    return Distributed(plan, spec).share_sigma()


def room(plan: Plan, spec: ValueSpec) -> int:
    """How far noise reaches beyond a total, in grid units."""
    return Protection(plan, spec).mechanism.headroom().total


def noise(plan: Plan, spec: ValueSpec, size: int, source: Source) -> Integers:
    """One draw for `size` grid integers, by the client or by the party that noises the total."""
    mechanism = Protection(plan, spec).mechanism
    drawn = mechanism.client_noise(size, source)
    if drawn is None and mechanism.total_by is not None:
        drawn = mechanism.total_noise(mechanism.total_by, size, source)
    assert drawn is not None
    return drawn
