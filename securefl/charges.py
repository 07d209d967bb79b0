"""What each release costs under a plan, and why it may cost everything: from public inputs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil, isinf, sqrt

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.accounting.composition import compose
from securefl.core.errors import ConfigError
from securefl.core.release import EXPOSED, KEY_HOLDER, NO_COST, SERVER, UNPROTECTED, Charge
from securefl.dp.gaussian import TAIL, discrete_event, share
from securefl.plan import Plan
from securefl.rounds import Sends


def charge_of(plan: Plan, sends: Sends, *, trained: bool = True) -> Charge:
    """The charge of one release, from public inputs only.

    trained: whether a model was broadcast, so that the training before the release took place.

    Raises:
        ConfigError: the value is neither noised, nor public, nor named as unprotected; or the grid is too
            coarse for distributed noise.
    """
    own = _own_charge(plan, sends)
    if own in (UNPROTECTED, EXPOSED) or sends.training is None or not trained or not _accounted(plan):
        return own
    return Charge(
        server=_both(own.server, sends.training),
        key_holder=own.key_holder,
        others=_both(own.others, sends.training),
    )


def events_of(plan: Plan, sent: Sequence[Sends], party: str, rounds: int) -> Counter[DpEvent]:
    """What a client that takes part in every round has released to a party after as many rounds.

    The exchanges that introduce it included.
    """
    events: Counter[DpEvent] = Counter()
    for sends in sent:
        events[charge_of(plan, sends).by_party()[party]] += sends.asked(rounds) - sends.extra
        events[charge_of(plan, sends, trained=False).by_party()[party]] += sends.extra
    return +events


def _both(own: DpEvent, training: DpEvent) -> DpEvent:
    return training if isinstance(own, NoOpDpEvent) else ComposedDpEvent((own, training))


def _own_charge(plan: Plan, sends: Sends) -> Charge:
    """Of the value alone, given what was trained before."""
    if sends.sensitivity.get((plan.unit, plan.adjacency)) == 0:
        return NO_COST
    if sends.reads == "nothing" and _accounted(plan):
        return NO_COST
    if noised(plan, sends) and not _voided(plan, sends):
        event = GaussianDpEvent(plan.noise_multiplier)
        match placement(plan, sends):
            case "local":
                return Charge(server=event, key_holder=NoOpDpEvent(), others=event)
            case "distributed":
                _check_grid(plan, sends)
                seen = event if plan.hidden else _own_share(plan, sends)
                return Charge(server=seen, key_holder=NoOpDpEvent(), others=_others(plan, sends))
            case "central" if SERVER not in plan.against:
                return Charge(server=NonPrivateDpEvent(), key_holder=NoOpDpEvent(), others=event)
            case "key-holder" if KEY_HOLDER not in plan.against:
                # it sees no total, but whoever knows the noise can take it off a published one
                return Charge(server=event, key_holder=NonPrivateDpEvent(), others=event)
    if sends.name not in plan.unprotected:
        raise ConfigError(
            f"{_why(plan, sends)}.{_remedy(plan, sends)} Name it in [privacy] "
            f'unprotected = ["{sends.name}"] to allow that (epsilon is then infinite, and reported so).'
        )
    return EXPOSED if noised(plan, sends) and placement(plan, sends) == "key-holder" else UNPROTECTED


def _accounted(plan: Plan) -> bool:
    """Whether the events of private training speak of what this plan protects."""
    return plan.unit == "record" and plan.adjacency == "add-remove"


def noised(plan: Plan, sends: Sends) -> bool:
    """Whether this plan adds noise to these values: those of declared sensitivity in the plan's unit."""
    return plan.noise != "none" and sends.sensitivity.get((plan.unit, plan.adjacency), 0.0) > 0


def fewest_contributions(plan: Plan, cohort: int, sends: Sequence[Sends]) -> int:
    """The fewest contributions that a sum of these values over so many clients may have.

    Shares of noise were sized for the declared cohorts: of fewer clients, more must answer; and of more, more
    may be corrupt.
    """
    declared = max((s.cohort for s in sends if noised(plan, s)), default=0)
    if plan.noise != "distributed" or not declared:
        return plan.survivors(cohort)
    enough = plan.survivors(max(cohort, declared))
    honest = plan.survivors(declared) - plan.knowing(declared)
    return max(enough, honest + plan.knowing(cohort))


def placement(plan: Plan, sends: Sends) -> str:
    """Where noise is added to these values; what nobody sums, its client noises."""
    return "local" if sends.how == "each" else plan.noise


def room(plan: Plan, sends: Sends) -> int:
    """How far the key holder's noise reaches beyond a sum, in grid units; 0 where it adds none."""
    if placement(plan, sends) != "key-holder" or not noised(plan, sends):
        return 0
    return ceil(TAIL * plan.noise_multiplier * reach(plan, sends)) + 1


def _voided(plan: Plan, sends: Sends) -> bool:
    """Whether the sensitivity is not one: trained state moves with every record, and is not bounded.

    A client's whole contribution is bounded, whatever was trained on.
    """
    if plan.unit == "client":
        return False
    return not _accounted(plan) if sends.training is not None else sends.reads == "trained"


def _check_grid(plan: Plan, sends: Sends) -> None:
    """ConfigError for a grid that is too coarse for the noise, or too fine or narrow for a share of it.

    A share that its grid's bound cuts off is no share any more: the sum would have less noise than it says.
    """
    discrete_event(_total(plan, sends), reach(plan, sends))
    farthest = reach(plan, sends) + TAIL * own_sigma(plan, sends)
    if farthest > sends.grid.limit:
        raise ConfigError(
            f"Expected {sends.name!r} and its share of the noise within {sends.grid.limit} grid units, they "
            f"reach {farthest:.3g}: the bound would cut the noise off. Take a coarser grid, or less noise."
        )


def _own_share(plan: Plan, sends: Sends) -> DpEvent:
    """What a server that sums in the clear sees of one client: its value with its own share of the noise."""
    return GaussianDpEvent(sqrt(own_sigma(plan, sends) ** 2 - 4) / reach(plan, sends))


def _others(plan: Plan, sends: Sends) -> DpEvent:
    """What another client sees of the sum: it knows its own share of the noise, which may be one too many."""
    honest = plan.survivors(sends.cohort) - max(plan.colluding(sends.cohort), 1)
    if plan.knowing(sends.cohort) >= 1:
        return GaussianDpEvent(plan.noise_multiplier)
    if not honest:
        return NonPrivateDpEvent()
    return GaussianDpEvent(sqrt(honest * own_sigma(plan, sends) ** 2 - 4) / reach(plan, sends))


def reach(plan: Plan, sends: Sends) -> float:
    """The sensitivity in grid units."""
    return sends.sensitivity[plan.unit, plan.adjacency] / sends.grid.step


def _total(plan: Plan, sends: Sends) -> float:
    """Sigma of the sum of the honest shares, in grid units: what discreteness costs is added beforehand."""
    return sqrt((plan.noise_multiplier * reach(plan, sends)) ** 2 + 4)


def own_sigma(plan: Plan, sends: Sends) -> float:
    """Sigma of a client's share of the noise, in grid units. ConfigError where none can be sized."""
    if not sends.cohort:
        raise ConfigError(
            f"The cohorts of {sends.name!r} have no least size, from which shares could be sized."
        )
    return share(_total(plan, sends), plan.survivors(sends.cohort), plan.knowing(sends.cohort))


def open_to(plan: Plan, sends: Sends) -> list[str]:
    """The parties of the plan's promise against whom one release of these values bounds nothing."""
    charge = charge_of(plan, sends).by_party()
    return [party for party in plan.against if isinf(compose({charge[party]: 1}, plan.delta))]


def endless(plan: Plan, sent: Sequence[Sends]) -> str:
    """Why no epsilon holds against the parties of the plan, in words."""
    reasons = []
    for sends in sent:
        parties = open_to(plan, sends)
        if not parties:
            continue
        if plan.noise == "none":
            reasons.append(f"the {sends.name} leaves without noise")
        elif not noised(plan, sends):
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
    if plan.noise == "none":
        return bare
    if not noised(plan, sends):
        return f"{bare}: one {plan.unit} moves it without bound ({plan.adjacency})"
    if _voided(plan, sends):
        return (
            f"No noise bounds what {sends.name!r} tells of a record: it reads state that was trained on the "
            "records, which each of them moves without bound"
        )
    if placement(plan, sends) == "key-holder":
        return (
            f"{bare} for the key holder, which draws that noise and could take it off a published total: "
            "leave it out of `against`"
        )
    return f"{bare} for the server, which central noise trusts: leave it out of `against`"


def _remedy(plan: Plan, sends: Sends) -> str:
    if plan.noise == "none" or noised(plan, sends):
        return ""
    option = "`update_bound` in [local]" if plan.unit == "client" else "an option such as `clip`"
    return f" Bound it, by {option}, where its protocol has one."
