"""Checks of a sum's order: the cohort and the weights that a party's own plan allows.

A server that chooses weights freely can read one client's value off a sum: it sets that client's weight to
2^40 and the others' to 1, which the grid rounds away. So every client, and the key holder of a sum that has
one, checks each order against its own plan with `require_allowed`.

The rule. T contributions open the sum, and at most c clients collude. For every member as the victim, the
lightest T - 1 - c of the others surely remain beside it. At least `min_honest` - 1 of them must have a
weight above 0 on the grid. If the total is told (`Plan.tells`), each of them observes it: it knows its own
value too, so the lightest T - 2 - c hide the victim. The victim's squared share relative to those who hide it
is at most `max_client_weight` (`core.cohort` says why squares). The rule covers one sum. No weights can bound
what sums of several rounds reveal together.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec, Weighing, draw_weight
from securefl.core.cohort import heaviest_share, share_within
from securefl.core.errors import ConfigError
from securefl.core.messages import Cohort, Order


@dataclass(frozen=True)
class Weights:
    """The weights that an order states for its sums.

    Attributes:
        draws: how often each member of the ordered cohort was drawn, in the order of their numbers.
        whole: the number of all draws if values are weighted by draws; else 0.
        records: n if values are weighted by n_k / n; else 0.
    """

    draws: tuple[int, ...]
    whole: int = 0
    records: int = 0

    @classmethod
    def of(cls, order: Order, cohort: Cohort) -> Self:
        """The weights of this order for a hidden sum over this cohort."""
        return cls(cohort.draws, order.whole, order.records)

    @classmethod
    def usual(cls, plan: Plan, spec: ValueSpec, clients: int) -> Self:
        """The weights of an order of this sum if each client of a cohort of this size was drawn once."""
        match spec.weighs:
            case "draws":
                return cls((1,) * clients, whole=clients)
            case "counts":
                return cls((1,) * clients, records=plan.max_records or 1)
        return cls((1,) * clients)

    @property
    def kind(self) -> Weighing:
        """The kind of weighting that these weights state."""
        return "draws" if self.whole else "counts" if self.records else "equal"

    @property
    def ordered(self) -> int:
        """The size of the cohort that was ordered."""
        return len(self.draws)

    def encoded(self) -> bytes:
        """Explicit bytes, for agreements of sums that a key holder opens. No number is negative."""
        numbers = (len(self.draws), *self.draws, self.whole, self.records)
        return struct.pack(f"<{len(numbers)}Q", *numbers)


def require_allowed(plan: Plan, sums: Sequence[ValueSpec], weights: Weights) -> None:
    """Check the cohort, the weights and n of an order for these hidden sums against the plan.

    Args:
        plan: the checking party's own plan.
        sums: the specs of the summed values.
        weights: the weights that the order states.

    Raises:
        ConfigError: the plan does not allow the cohort, the weights or n, or a weight is too small for a
            grid.
    """
    require_weighed(plan, sums, weights)
    # A value may contain its client's count, such as an app's update: the order then weighs equally.
    counted = any(plan.weights.get(spec.name) == "counts" for spec in sums)
    _require_weights(plan, weights, counted=counted, told=any(plan.tells(spec) for spec in sums))
    least, largest = min(weights.draws), max(weights.draws)
    for spec in sums:
        match weights.kind:
            case "draws":
                _require_kept(spec, draw_weight(least, weights.whole, largest, spec))
            case "counts":
                low, _ = plan.counts
                _require_kept(spec, low / max(weights.records, low))


def require_weighed(plan: Plan, sums: Sequence[ValueSpec], weights: Weights) -> None:
    """Raises ConfigError unless the order weighs these sums as their specs and the plan do, hidden or not.

    A charge holds for the declared weights alone. By counts, one record also changes the value's weight.
    """
    for spec in sums:
        said = plan.weights.get(spec.name, "equal")
        # Draws are the server's own: in the clear they tell nothing of records.
        free = ("equal",) if plan.hidden else ("equal", "draws")
        if weights.kind != spec.weighs or weights.kind not in (said, *free):
            raise ConfigError(
                f"Expected an order that weighs {spec.name!r} {_WORDS[spec.weighs]}, as its spec declares, "
                f"under a plan that weighs it {_WORDS[said]}, got one that weighs it "
                f"{_WORDS[weights.kind]}."
            )


def require_batches(plan: Plan, members: Sequence[int], draws: Sequence[int]) -> None:
    """Raises ConfigError unless the cohort consists of whole fixed batches, each client drawn once.

    The difference of two such sums then consists of whole batches too.
    """
    if plan.fixed_batch is None:
        return
    there, size = set(members), plan.fixed_batch
    whole = {k for batch in {one // size for one in there} for k in range(batch * size, (batch + 1) * size)}
    if whole != there:
        raise ConfigError(
            f"Expected a cohort of whole batches of {size} clients (`fixed_batch`), got one that splits "
            f"the batch: client {min(whole - there)} is missing."
        )
    if max(draws) > 1:
        raise ConfigError(
            f"Expected each client drawn once in fixed batches, got one that was drawn {max(draws)} times."
        )


def admits(plan: Plan, draws: Mapping[int, int]) -> bool:
    """Whether clients of a hidden sum would accept these draws. An honest server redraws until they would."""
    if not plan.hidden or "draws" not in plan.weights.values() or not draws:
        return True
    try:
        _require_weights(plan, Weights(tuple(draws.values()), sum(draws.values())), counted=False, told=True)
    except ConfigError:
        return False
    return True


def _require_weights(plan: Plan, weights: Weights, *, counted: bool, told: bool) -> None:
    """Refuse a cohort, draws or an n outside the plan, and a cohort in which one client would stand out."""
    least, most = plan.cohort_sizes
    if not least <= weights.ordered <= most:
        raise ConfigError(
            f"Expected a cohort of {least} to {most} clients, as the plan "
            f"says, got {weights.ordered} (`min_cohort_size`, `max_cohort_size`)."
        )
    if min(weights.draws) < 1 or (not weights.whole and max(weights.draws) > 1):
        raise ConfigError(
            f"Expected at least one draw of each client, and exactly one unless draws are the weights, got "
            f"{min(weights.draws)} to {max(weights.draws)}."
        )
    beside = plan.beside(weights.ordered, told=told)
    share = heaviest_share(weights.draws, beside)
    if weights.kind == "draws":
        _require_draws(plan, weights)
    elif weights.kind == "counts":
        _require_records(plan, weights)
    if counted:
        share = share_within(*plan.counts, beside)
    plan.require_hiding(weights.ordered, beside, share)


_WORDS = {"equal": "equally", "draws": "by draws", "counts": "by counts"}


def _require_draws(plan: Plan, weights: Weights) -> None:
    """Raises ConfigError unless draws are as many as the plan says, or fewer with each client drawn once.

    If each client is drawn once, all weights are equal.
    """
    whole, each_once = sum(weights.draws), max(weights.draws) == 1
    allowed = whole == plan.draws or (each_once and whole < (plan.draws or 0))
    if whole != weights.whole or not allowed:
        raise ConfigError(
            f"Expected {plan.draws} draws in all, as the plan says, or fewer if each client is drawn once, "
            f"got {whole} in an order that states {weights.whole}."
        )


def _require_records(plan: Plan, weights: Weights) -> None:
    if plan.min_records is None or plan.max_records is None:
        raise ConfigError(
            "Expected `min_records` and `max_records`, bounds of n in weights n_k / n, got none: "
            "under a huge n small clients' values round to 0. Add both bounds, such as the number of clients "
            "and that of all their records."
        )
    if not plan.min_records <= weights.records <= plan.max_records:
        raise ConfigError(
            f"Expected n from {plan.min_records} to {plan.max_records}, as the plan says, got "
            f"{weights.records}."
        )
    if plan.draws is not None and weights.ordered > plan.draws:
        raise ConfigError(
            f"Expected at most {plan.draws} clients in a sum that weighs by counts (`draws`), got "
            f"{weights.ordered}."
        )


_KEPT = 2**16
"""The least number of grid steps that a value at the grid's bound must keep under a weight below 1."""


def _require_kept(spec: ValueSpec, weight: float) -> None:
    """Refuse a least weight under which a client's small values would round to 0 on the grid.

    Values are far smaller than the grid's bound. If a client's values round to 0 and a heavier client's do
    not, the first client hides nothing of the second.
    """
    if weight < 1 and weight * spec.grid.limit < _KEPT:
        raise ConfigError(
            f"Expected weights that the grid of {spec.name!r} can represent, got {weight:.3g}: a client's "
            "small values would round to 0, so its contribution would hide no other."
        )
