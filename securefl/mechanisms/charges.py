"""The protection of each value under a plan: its noise, its charge, and the reason if that is infinite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, isinf
from typing import Final

from dp_accounting import ComposedDpEvent, DpEvent, NoOpDpEvent

from securefl.accounting.composition import compose, running_epsilon
from securefl.accounting.events import EXPOSED, NO_COST, NON_PRIVATE, History, dump_charge
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.cohort import exact
from securefl.core.errors import ConfigError
from securefl.core.grid import Grid
from securefl.core.release import KEY_HOLDER, OTHERS, SERVER, Charge
from securefl.mechanisms.mechanism import Local, Mechanism, NoNoise
from securefl.mechanisms.outside import Outside
from securefl.mechanisms.registry import OURS, require_mechanism

HIDES: Final = 100.0
"""The largest epsilon of a release whose noise hides anything. At a delta of 10^-5 it is a Gaussian of a
tenth of the sensitivity, which takes one neighbour for the other once in 3 * 10^6 cases."""


@dataclass(frozen=True)
class Protection:
    """The protection of one value under one plan: its mechanism and its charges, from public inputs only.

        >>> from securefl.algorithm import Plan, ValueSpec
        >>> from securefl.mechanisms import Protection
        >>> plan = Plan(noise="local", noise_multiplier=2.0, adjacency="add-remove", delta=1e-5, max_rounds=1)
        >>> one = {("record", "add-remove"): 1.0}
        >>> step = Protection(plan, ValueSpec(name="step", reduction="sum", reveals="", sensitivity=one))
        >>> step.noised, step.charge().server, step.charge().key_holder
        (True, GaussianDpEvent(noise_multiplier=2.0), NoOpDpEvent())

    A party makes it once for each value, and asks it for everything that follows from the plan.

    Attributes:
        plan: the plan of the run.
        spec: the value's spec.
        mechanism: the mechanism that noises the value, with its head-room and its sensitivity on the grid. A
            value without a sensitivity for the plan's unit and adjacency is not noised.

    Raises:
        ConfigError: as for `require_mechanism`, when the mechanism is asked for. `charge` and all that
            follows from a charge also raise it if the value is neither noised, nor public, nor named as
            non-private; or if the plan or the grid lacks something that its mechanism needs.
    """

    plan: Plan
    spec: ValueSpec

    @cached_property
    def mechanism(self) -> Mechanism | Outside:
        plan, spec, kind = self.plan, self.spec, require_mechanism(self.plan)
        if kind is None or not spec.sensitivity.get((plan.unit, plan.adjacency), 0.0) > 0:
            return NoNoise(plan, spec)
        if spec.reduction == "none":  # no party sums it, so its client noises it
            return Local(plan, spec)
        return kind(plan, spec) if plan.noise in OURS else Outside(plan.noise, kind, plan, spec)

    @property
    def noised(self) -> bool:
        """Whether noise is added to the value."""
        return self.mechanism.noised

    @property
    def sampling_rate(self) -> float:
        """The chance that a client's draw for a release lets its own value into it, in place of zeros."""
        return self.plan.sampling_rate if self.mechanism.total_by == SERVER else 1.0

    def charge(self, *, trained: bool = True) -> Charge:
        """The charge of one release.

        Args:
            trained: whether a model was broadcast. If not, the client did not train before the release, and
                the charge of private training is left out.
        """
        own, training = self._own_charge, self.spec.training
        if own in (NON_PRIVATE, EXPOSED) or training is None or not trained or not self._accounted:
            return own
        return Charge(
            server=_both(own.server, training),
            key_holder=own.key_holder,
            others=_both(own.others, training),
        )

    @cached_property
    def _own_charge(self) -> Charge:
        """The charge of the value alone. `charge` adds that of the training before it."""
        plan, spec = self.plan, self.spec
        mechanism = self.mechanism
        if self._free and not self._weighed_by_records:
            return NO_COST
        if mechanism.noised and not self._voided:
            if plan.noise in OURS and not plan.noise_multiplier:
                raise ConfigError(
                    f"Expected a `noise_multiplier` above 0 under noise = {plan.noise!r}, got 0. State one, "
                    "or leave `noise` out."
                )
            mechanism.check()
            self._require_one_draw()
            if (charge := mechanism.charge()) is not None:
                return charge
        if plan.hidden and spec.form == "map":
            raise ConfigError(
                f"Expected noise on {spec.name!r} in a hidden sum, got none: how many clients have each pair "
                f"of units gives every client's own map, whatever hides the sum.{self._remedy} Or sum in the "
                'clear (sum = "clear"), where the card says that the server has every map.'
            )
        if spec.name not in plan.non_private:
            remedy = self._remedy
            raise ConfigError(
                f"{self._why}.{remedy} {'Or name' if remedy else 'Name'} it in [privacy] "
                f'non_private = ["{spec.name}"] to allow that (epsilon is then infinite, and reported so).'
            )
        # A key holder that draws the noise of a value can subtract it, so it learns what the server does.
        return EXPOSED if mechanism.total_by == KEY_HOLDER else NON_PRIVATE

    def _require_one_draw(self) -> None:
        """Raises ConfigError where a draw per release leaves a sum that the server's mean does not expect."""
        spec, rate = self.spec, self.sampling_rate
        if spec.follows:
            why = "reads what a client keeps of another release, which has a draw of its own"
        elif spec.schedule.once:
            why = "is asked for once, so a client that is not drawn then never counts"
        else:
            return
        if rate < 1:
            raise ConfigError(
                f"Expected no `sampling_rate` under [privacy] beside {spec.name!r}, got {rate:g}: that value "
                f"{why}. Leave `sampling_rate` out, or take a protocol without such a value, as fedavg."
            )

    def opens(self, party: str) -> bool:
        """Whether one release tells a party two neighbours apart, nearly surely: an epsilon above `HIDES`.

        What no noise has to hold by other means, noise that hides nothing must hold by them too. Silence and
        lengths are another matter: they are uncharged, and must tell nothing under any finite epsilon
        (`unbounded`).
        """
        event = self.charge().by_party()[party]
        return running_epsilon(History.of({event: 1}), self.plan.delta) > HIDES

    @property
    def bare(self) -> bool:
        """Whether a hidden sum of these values has next to no noise against the server or other clients.

        Then the sums of two sessions over the same records can differ by one client's value.
        """
        hidden = self.plan.hidden and self.spec.reduction == "sum"
        return hidden and any(map(self.opens, (SERVER, OTHERS)))

    @property
    def sparse(self) -> bool:
        """Whether a sum of these values travels without its zeros. Its length then reveals their number."""
        if not self.spec.packed or self.plan.hidden:
            return False
        return unbounded([self.charge()], (SERVER, OTHERS))

    @property
    def post_processed(self) -> bool:
        """Whether the value is noised, or is computed from a model whose private training is charged."""
        return self.noised or (self.spec.training is not None and self._accounted)

    @property
    def open_to(self) -> list[str]:
        """The adversaries of the plan against which one release has an infinite epsilon."""
        charge, plan = self.charge().by_party(), self.plan
        return [party for party in plan.adversaries if isinf(compose({charge[party]: 1}, plan.delta))]

    @property
    def infinite_reason(self) -> str:
        """Why no finite epsilon holds against the adversaries of the plan, in words. Empty if one does."""
        parties, plan, spec = self.open_to, self.plan, self.spec
        if not parties:
            return ""
        if not plan.noisy:
            return f"the {spec.name} leaves without noise"
        if not self.noised:
            lacking = spec.bounded_by and plan.unit not in spec.bounded_by
            form = f" (its protocol has no {plan.unit}-level form)" if lacking else ""
            return f"one {plan.unit} moves the {spec.name} without bound, so it is not noised{form}"
        if plan.unit == "record" and spec.depends_on == "trained-state":
            return f"the {spec.name} reads state trained on the records: no bound for a record"
        return f"the {spec.name} is open to the {' and the '.join(parties)}"

    @property
    def _accounted(self) -> bool:
        """Whether the events of private training are for the unit and the adjacency of this plan."""
        return self.plan.unit == "record" and self.plan.adjacency == "add-remove"

    @property
    def _voided(self) -> bool:
        """Whether the declared sensitivity does not hold: one record can change trained state without bound,
        and a weight beside the value."""
        # Per client the whole contribution is bounded, so the bound holds for trained state too.
        if self.plan.unit == "client":
            return False
        if self._weighed_by_records:
            return True
        spec = self.spec
        return not self._accounted if spec.training is not None else spec.depends_on == "trained-state"

    @property
    def _weighed_by_records(self) -> bool:
        """Whether one record changes the value's weight: a declared distance holds for one fixed weight."""
        plan, spec = self.plan, self.spec
        by_counts = spec.weighs == "counts" and plan.weights.get(spec.name) == "counts"
        private = plan.public_num_examples is None and plan.adjacency == "add-remove"
        return plan.unit == "record" and by_counts and private

    @property
    def _free(self) -> bool:
        """Whether the value itself tells nothing that is not charged: its weight may."""
        # A declared sensitivity of 0: no neighbour changes the value, such as a count under replace-one.
        unchanged = self.spec.sensitivity.get((self.plan.unit, self.plan.adjacency)) == 0
        return unchanged or (self.spec.depends_on == "model" and self._accounted)

    @property
    def _unaccounted(self) -> bool:
        return self.spec.training is not None and not self._accounted

    @property
    def _why(self) -> str:
        """Why these values would leave without noise that bounds them: the first sentence of a refusal."""
        plan, spec = self.plan, self.spec
        bare = f"{spec.name!r} would leave its client without noise"
        if self._unaccounted:
            return (
                f"The private training before {spec.name!r} is accounted for adding or removing one record, "
                f"not for one {plan.unit} under {plan.adjacency}"
            )
        if self._weighed_by_records and (self.noised or self._free):
            return (
                f"{spec.name!r} is weighted by the client's number of records, which one record changes "
                "beside the value: state a `public_num_examples`, or weigh equally"
            )
        if not plan.noisy:
            return bare
        if not self.noised:
            return f"{bare}: one {plan.unit} moves it without bound ({plan.adjacency})"
        if self._voided:
            return (
                f"No noise bounds what {spec.name!r} reveals of a record: it reads state that was trained on "
                "the records, and each record can move it without bound"
            )
        drawn_by = (self.mechanism.total_by or "party").replace("-", " ")
        return f"{bare} for the {drawn_by} that draws it and could subtract it: leave it out of `adversaries`"

    @property
    def _remedy(self) -> str:
        """A sentence that names the study option that would bound the value (`bounded_by` of its spec)."""
        if self.noised and not self._voided:
            return ""  # only trust is missing, and `_why` says so
        ways, unit = self.spec.bounded_by, self.plan.unit
        if self._unaccounted:
            if unit == "record":
                return ' Set adjacency = "add-remove".'
            return " Leave the private training out." + (
                f" Per {unit} take {ways[unit]}." if unit in ways else ""
            )
        if unit in ways:
            return f" To bound it per {unit}, take {ways[unit]}."
        others = [f'per {other} (unit = "{other}"), by {way}' for other, way in ways.items()]
        if others:
            ways_on = " or ".join(others)
            return f" No option of its protocol bounds it per {unit}; it can be bounded {ways_on}."
        return " Its protocol names no option that bounds it."


def grid_within(bound: float, spec: ValueSpec, plan: Plan | None) -> Grid:
    """The grid of vectors of a norm within `bound`: coarse under noise, which is coarser by far, else fine.

        >>> from securefl.algorithm import Plan, ValueSpec
        >>> from securefl.mechanisms import grid_within
        >>> one = {("client", "zero-out"): 1000.0}
        >>> step = ValueSpec(name="step", reduction="sum", reveals="a step", sensitivity=one)
        >>> grid_within(1000.0, step, None).step
        0.03125
        >>> grid_within(1000.0, step, Plan(delta=1e-5, max_rounds=1)).step < 2e-5
        True

    Args:
        bound: the largest norm, in the value's unit, above 0.
        spec: the value's spec. Of its sensitivities only their being above 0 matters.
        plan: the plan of the run; its noise multiplier does not matter. Without one, noise is expected.

    Raises:
        ConfigError: as for `Protection.mechanism`.
    """
    if plan is None or Protection(plan, spec).noised:
        return Grid.around(bound)
    # It has room beyond the bound too: a study may ask what a client does that breaks it.
    return Grid.within(16 * bound)


def events_of(plan: Plan, sent: Sequence[ValueSpec], party: str, rounds: int) -> Counter[DpEvent]:
    """The events of one client's releases to a party, if it takes part in every round and initial query."""
    events: Counter[DpEvent] = Counter()
    for spec in sent:
        own = Protection(plan, spec)
        often = spec.asked(rounds, plan.separation) - spec.schedule.initial
        events[own.charge().by_party()[party]] += often
        events[own.charge(trained=False).by_party()[party]] += spec.schedule.initial
    return +events  # a Counter's plus drops the events that occur 0 times


def allotment(plan: Plan, sent: Sequence[ValueSpec]) -> Counter[str]:
    """The most releases of one client in a whole run under this plan, by charge in its stored form.

    Each retry of a sum counts as a release. A charge that costs nothing is left out.
    """
    found: Counter[str] = Counter()
    for spec in sent:
        own = Protection(plan, spec)
        max_retries = plan.max_retries if spec.reduction == "sum" else 0
        rounds = max(0, spec.asked(plan.max_rounds, plan.separation) - spec.schedule.initial)
        if (limit := spec.schedule.most_releases(plan.max_rounds)) is not None:
            rounds = min(rounds, limit)
        most = rounds + max_retries
        # The ledger refuses more noised releases of a name than were calibrated for.
        if own.noised:
            most = plan.max_releases.get(spec.name, most)
        initial = spec.schedule.initial and spec.schedule.initial + max_retries
        for charge, often in (
            (own.charge(), rounds and min(rounds + max_retries, most)),
            (own.charge(trained=False), initial),
        ):
            if charge != NO_COST:
                found[dump_charge(charge)] += often
    return +found


def _both(own: DpEvent, training: DpEvent) -> DpEvent:
    return training if isinstance(own, NoOpDpEvent) else ComposedDpEvent((own, training))


def fewest_contributions(plan: Plan, cohort: int, specs: Sequence[ValueSpec]) -> int:
    """The least number of contributions in a sum of these values over a cohort of this size."""
    promised = (Protection(plan, own).mechanism.min_contributions(cohort) for own in specs)
    return max([plan.survivors(cohort), *promised])


def fewest_behind_an_entry(plan: Plan, cohort: int) -> int:
    """The least number of contributors to an entry of a sum over a cohort of this size.

    A client whose vector has no such entry (coordinate) contributes 0 there, and so hides no one. The plan's
    bounds on cohorts must therefore hold for the clients that have the entry alone. Even after the largest
    dropout, at least two of these clients remain, and enough of them are honest to satisfy `min_honest` and,
    beside one of them that sees the total, `max_client_weight`. In the clear the number is 1, since
    nothing is hidden.
    """
    if not plan.hidden:
        return 1
    assert plan.min_cohort_size is not None
    assert plan.min_honest is not None
    assert plan.max_client_weight is not None
    lost = cohort - plan.survivors(cohort)
    # If a client and m others have equal weights, its share of the sum of squared weights is 1 / (1 + m).
    honest = max(plan.min_honest, 1 + ceil(1 / exact(plan.max_client_weight)))
    return max(plan.min_cohort_size, lost + max(2, plan.colluding(cohort) + honest))


def unbounded(charges: Iterable[Charge], parties: Iterable[str]) -> bool:
    """Whether the releases together have an infinite epsilon against each of these parties.

    If a party has a finite epsilon, silence and message lengths must not depend on records, since no charge
    covers what they reveal.
    """
    events = [charge.by_party() for charge in charges]
    return all(any(History.of({own[party]: 1}).endless for own in events) for party in parties)


def correlated_sums(plan: Plan, sent: Sequence[ValueSpec]) -> list[ValueSpec]:
    """The values of these whose noise is correlated over rounds."""
    return [spec for spec in sent if Protection(plan, spec).noised and plan.correlation(spec).correlated]


def infinite_reasons(plan: Plan, sent: Sequence[ValueSpec]) -> str:
    """Why no finite epsilon holds against the adversaries of the plan, in words."""
    reasons = filter(None, (Protection(plan, spec).infinite_reason for spec in sent))
    return "; ".join(reasons) or "there is too little noise to bound anything"
