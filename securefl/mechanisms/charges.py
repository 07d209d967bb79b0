"""What each release costs under a plan, and why it may cost everything: from public inputs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil, isinf

from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.accounting.composition import compose
from securefl.accounting.events import EXPOSED, NO_COST, NON_PRIVATE, dump_charge
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Sends
from securefl.core.cohort import exact
from securefl.core.errors import ConfigError
from securefl.core.release import OTHERS, SERVER, Charge
from securefl.mechanisms import mechanism_of


def charge_of(plan: Plan, sends: Sends, *, trained: bool = True) -> Charge:
    """The charge of one release, from public inputs only.

    trained: whether a model was broadcast, so that the training before the release took place.

    Raises:
        ConfigError: the value is neither noised, nor public, nor named as unprotected; or its mechanism has
            not what it needs of the plan, or of the grid.
    """
    own = _own_charge(plan, sends)
    if own in (NON_PRIVATE, EXPOSED) or sends.training is None or not trained or not _accounted(plan):
        return own
    return Charge(
        server=_both(own.server, sends.training),
        key_holder=own.key_holder,
        others=_both(own.others, sends.training),
    )


def events_of(plan: Plan, sent: Sequence[Sends], party: str, rounds: int) -> Counter[DpEvent]:
    """The releases to a party of a client that takes part in all of so many rounds and introductions."""
    events: Counter[DpEvent] = Counter()
    for sends in sent:
        events[charge_of(plan, sends).by_party()[party]] += sends.asked(rounds) - sends.initial_queries
        events[charge_of(plan, sends, trained=False).by_party()[party]] += sends.initial_queries
    return +events  # a Counter's plus drops the events that occur 0 times


def allotment(plan: Plan, sent: Sequence[Sends]) -> Counter[str]:
    """How often each charge, as it is stored, can be made of one client in a whole run under this plan.

    A spare attempt at a sum is a release of its own. What costs nothing is left out.
    """
    found: Counter[str] = Counter()
    for sends in sent:
        max_retries = plan.max_retries if sends.how == "sum" else 0
        rounds = max(0, sends.asked(plan.max_rounds) - sends.initial_queries)
        if (limit := sends.most_releases(plan.max_rounds)) is not None:
            rounds = min(rounds, limit)
        # The ledger lets no more noised releases of a name through than were calibrated for.
        most = (
            plan.max_releases.get(sends.name, rounds + max_retries)
            if mechanism_of(plan, sends).noised
            else rounds + max_retries
        )
        for charge, often in (
            (charge_of(plan, sends), rounds and min(rounds + max_retries, most)),
            (
                charge_of(plan, sends, trained=False),
                sends.initial_queries and sends.initial_queries + max_retries,
            ),
        ):
            if charge != NO_COST:
                found[dump_charge(charge)] += often
    return +found


def _both(own: DpEvent, training: DpEvent) -> DpEvent:
    return training if isinstance(own, NoOpDpEvent) else ComposedDpEvent((own, training))


def _own_charge(plan: Plan, sends: Sends) -> Charge:
    """The charge of the value alone, given the model that was trained before."""
    mechanism = mechanism_of(plan, sends)
    # A declared 0 says that no neighbour changes the value, such as a count under replace-one.
    if sends.sensitivity.get((plan.unit, plan.adjacency)) == 0:
        return NO_COST
    if sends.reads == "nothing" and _accounted(plan):
        return NO_COST
    if mechanism.noised and not _voided(plan, sends):
        mechanism.check()
        if (charge := mechanism.charge()) is not None:
            return charge
    if sends.name not in plan.non_private:
        remedy = _remedy(plan, sends)
        raise ConfigError(
            f"{_why(plan, sends)}.{remedy} {'Or name' if remedy else 'Name'} it in [privacy] "
            f'non_private = ["{sends.name}"] to allow that (epsilon is then infinite, and reported so).'
        )
    return mechanism.exposed


def _accounted(plan: Plan) -> bool:
    """Whether the events of private training speak of what this plan protects."""
    return plan.unit == "record" and plan.adjacency == "add-remove"


def fewest_contributions(plan: Plan, cohort: int, sends: Sequence[Sends]) -> int:
    """The least number of contributions that a sum of these values over so many clients may have."""
    promised = (mechanism_of(plan, own).min_contributions(cohort) for own in sends)
    return max([plan.survivors(cohort), *promised])


def fewest_behind_an_entry(plan: Plan, cohort: int) -> int:
    """The least number of contributors that an entry must have to be in a sum over so many clients.

    Clients that do not have the entry hide nothing in it. So the bounds of a cohort hold for those that have
    it. After the largest dropout two of them are left, and enough honest ones for `min_honest` and
    `max_client_weight`. In the clear nothing is hidden.
    """
    if not plan.hidden:
        return 1
    assert plan.min_cohort_size is not None
    assert plan.min_honest is not None
    assert plan.max_client_weight is not None
    lost = cohort - plan.survivors(cohort)
    # A client's squared share beside m equal others is 1 / (1 + m).
    honest = max(plan.min_honest, ceil(1 / exact(plan.max_client_weight)))
    return max(plan.min_cohort_size, lost + max(2, plan.colluding(cohort) + honest))


def unbounded(charges: Iterable[Charge], parties: Iterable[str]) -> bool:
    """Whether each of these parties may learn anything from these releases together: no epsilon is finite.

    Elsewhere, silence and length would tell of the records what no charge is for.
    """
    asked = tuple(charges)
    return all(any(_endless(charge.by_party()[party]) for charge in asked) for party in parties)


def _endless(event: DpEvent) -> bool:
    if isinstance(event, ComposedDpEvent):
        return any(_endless(part) for part in event.events)
    return isinstance(event, NonPrivateDpEvent)


def sparse(plan: Plan, sends: Sends) -> bool:
    """Whether a sum of these values travels without its zeros. Its length then tells how many there are."""
    if not sends.packed or plan.hidden:
        return False
    return unbounded([charge_of(plan, sends)], (SERVER, OTHERS))


def post_processed(plan: Plan, sends: Sends) -> bool:
    """Whether a value, or the model that it is computed from, comes of a mechanism that is charged."""
    return mechanism_of(plan, sends).noised or (sends.training is not None and _accounted(plan))


def _voided(plan: Plan, sends: Sends) -> bool:
    """Whether the declared sensitivity does not hold, since trained state moves with every record."""
    # Per client the bound is on the whole contribution, so it holds whatever was trained on the records.
    if plan.unit == "client":
        return False
    return not _accounted(plan) if sends.training is not None else sends.reads == "trained"


def open_to(plan: Plan, sends: Sends) -> list[str]:
    """The parties of the plan's promise against whom one release of these values bounds nothing."""
    charge = charge_of(plan, sends).by_party()
    return [party for party in plan.adversaries if isinf(compose({charge[party]: 1}, plan.delta))]


def endless(plan: Plan, sent: Sequence[Sends]) -> str:
    """The reason why no epsilon holds against the parties of the plan, in words."""
    reasons = []
    for sends in sent:
        parties = open_to(plan, sends)
        if not parties:
            continue
        if not plan.noisy:
            reasons.append(f"the {sends.name} leaves without noise")
        elif not mechanism_of(plan, sends).noised:
            reasons.append(f"one {plan.unit} moves the {sends.name} without bound, so it is not noised")
        elif plan.unit == "record" and sends.reads == "trained":
            reasons.append(f"the {sends.name} reads what the records have trained: no bound for a record")
        else:
            reasons.append(f"the {sends.name} is open to the {' and the '.join(parties)}")
    return "; ".join(reasons) or "there is too little noise to bound anything"


def _why(plan: Plan, sends: Sends) -> str:
    """Why these values would leave without noise that bounds them; the start of a refusal."""
    bare = f"{sends.name!r} would leave its client without noise"
    if sends.training is not None and not _accounted(plan):
        return (
            f"The private training before {sends.name!r} is accounted for adding or removing one record, not "
            f"for one {plan.unit} under {plan.adjacency}"
        )
    if not plan.noisy:
        return bare
    if not mechanism_of(plan, sends).noised:
        return f"{bare}: one {plan.unit} moves it without bound ({plan.adjacency})"
    if _voided(plan, sends):
        return (
            f"No noise bounds what {sends.name!r} tells of a record: it reads state that was trained on the "
            "records, which each of them moves without bound"
        )
    return f"{bare} {mechanism_of(plan, sends).trusts}: leave it out of `adversaries`"


def _remedy(plan: Plan, sends: Sends) -> str:
    """What a study could set so that these values are bounded, as their protocol declares it; a sentence."""
    if mechanism_of(plan, sends).noised and not _voided(plan, sends):
        return ""  # the trust is what is missing, and `_why` says so
    ways, unit = sends.bounded_by, plan.unit
    if sends.training is not None and not _accounted(plan):
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
