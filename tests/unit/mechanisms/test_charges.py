"""What releases cost, case by case: every branch, every number and every word of a refusal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil, isfinite, sqrt
from typing import Any

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent
from support.every import every
from support.hidden_plans import hidden, lawless
from support.noises import noised, own_sigma, reach, room

from securefl.accounting.composition import compose
from securefl.accounting.events import EXPOSED, NO_COST, NON_PRIVATE, dump_charge, steps_event
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Schedule, ValueSpec
from securefl.core.errors import ConfigError
from securefl.core.grid import Grid
from securefl.core.release import PARTIES, Charge
from securefl.mechanisms.charges import (
    Protection,
    allotment,
    events_of,
    fewest_behind_an_entry,
    fewest_contributions,
    infinite_reasons,
    unbounded,
)

FREE, GAUSS, ENDLESS = NoOpDpEvent(), GaussianDpEvent(3.0), NonPrivateDpEvent()
TRAINING = GaussianDpEvent(7.0)
RECORD: dict[Any, float] = {("record", "add-remove"): 2.0, ("record", "replace-one"): 3.0}
CLIENT: dict[Any, float] = {("client", "zero-out"): 2.0, ("client", "replace-one"): 4.0}
GRID = Grid(step=2.0**-10, bound=2.0**12)
SUM = ValueSpec(name="own", reduction="sum", reveals="it", sensitivity=RECORD, grid=GRID, cohort=8)
EACH = replace(SUM, reduction="none")
TRAINED = replace(SUM, training=TRAINING)
PLAN = Plan(
    adjacency="add-remove", delta=1e-5, max_rounds=1, noise="local", noise_multiplier=3.0, corrupt=0.25,
    dropout=0.25,
)  # fmt: skip
SHARED = replace(PLAN, noise="distributed")
ALONE = replace(SHARED, corrupt=0.0, dropout=0.0)
CENTRAL = replace(PLAN, noise="central", adversaries=("key-holder", "others"))
HOLDER = hidden(
    PLAN, 8, sum="two-server", noise="key-holder", adversaries=("server", "others"), min_cohort_size=8
)
BARE = replace(PLAN, noise="none")


def allowed(plan: Plan) -> Plan:
    return replace(plan, non_private=("own",))


def refusal(plan: Plan, spec: ValueSpec = SUM) -> str:
    with pytest.raises(ConfigError) as error:
        Protection(plan, spec).charge()
    return str(error.value)


# Who pays what -----------------------------------------------------------------------------------


@every(
    ("plan", "charge"),
    [
        (PLAN, Charge(server=GAUSS, key_holder=FREE, others=GAUSS)),
        (CENTRAL, Charge(server=ENDLESS, key_holder=FREE, others=GAUSS)),
        (HOLDER, Charge(server=GAUSS, key_holder=ENDLESS, others=GAUSS)),
        (hidden(SHARED, 8, min_cohort_size=8), Charge(server=GAUSS, key_holder=FREE, others=GAUSS)),
    ],
)
def test_the_place_of_the_noise_says_against_whom_it_holds(plan: Plan, charge: Charge) -> None:
    assert Protection(plan, SUM).charge() == charge
    for trained in (True, False):
        assert Protection(plan, SUM).charge(trained=trained) == charge
    local = Charge(server=GAUSS, key_holder=FREE, others=GAUSS)
    assert Protection(plan, EACH).charge() == local, "a client noises what nobody sums"


@every("plan", [PLAN, CENTRAL, HOLDER, hidden(SHARED, 8, min_cohort_size=8)])
def test_private_training_before_a_value_is_charged_with_it(plan: Plan) -> None:
    own, both = Protection(plan, SUM).charge(), Protection(plan, TRAINED).charge()
    assert both == Charge(
        server=ComposedDpEvent((own.server, TRAINING)),
        key_holder=own.key_holder,
        others=ComposedDpEvent((own.others, TRAINING)),
    )
    assert Protection(plan, TRAINED).charge(trained=False) == own


def test_training_alone_is_charged_where_the_value_costs_nothing() -> None:
    after = replace(TRAINED, depends_on="model", sensitivity={})
    assert Protection(BARE, after).charge() == Charge(server=TRAINING, key_holder=FREE, others=TRAINING)
    assert Protection(BARE, after).charge(trained=False) == NO_COST
    still = replace(TRAINED, sensitivity={("record", "add-remove"): 0.0})
    assert Protection(BARE, still).charge() == Charge(server=TRAINING, key_holder=FREE, others=TRAINING)


def test_what_is_allowed_to_leave_unprotected_is_charged_as_that_whatever_was_trained() -> None:
    assert (
        Protection(allowed(BARE), SUM).charge() == Protection(allowed(BARE), TRAINED).charge() == NON_PRIVATE
    )
    promised = allowed(replace(HOLDER, adversaries=PARTIES))
    assert Protection(promised, SUM).charge() == Protection(promised, TRAINED).charge() == EXPOSED
    assert Protection(promised, replace(SUM, sensitivity={})).charge() == NON_PRIVATE
    assert Protection(allowed(replace(CENTRAL, adversaries=PARTIES)), SUM).charge() == NON_PRIVATE
    assert Protection(allowed(replace(HOLDER, adversaries=("key-holder",))), SUM).charge() == EXPOSED


def test_a_declared_zero_costs_nothing_and_a_value_that_reads_nothing_only_where_training_is_accounted() -> (
    None
):
    still = replace(SUM, sensitivity={("record", "add-remove"): 0.0, ("record", "replace-one"): 1.0})
    nothing = replace(SUM, sensitivity={}, depends_on="model")
    for plan in (PLAN, BARE, CENTRAL):
        assert Protection(plan, still).charge() == Protection(plan, nothing).charge() == NO_COST
    other = replace(PLAN, adjacency="replace-one")
    assert Protection(other, still).charge().server == GAUSS
    assert "leave its client without noise" in refusal(other, nothing)
    client = replace(PLAN, unit="client", adjacency="zero-out")
    assert "leave its client without noise" in refusal(client, nothing)


def test_a_client_s_bound_holds_whatever_was_trained() -> None:
    client = replace(PLAN, unit="client", adjacency="zero-out")
    for more in ({}, {"training": TRAINING}, {"depends_on": "trained-state"}):
        assert Protection(client, replace(SUM, sensitivity=CLIENT, **more)).charge().server == GAUSS  # type: ignore[arg-type]


def test_a_record_s_bound_does_not_hold_of_what_its_training_left() -> None:
    assert Protection(allowed(PLAN), replace(SUM, depends_on="trained-state")).charge() == NON_PRIVATE
    assert Protection(PLAN, replace(TRAINED, depends_on="trained-state")).charge().server == ComposedDpEvent(
        (GAUSS, TRAINING)
    )
    replacing = replace(allowed(PLAN), adjacency="replace-one")
    assert Protection(replacing, SUM).charge().server == GAUSS
    assert Protection(replacing, TRAINED).charge() == NON_PRIVATE


def test_whether_a_plan_adds_noise_to_a_value() -> None:
    assert noised(PLAN, SUM)
    assert not noised(BARE, SUM)
    assert not noised(PLAN, replace(SUM, sensitivity={}))
    assert not noised(PLAN, replace(SUM, sensitivity={("record", "add-remove"): 0.0}))
    assert noised(PLAN, replace(SUM, sensitivity={("record", "add-remove"): 1e-9}))
    assert not noised(replace(PLAN, adjacency="replace-one"), replace(SUM, sensitivity=CLIENT))


def test_events_of_a_run_are_those_of_its_rounds_and_introductions() -> None:
    spec = replace(TRAINED, schedule=Schedule(period=2, initial=1, extra=3))
    once = replace(SUM, name="once", schedule=Schedule(once=True))
    whole, alone = Protection(PLAN, spec).charge().server, Protection(PLAN, SUM).charge().server
    # 5 in rounds and 3 further ones are trained before, the introduction is not
    assert events_of(PLAN, [spec, once], "server", 10) == Counter({whole: 8, alone: 1 + 1})
    assert events_of(PLAN, [spec], "key-holder", 10) == Counter({FREE: 9})
    never = replace(SUM, schedule=Schedule(period=0))
    assert events_of(PLAN, [never], "server", 10) == Counter()
    assert dict(events_of(PLAN, [never], "server", 10)) == {}


# Shares of noise ---------------------------------------------------------------------------------


def test_a_share_is_sized_for_the_honest_survivors() -> None:
    """8 clients, 2 may be lost and 2 may collude: 4 shares are the noise."""
    units = 2.0 / 2.0**-10
    assert reach(SHARED, SUM) == units
    assert own_sigma(SHARED, SUM) == pytest.approx(sqrt((3 * units) ** 2 + 4) / 2, rel=1e-15)
    others = replace(SHARED, corrupt=0.0)
    assert own_sigma(others, SUM) == pytest.approx(sqrt(((3 * units) ** 2 + 4) / 5), rel=1e-15)
    adversaries = replace(others, adversaries=("server",))
    assert own_sigma(adversaries, SUM) == pytest.approx(sqrt(((3 * units) ** 2 + 4) / 6), rel=1e-15)
    with pytest.raises(ConfigError, match="cohorts of 'own'"):
        own_sigma(SHARED, replace(SUM, cohort=0))


def test_discreteness_takes_its_four_off_where_it_is_seen() -> None:
    """On a coarse grid the 4 is a tenth of a per cent of sigma^2: the events tell whether it is taken off."""
    coarse = replace(SUM, grid=Grid(step=2.0 / 22, bound=2.0**12))
    assert reach(SHARED, coarse) == 22
    total = (3 * 22) ** 2 + 4
    one = sqrt(total / 4 - 4) / 22
    seen = Protection(SHARED, coarse).charge()
    assert seen.server.noise_multiplier == pytest.approx(one, rel=1e-14)  # type: ignore[attr-defined]
    assert seen.others == GAUSS
    adversaries = replace(SHARED, corrupt=0.0, adversaries=("server",))
    seen = Protection(adversaries, coarse).charge()
    # 6 shares were sized to hold; another client knows one of them
    assert seen.others.noise_multiplier == pytest.approx(  # type: ignore[attr-defined]
        sqrt(5 * total / 6 - 4) / 22, rel=1e-14
    )
    corrupt = replace(SHARED, corrupt=0.25, adversaries=("server",))
    assert Protection(corrupt, coarse).charge().others == GAUSS


def test_another_client_that_knows_the_only_share_sees_the_value() -> None:
    """A cohort of 1, or of 2 of whom one may be lost: against the server alone the share is there."""
    adversaries = replace(ALONE, adversaries=("server",))
    for plan, cohort in ((adversaries, 1), (replace(adversaries, dropout=0.5), 2)):
        seen = Protection(plan, replace(SUM, cohort=cohort)).charge()
        assert seen.others == ENDLESS
        assert seen.server.noise_multiplier == pytest.approx(3.0, rel=1e-6)  # type: ignore[attr-defined]
    assert Protection(adversaries, replace(SUM, cohort=2)).charge().others != ENDLESS


def test_a_hidden_sum_shows_the_server_the_total_and_a_clear_one_each_share() -> None:
    assert Protection(hidden(SHARED, 8, min_cohort_size=8), SUM).charge().server == GAUSS
    clear = Protection(SHARED, SUM).charge().server
    assert clear.noise_multiplier == pytest.approx(1.5, rel=1e-6)  # type: ignore[attr-defined]


def test_a_grid_has_room_for_a_value_and_its_share() -> None:
    """The bound on the grid is the value's reach and 13 deviations of a share, and no less."""
    farthest = reach(SHARED, SUM) + 13.0 * own_sigma(SHARED, SUM)
    least = ceil(farthest)
    for limit in (least, least + 1):
        Protection(SHARED, replace(SUM, grid=Grid(step=2.0**-10, bound=limit * 2.0**-10))).charge()
    narrow = replace(SUM, grid=Grid(step=2.0**-10, bound=(least - 1) * 2.0**-10))
    told = refusal(SHARED, narrow)
    assert told == (
        f"Expected 'own' and its share of the noise within {least - 1} grid units, got {farthest:.3g}: the "
        "bound would cut the noise off. Take a coarser grid, or less noise."
    )
    Protection(PLAN, narrow).charge()  # local noise is cut as a whole, behind the release


def test_a_grid_too_coarse_for_the_total_is_refused() -> None:
    assert "total sigma of at least 64 grid units" in refusal(
        replace(SHARED, noise_multiplier=0.03), replace(SUM, cohort=8)
    )


@every(
    ("cohort", "declared", "fewest"),
    [
        (8, 8, 6),  # as declared
        (4, 8, 6),  # of a smaller cohort as many must answer as of the declared one
        (16, 8, 4 + 4),  # of a larger one 12 answer; 4 honest shares beside 4 that may be known
        (16, 0, 12),
        (40, 8, 30),
    ],
)
def test_the_fewest_contributions_keep_the_promised_noise(cohort: int, declared: int, fewest: int) -> None:
    spec = replace(SUM, cohort=declared)
    assert fewest_contributions(SHARED, cohort, [spec]) == max(fewest, SHARED.survivors(cohort))
    assert fewest_contributions(PLAN, cohort, [spec]) == PLAN.survivors(cohort)


def test_more_corrupt_clients_than_the_dropout_leaves_need_more_contributions() -> None:
    """In a larger cohort more may know their shares, so more must answer."""
    plan = replace(SHARED, dropout=0.5, corrupt=0.125)
    spec = replace(SUM, cohort=8)
    # T(8) = 4, of whom 1 may be known: 3 honest. In 80, T = 40 and 10 may be known: 40 covers 3 + 10.
    assert fewest_contributions(plan, 8, [spec]) == 4
    assert fewest_contributions(plan, 80, [spec]) == 40
    mild = replace(SHARED, dropout=0.8, corrupt=0.19)
    # T(10) = 2, 1 may be known: 1 honest. T(100) = 20, 19 may be known: 1 + 19.
    assert fewest_contributions(mild, 100, [replace(SUM, cohort=10)]) == 20
    hard = replace(SHARED, dropout=0.8, corrupt=0.39)
    # T(10) = 2, and 4 may be known. T(100) = 20, and 39 may be known, so 2 - 4 + 39 must answer.
    assert fewest_contributions(hard, 100, [replace(SUM, cohort=10)]) == 37


def test_the_largest_declared_cohort_of_a_noised_value_counts() -> None:
    few, many = replace(SUM, cohort=4), replace(SUM, cohort=8)
    bare = replace(SUM, cohort=100, sensitivity={})
    assert fewest_contributions(SHARED, 4, [few, many, bare]) == 6
    assert fewest_contributions(SHARED, 4, [bare]) == 3
    assert fewest_contributions(SHARED, 4, []) == 3


@every(
    ("words", "cohort", "fewest"),
    [
        ({"min_cohort_size": 2}, 8, 2 + 2 + 3),  # 2 lost, 2 that may collude, 1 that observes, and 2 more
        ({"min_cohort_size": 7}, 8, 7),
        ({"min_cohort_size": 2, "max_client_weight": 0.34}, 8, 2 + 2 + 4),
        ({"min_cohort_size": 2, "max_client_weight": 0.25}, 8, 2 + 2 + 5),
        ({"min_cohort_size": 2, "min_honest": 4}, 8, 2 + 2 + 4),
        ({"min_cohort_size": 2, "corrupt": 0.0, "dropout": 0.0}, 8, 3),
        ({"min_cohort_size": 2, "corrupt": 0.0}, 8, 2 + 3),
        ({"min_cohort_size": 2, "corrupt": 0.0, "max_client_weight": 0.9}, 8, 2 + 3),
    ],
)
def test_an_entry_needs_as_many_contributors_as_a_cohort(
    words: dict[str, Any], cohort: int, fewest: int
) -> None:
    # the words are checked for cohorts that could not be: here they stand for themselves
    plan = lawless(hidden(PLAN, 8, min_cohort_size=8), **words)
    assert fewest_behind_an_entry(plan, cohort) == fewest
    assert fewest_behind_an_entry(PLAN, cohort) == 1


def test_the_room_of_the_key_holder_s_noise() -> None:
    units = 2.0 / 2.0**-10
    assert room(HOLDER, SUM) == ceil(13 * 3 * units) + 1 == 79873
    odd = replace(SUM, sensitivity={("record", "add-remove"): 0.1})
    assert room(HOLDER, odd) == ceil(13 * 3 * 102.4) + 1 == 3995
    assert room(HOLDER, replace(SUM, sensitivity={})) == room(HOLDER, EACH) == room(PLAN, SUM) == 0


# What is told ------------------------------------------------------------------------------------


@every(
    ("plan", "spec", "start"),
    [
        (BARE, SUM, "'own' would leave its client without noise. Its protocol names no option"),
        (
            PLAN,
            replace(SUM, sensitivity={}),
            "'own' would leave its client without noise: one record moves it without bound (add-remove).",
        ),
        (
            PLAN,
            replace(SUM, depends_on="trained-state"),
            "No noise bounds what 'own' reveals of a record: it reads state that was trained on the records",
        ),
        (
            replace(HOLDER, adversaries=PARTIES),
            SUM,
            "'own' would leave its client without noise for the key holder that draws it and could subtract "
            "it: leave it out of `adversaries`. Name it in [privacy] ",
        ),
        (
            replace(CENTRAL, adversaries=PARTIES),
            SUM,
            "'own' would leave its client without noise for the server that draws it and could subtract it: "
            "leave it out of `adversaries`. Name it in [privacy] ",
        ),
        (
            replace(PLAN, adjacency="replace-one"),
            TRAINED,
            "The private training before 'own' is accounted for adding or removing one record, not for one "
            'record under replace-one. Set adjacency = "add-remove". Or name it in',
        ),
        (
            replace(PLAN, unit="client", adjacency="zero-out"),
            TRAINED,
            "The private training before 'own' is accounted for adding or removing one record, not for one "
            "client under zero-out. Leave the private training out. Or name it in",
        ),
        (
            replace(PLAN, unit="client", adjacency="zero-out"),
            replace(TRAINED, bounded_by={"client": "a bound"}),
            "The private training before 'own' is accounted for adding or removing one record, not for one "
            "client under zero-out. Leave the private training out. Per client take a bound. Or name it in",
        ),
        (
            BARE,
            replace(SUM, bounded_by={"record": "noise"}),
            "'own' would leave its client without noise. To bound it per record, take noise. Or name it in",
        ),
        (
            BARE,
            replace(SUM, bounded_by={"client": "a bound"}),
            "'own' would leave its client without noise. No option of its protocol bounds it per record; it "
            'can be bounded per client (unit = "client"), by a bound. Or name it in',
        ),
    ],
)
def test_a_refusal_says_why_and_what_to_do(plan: Plan, spec: ValueSpec, start: str) -> None:
    told = refusal(plan, spec)
    assert told.startswith(start), told
    assert told.endswith(
        'it in [privacy] non_private = ["own"] to allow that (epsilon is then infinite, and reported so).'
    )


@every(
    ("plan", "spec", "reason", "parties"),
    [
        (allowed(BARE), SUM, "the own leaves without noise", ["server", "others"]),
        (
            allowed(PLAN),
            replace(SUM, sensitivity={}),
            "one record moves the own without bound, so it is not noised",
            ["server", "others"],
        ),
        (
            allowed(PLAN),
            replace(SUM, depends_on="trained-state"),
            "the own reads state trained on the records: no bound for a record",
            ["server", "others"],
        ),
        (
            allowed(replace(CENTRAL, adversaries=PARTIES)),
            SUM,
            "the own is open to the server and the others",
            None,
        ),
        (PLAN, SUM, "there is too little noise to bound anything", []),
    ],
)
def test_an_endless_epsilon_has_its_reason(
    plan: Plan, spec: ValueSpec, reason: str, parties: list[str] | None
) -> None:
    assert infinite_reasons(plan, [spec]) == reason
    if parties is not None:
        assert [p for p in Protection(plan, spec).open_to if p != "key-holder"] == parties


def test_reasons_stand_side_by_side_for_those_that_are_open_alone() -> None:
    other = replace(SUM, name="other")
    both = replace(BARE, non_private=("own", "other"))
    assert (
        infinite_reasons(both, [SUM, other]) == "the own leaves without noise; the other leaves without noise"
    )
    assert Protection(HOLDER, SUM).open_to == []
    assert Protection(CENTRAL, SUM).open_to == []
    assert Protection(allowed(replace(HOLDER, adversaries=PARTIES)), SUM).open_to == list(PARTIES)
    client = replace(allowed(BARE), unit="client", adjacency="zero-out")
    trained = replace(SUM, sensitivity=CLIENT, depends_on="trained-state")
    assert infinite_reasons(client, [trained]) == "the own leaves without noise"
    adversaries = replace(
        ALONE, unit="client", adjacency="zero-out", adversaries=("server", "others"), dropout=0.5
    )
    assert infinite_reasons(replace(adversaries, noise="central", non_private=("own",)), [trained]) == (
        "the own is open to the server and the others"
    )


# Silence and length ---------------------------------------------------------------------------------


def test_zeros_travel_where_a_length_would_tell_of_records() -> None:
    packed = replace(SUM, packed=True)
    bare = replace(PLAN, noise="none", noise_multiplier=0.0, non_private=("own",))
    assert not Protection(PLAN, packed).sparse
    assert Protection(bare, packed).sparse
    assert not Protection(bare, SUM).sparse
    assert not Protection(hidden(bare, 8, min_cohort_size=8), packed).sparse


def test_a_run_is_allotted_every_release_that_it_may_make() -> None:
    """Rounds, extra queries and retries at their charge, and initial queries without that of the training."""
    plan = replace(allowed(BARE), max_rounds=5, max_retries=2)
    spec = replace(SUM, sensitivity={}, schedule=Schedule(extra=1))
    assert list(allotment(plan, [spec]).values()) == [5 + 1 + 2]
    assert list(allotment(plan, [replace(spec, reduction="none")]).values()) == [5 + 1]
    noised = replace(PLAN, max_rounds=5, max_retries=2)
    asked = allotment(noised, [replace(TRAINED, schedule=Schedule(initial=2))])
    assert asked == {
        dump_charge(Protection(noised, TRAINED).charge()): 5 + 2,
        dump_charge(Protection(noised, TRAINED).charge(trained=False)): 2 + 2,
    }
    assert list(allotment(replace(noised, max_releases={"own": 6}), [SUM]).values()) == [6]


def test_an_allotment_has_what_costs_something_and_may_happen() -> None:
    plan = replace(allowed(PLAN), max_rounds=5, max_retries=2)
    assert [*allotment(plan, [replace(SUM, sensitivity={("record", "add-remove"): 0.0})])] == []
    assert list(allotment(plan, [TRAINED]).values()) == [5 + 2]
    introduced = allotment(plan, [replace(TRAINED, schedule=Schedule(period=0, initial=1))])
    assert dict(introduced) == {dump_charge(Protection(plan, TRAINED).charge(trained=False)): 1 + 2}
    limited = replace(SUM, reduction="none", sensitivity={}, schedule=Schedule(max_releases=3))
    assert list(allotment(plan, [limited]).values()) == [3]
    # A ledger counts noised releases alone against the schedule.
    bare = replace(SUM, sensitivity={})
    assert list(allotment(replace(plan, max_releases={"own": 6}), [bare]).values()) == [5 + 2]


def test_what_is_computed_from_an_accounted_model_is_post_processed() -> None:
    client = replace(BARE, unit="client", adjacency="zero-out")
    asked = [(PLAN, SUM), (BARE, SUM), (BARE, TRAINED), (client, TRAINED)]
    assert [Protection(*own).post_processed for own in asked] == [True, False, True, False]


def test_a_value_without_noise_has_no_charge_of_noise_and_no_deviation() -> None:
    for bare in (Protection(BARE, SUM).mechanism, Protection(PLAN, replace(SUM, sensitivity={})).mechanism):
        assert (bare.charge(), bare.deviation(5)) == (None, 0.0)


def test_a_sensitivity_is_that_of_the_plans_adjacency() -> None:
    """The spec declares 2 for adding a record and 3 for replacing one."""
    assert reach(SHARED, SUM) == 2.0 / GRID.step
    assert reach(replace(SHARED, adjacency="replace-one"), SUM) == 3.0 / GRID.step


def test_silence_tells_one_party_though_another_sees_everything() -> None:
    """Central noise: the server knows the totals, and silence would tell the others uncharged."""
    charge = Protection(CENTRAL, SUM).charge()
    assert (charge.server, charge.others) == (ENDLESS, GAUSS)
    assert unbounded([charge], ("server",))
    assert unbounded([Protection(CENTRAL, TRAINED).charge()], ("server",)), (
        "training beside it bounds nothing"
    )
    assert not unbounded([charge], ("others",))
    assert not unbounded([charge], ("server", "others"))
    assert not unbounded([], ("server",))


def test_noise_on_a_value_whose_weight_moves_with_the_record_is_refused() -> None:
    """Weighted by counts, neighbours were 2.0 apart where 1.0 was declared."""
    one = {("record", "add-remove"): 1.0, ("record", "replace-one"): 1.0}
    spec = ValueSpec(name="step", reduction="sum", reveals="", sensitivity=one, weighs="counts")
    words: dict[str, Any] = {"noise": "local", "noise_multiplier": 1.0, "delta": 1e-5, "max_rounds": 1}
    plan = Plan(**words, adjacency="add-remove", weights={"step": "counts"})
    with pytest.raises(ConfigError, match="public_num_examples"):
        Protection(plan, spec).charge()
    for remedy in ({"public_num_examples": 100}, {"weights": {}}, {"adjacency": "replace-one"}):
        assert isfinite(compose({Protection(replace(plan, **remedy), spec).charge().server: 1}, 1e-5))


@every(
    "free",
    [
        {"sensitivity": {("record", "add-remove"): 0.0}},
        {"depends_on": "model", "training": steps_event(0.1, 1.0, 5)},
    ],
)
def test_the_attack_a_weight_that_tells_a_private_count_beside_a_value_that_costs_nothing(free: Any) -> None:
    """A constant 1 that is weighed by counts tells n_k / n exactly, and was charged an epsilon of 0."""
    spec = ValueSpec(name="one", reduction="sum", reveals="", weighs="counts", **free)
    words: dict[str, Any] = {"delta": 1e-5, "max_rounds": 1, "weights": {"one": "counts"}}
    plan = Plan(**words, adjacency="add-remove")
    with pytest.raises(ConfigError, match=r"by the client's number of records.*public_num_examples"):
        Protection(plan, spec).charge()
    assert Protection(replace(plan, non_private=("one",)), spec).charge() == NON_PRIVATE
    for remedy in ({"public_num_examples": 100}, {"weights": {}}):
        charge = Protection(replace(plan, **remedy), spec).charge()
        assert charge.server == free.get("training", NO_COST.server)


def test_noise_of_no_width_is_refused_by_its_key() -> None:
    one = {("record", "add-remove"): 1.0}
    spec = ValueSpec(name="step", reduction="sum", reveals="", sensitivity=one)
    plan = Plan(noise="local", adjacency="add-remove", delta=1e-5, max_rounds=1)
    with pytest.raises(ConfigError, match="`noise_multiplier` above 0"):
        Protection(plan, spec).charge()
    assert Protection(replace(plan, noise_multiplier=1.0), spec).charge().server == GaussianDpEvent(1.0)
