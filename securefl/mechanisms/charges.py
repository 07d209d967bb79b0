"""The charge of each release under a plan, and the reason if it is infinite, computed from public inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil, isinf
from typing import Final

from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.accounting.composition import compose, running_epsilon
from securefl.accounting.events import EXPOSED, NO_COST, NON_PRIVATE, History, dump_charge
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.cohort import exact
from securefl.core.errors import ConfigError
from securefl.core.release import KEY_HOLDER, OTHERS, SERVER, Charge
from securefl.mechanisms.registry import mechanism_of

HIDES: Final = 100.0
"""The largest epsilon of a release whose noise hides anything. At a delta of 10^-5 it is a Gaussian of a
tenth of the sensitivity, which takes one neighbour for the other once in 3 * 10^6 cases."""


def charge_of(plan: Plan, spec: ValueSpec, *, trained: bool = True) -> Charge:
    """The charge of one release, from public inputs only.

        >>> from securefl.algorithm import Plan, ValueSpec
        >>> from securefl.mechanisms import charge_of
        >>> plan = Plan(noise="local", noise_multiplier=2.0, adjacency="add-remove", delta=1e-5, max_rounds=1)
        >>> one = {("record", "add-remove"): 1.0}
        >>> step = ValueSpec(name="step", reduction="sum", reveals="", sensitivity=one)
        >>> charge_of(plan, step).server, charge_of(plan, step).key_holder
        (GaussianDpEvent(noise_multiplier=2.0), NoOpDpEvent())

    Args:
        plan: the plan of the run.
        spec: the value's spec.
        trained: whether a model was broadcast. If not, the client did not train before the release, and the
            charge of private training is left out.

    Raises:
        ConfigError: the value is neither noised, nor public, nor named as non-private; or the plan or the
            grid lacks something that its mechanism needs.
    """
    own = _own_charge(plan, spec)
    if own in (NON_PRIVATE, EXPOSED) or spec.training is None or not trained or not _accounted(plan):
        return own
    return Charge(
        server=_both(own.server, spec.training),
        key_holder=own.key_holder,
        others=_both(own.others, spec.training),
    )


def events_of(plan: Plan, sent: Sequence[ValueSpec], party: str, rounds: int) -> Counter[DpEvent]:
    """The events of one client's releases to a party, if it takes part in every round and initial query."""
    events: Counter[DpEvent] = Counter()
    for spec in sent:
        events[charge_of(plan, spec).by_party()[party]] += spec.schedule.asked(rounds) - spec.schedule.initial
        events[charge_of(plan, spec, trained=False).by_party()[party]] += spec.schedule.initial
    return +events  # a Counter's plus drops the events that occur 0 times


def allotment(plan: Plan, sent: Sequence[ValueSpec]) -> Counter[str]:
    """The most releases of one client in a whole run under this plan, by charge in its stored form.

    Each retry of a sum counts as a release. A charge that costs nothing is left out.
    """
    found: Counter[str] = Counter()
    for spec in sent:
        max_retries = plan.max_retries if spec.reduction == "sum" else 0
        rounds = max(0, spec.schedule.asked(plan.max_rounds) - spec.schedule.initial)
        if (limit := spec.schedule.most_releases(plan.max_rounds)) is not None:
            rounds = min(rounds, limit)
        # The ledger refuses more noised releases of a name than were calibrated for.
        most = (
            plan.max_releases.get(spec.name, rounds + max_retries)
            if mechanism_of(plan, spec).noised
            else rounds + max_retries
        )
        for charge, often in (
            (charge_of(plan, spec), rounds and min(rounds + max_retries, most)),
            (
                charge_of(plan, spec, trained=False),
                spec.schedule.initial and spec.schedule.initial + max_retries,
            ),
        ):
            if charge != NO_COST:
                found[dump_charge(charge)] += often
    return +found


def _both(own: DpEvent, training: DpEvent) -> DpEvent:
    return training if isinstance(own, NoOpDpEvent) else ComposedDpEvent((own, training))


def _own_charge(plan: Plan, spec: ValueSpec) -> Charge:
    """The charge of the value alone. `charge_of` adds the charge of the training before it."""
    mechanism = mechanism_of(plan, spec)
    # A declared sensitivity of 0: no neighbour changes the value, such as a count under replace-one.
    if spec.sensitivity.get((plan.unit, plan.adjacency)) == 0:
        return NO_COST
    if spec.depends_on == "model" and _accounted(plan):
        return NO_COST
    if mechanism.noised and not _voided(plan, spec):
        mechanism.check()
        if (charge := mechanism.charge()) is not None:
            return charge
    if plan.hidden and spec.form == "map":
        raise ConfigError(
            f"Expected noise on {spec.name!r} in a hidden sum, got none: how many clients have each pair of "
            f"units gives every client's own map, whatever hides the sum.{_remedy(plan, spec)} Or sum in the "
            'clear (sum = "clear"), where the card says that the server has every map.'
        )
    if spec.name not in plan.non_private:
        remedy = _remedy(plan, spec)
        raise ConfigError(
            f"{_why(plan, spec)}.{remedy} {'Or name' if remedy else 'Name'} it in [privacy] "
            f'non_private = ["{spec.name}"] to allow that (epsilon is then infinite, and reported so).'
        )
    # A key holder that draws the noise of a value can subtract it, so it learns what the server does.
    return EXPOSED if mechanism.total_by == KEY_HOLDER else NON_PRIVATE


def _accounted(plan: Plan) -> bool:
    """Whether the events of private training are for the unit and the adjacency of this plan."""
    return plan.unit == "record" and plan.adjacency == "add-remove"


def fewest_contributions(plan: Plan, cohort: int, specs: Sequence[ValueSpec]) -> int:
    """The least number of contributions in a sum of these values over a cohort of this size."""
    promised = (mechanism_of(plan, own).min_contributions(cohort) for own in specs)
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
    asked = tuple(charges)
    return all(any(_endless(charge.by_party()[party]) for charge in asked) for party in parties)


def bare(plan: Plan, spec: ValueSpec) -> bool:
    """Whether a hidden sum of these values has next to no noise against the server or other clients.

    Then the sums of two sessions over the same records can differ by one client's value.
    """
    if not plan.hidden or spec.reduction != "sum":
        return False
    charge = charge_of(plan, spec)
    return any(opens(charge, party, plan.delta) for party in (SERVER, OTHERS))


def opens(charge: Charge, party: str, delta: float) -> bool:
    """Whether one release tells a party two neighbours apart, nearly surely: an epsilon above `HIDES`.

    What no noise has to hold by other means, noise that hides nothing must hold by them too. Silence and
    lengths are another matter: they are uncharged, and must tell nothing under any finite epsilon
    (`unbounded`).
    """
    event = charge.by_party()[party]
    return _endless(event) or running_epsilon(History.of({event: 1}), delta) > HIDES


def _endless(event: DpEvent) -> bool:
    if isinstance(event, ComposedDpEvent):
        return any(_endless(part) for part in event.events)
    return isinstance(event, NonPrivateDpEvent)


def sparse(plan: Plan, spec: ValueSpec) -> bool:
    """Whether a sum of these values travels without its zeros. Its length then reveals their number."""
    if not spec.packed or plan.hidden:
        return False
    return unbounded([charge_of(plan, spec)], (SERVER, OTHERS))


def post_processed(plan: Plan, spec: ValueSpec) -> bool:
    """Whether a value is noised, or is computed from a model whose private training is charged."""
    return mechanism_of(plan, spec).noised or (spec.training is not None and _accounted(plan))


def _voided(plan: Plan, spec: ValueSpec) -> bool:
    """Whether the declared sensitivity does not hold: one record can change trained state without bound, and
    a weight beside the value."""
    # Per client the whole contribution is bounded, so the bound holds for trained state too.
    if plan.unit == "client":
        return False
    if _weighed_by_records(plan, spec):
        return True
    return not _accounted(plan) if spec.training is not None else spec.depends_on == "trained-state"


def _weighed_by_records(plan: Plan, spec: ValueSpec) -> bool:
    """Whether one record changes the value's weight: a declared distance holds for one fixed weight."""
    by_counts = spec.weighs == "counts" and plan.weights.get(spec.name) == "counts"
    return by_counts and plan.public_num_examples is None and plan.adjacency == "add-remove"


def open_to(plan: Plan, spec: ValueSpec) -> list[str]:
    """The adversaries of the plan against which one release of these values has an infinite epsilon."""
    charge = charge_of(plan, spec).by_party()
    return [party for party in plan.adversaries if isinf(compose({charge[party]: 1}, plan.delta))]


def endless(plan: Plan, sent: Sequence[ValueSpec]) -> str:
    """Why no finite epsilon holds against the adversaries of the plan, in words."""
    reasons = []
    for spec in sent:
        parties = open_to(plan, spec)
        if not parties:
            continue
        if not plan.noisy:
            reasons.append(f"the {spec.name} leaves without noise")
        elif not mechanism_of(plan, spec).noised:
            reasons.append(f"one {plan.unit} moves the {spec.name} without bound, so it is not noised")
        elif plan.unit == "record" and spec.depends_on == "trained-state":
            reasons.append(f"the {spec.name} reads state trained on the records: no bound for a record")
        else:
            reasons.append(f"the {spec.name} is open to the {' and the '.join(parties)}")
    return "; ".join(reasons) or "there is too little noise to bound anything"


def _why(plan: Plan, spec: ValueSpec) -> str:
    """Why these values would leave without noise that bounds them. It is the first sentence of a refusal."""
    bare = f"{spec.name!r} would leave its client without noise"
    if spec.training is not None and not _accounted(plan):
        return (
            f"The private training before {spec.name!r} is accounted for adding or removing one record, not "
            f"for one {plan.unit} under {plan.adjacency}"
        )
    if not plan.noisy:
        return bare
    if not mechanism_of(plan, spec).noised:
        return f"{bare}: one {plan.unit} moves it without bound ({plan.adjacency})"
    if plan.unit == "record" and _weighed_by_records(plan, spec):
        return (
            f"{spec.name!r} is weighted by the client's number of records, which one record changes beside "
            "the value: state a `public_num_examples`, or weigh equally"
        )
    if _voided(plan, spec):
        return (
            f"No noise bounds what {spec.name!r} reveals of a record: it reads state that was trained on "
            "the records, and each record can move it without bound"
        )
    drawn_by = (mechanism_of(plan, spec).total_by or "party").replace("-", " ")
    return f"{bare} for the {drawn_by} that draws it and could subtract it: leave it out of `adversaries`"


def _remedy(plan: Plan, spec: ValueSpec) -> str:
    """A sentence that names the study option that would bound the value (`bounded_by` of its spec)."""
    if mechanism_of(plan, spec).noised and not _voided(plan, spec):
        return ""  # only trust is missing, and `_why` says so
    ways, unit = spec.bounded_by, plan.unit
    if spec.training is not None and not _accounted(plan):
        if unit == "record":
            return ' Set adjacency = "add-remove".'
        return " Leave the private training out." + (
            f" Per {unit} take {ways[unit]}." if unit in ways else ""
        )
    if unit in ways:
        return f" To bound it per {unit}, take {ways[unit]}."
    others = [f'per {other} (unit = "{other}"), by {way}' for other, way in ways.items()]
    if others:
        return f" No option of its protocol bounds it per {unit}; it can be bounded {' or '.join(others)}."
    return " Its protocol names no option that bounds it."
