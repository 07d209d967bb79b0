"""One suite for every mechanism, and a mechanism from outside the package in one file.

A charge that is too small for its noise cannot be refused while a study runs: a party sees declarations, and
no variance. So the suite draws the noise and holds it against the charge. Each of its statistical tests has a
false alarm of 1e-9, under injected randomness, so it passes always or never; nine tenths of the noise, noise
that is not Gaussian, and noise that repeats are caught.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent, NoOpDpEvent
from scipy import stats
from support.every import every
from support.hidden_plans import hidden
from support.private_studies import client_level
from support.tiny_study import composed, run
from support.watched_sums import Watched

from securefl.accounting.events import EXPOSED, NO_COST, NON_PRIVATE, dump_charge
from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.grid import Grid
from securefl.core.keys import SecretKey
from securefl.core.release import KEY_HOLDER, OTHERS, PARTIES, SERVER, Charge, ReleaseKey
from securefl.dp.gaussian import TAIL, Integers, rounded
from securefl.dp.noise import Source
from securefl.engine.aggregator import SecureAggregator
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.engine.server import ServerParty
from securefl.mechanisms import registry
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.mechanism import Headroom, Local, Mechanism, NoNoise
from securefl.mechanisms.protecting import protect
from securefl.mechanisms.registry import OURS, kind_of, names
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord

ENTRIES, ALARM = 40_000, 1e-9
SPEC = ValueSpec(
    name="own",
    reduction="sum",
    reveals="it",
    sensitivity={("client", "zero-out"): 1.0},
    grid=Grid(step=2.0**-10, bound=2.0**9),
    cohort=10,
)
PLAN = Plan(
    noise_multiplier=2.0,
    corrupt=0.2,
    dropout=0.2,
    unit="client",
    adjacency="zero-out",
    delta=1e-5,
    max_rounds=1,
)


# A mechanism from outside ---------------------------------------------------------------------------


class Twice(Mechanism):
    """Each client noises its value, and the server noises the total once more, before others see it.

    The server sees at least a client's own noise, sigma. The others see that and the server's: sqrt(2) sigma.
    """

    legend: ClassVar[str] = "noise by each client and by the server"
    total_by: ClassVar[str | None] = SERVER

    def charge(self) -> Charge | None:
        once = GaussianDpEvent(self.plan.noise_multiplier)
        again = GaussianDpEvent(sqrt(2) * self.plan.noise_multiplier)
        return Charge(server=once, key_holder=NoOpDpEvent(), others=again)

    def headroom(self) -> Headroom:
        return Headroom(share=None)

    def client_noise(self, size: int, source: Source) -> Integers | None:
        return rounded(size, self.sigma, source)

    def total_noise(self, party: str, size: int, source: Source) -> Integers | None:
        return rounded(size, self.sigma, source) if party == SERVER else None

    def deviation(self, contributions: int) -> float:
        return super().deviation(contributions) * sqrt(contributions + 1)

    def learns(self, party: str) -> str:
        return ", with noise, before it adds its own" if party == SERVER else ""


def install(patch: pytest.MonkeyPatch, kind: Any, word: str = "twice") -> None:
    """As a distribution would be that has this kind in the entry-point group `securefl.mechanisms`."""
    contribution(patch, {word: kind})


def contribution(patch: pytest.MonkeyPatch, kinds: Mapping[str, Any]) -> None:
    class Point(EntryPoint):
        def load(self) -> Any:
            return kinds[self.name]

    points = tuple(Point(word, f"{__name__}:{word}", registry.GROUP) for word in kinds)
    patch.setattr(registry, "entry_points", lambda group: points)
    registry._from_outside.cache_clear()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(monkeypatch, Twice)
    yield
    registry._from_outside.cache_clear()


# What holds of every mechanism ------------------------------------------------------------------------


def source(seed: str) -> Source:
    return Source(SecretKey(seed.encode().rjust(32, b"0")))


def draws(plan: Plan, spec: ValueSpec, clients: int) -> tuple[list[Integers], dict[str, Integers]]:
    """The noise of so many clients, and that of each party for the total; zeros where none is drawn."""
    mechanism, none = Protection(plan, spec).mechanism, np.zeros(ENTRIES, np.int64)
    own = [mechanism.client_noise(ENTRIES, source(f"client {k}")) for k in range(clients)]
    total = {party: mechanism.total_noise(party, ENTRIES, source(party)) for party in PARTIES}
    return [none if n is None else n for n in own], {p: none if n is None else n for p, n in total.items()}


def unknown_noise(plan: Plan, spec: ValueSpec, party: str, cohort: int) -> Integers:
    """What is on a value that a party sees and does not know: fewest contributions, most that collude."""
    fewest = max(plan.survivors(cohort), Protection(plan, spec).mechanism.min_contributions(cohort))
    own, total = draws(plan, spec, fewest)
    of_others = sum(noise for drawer, noise in total.items() if drawer != party)
    if party == SERVER and not plan.hidden:  # before anybody has summed, or noised the sum
        return own[0]
    known = plan.colluding(cohort) if party == SERVER else max(plan.colluding(cohort), 1)
    # Whoever noises all of a value needs no others: then the victim's own noise is what surely remains.
    assert fewest > known
    return np.sum(own[known:], axis=0) + of_others


def sigma_of(event: DpEvent, spec: ValueSpec, plan: Plan) -> float | None:
    """The deviation on the grid that an event promises; None if it promises none."""
    if isinstance(event, NonPrivateDpEvent | NoOpDpEvent):
        return None
    assert isinstance(event, GaussianDpEvent)
    return float(event.noise_multiplier * spec.sensitivity[plan.unit, plan.adjacency] / spec.grid.step)


def require_gaussian(noise: Integers, sigma: float) -> None:
    """AssertionError for noise below sigma, of another shape, or whose entries hang together."""
    spread = float(np.sqrt(np.mean(noise.astype(float) ** 2)))
    assert len(noise) * (spread / sigma) ** 2 > stats.chi2.ppf(ALARM, len(noise)), "less noise than charged"
    assert stats.kstest(noise / spread, "norm").pvalue > ALARM, "another shape"
    most = stats.norm.isf(ALARM / 2) / sqrt(len(noise))
    for lag in (1, 2, 3, len(noise) // 2):
        alike = np.mean(noise[lag:] * noise[:-lag]) / spread**2
        assert abs(alike) < most * sqrt(len(noise) / (len(noise) - lag)), "entries that hang together"


def require_charge_bounds_noise(plan: Plan, spec: ValueSpec) -> None:
    charge = Protection(plan, spec).charge()
    for party in (SERVER, OTHERS):
        sigma = sigma_of(charge.by_party()[party], spec, plan)
        if sigma is not None:
            require_gaussian(unknown_noise(plan, spec, party, spec.cohort), sigma)
    drawn = draws(plan, spec, 1)[1][KEY_HOLDER].any()
    assert isinstance(charge.key_holder, NonPrivateDpEvent) == bool(drawn), "what it draws, it can take off"


def require_headroom(plan: Plan, spec: ValueSpec) -> None:
    """Noise of 13 deviations has its place, beside a value and beside a total."""
    head = Protection(plan, spec).mechanism.headroom()
    [own], total = draws(plan, spec, 1)
    if head.share is not None:
        assert head.share >= 0.97 * TAIL * own.std(), "a share would be cut off"
    assert head.total >= 0.97 * TAIL * total[KEY_HOLDER].std(), "a total would wrap"


def require_deviation(plan: Plan, spec: ValueSpec) -> None:
    for contributions in (1, 4, 9):
        own, total = draws(plan, spec, contributions)
        noise = (np.sum(own, axis=0) + sum(total.values())) * spec.grid.step
        stated = Protection(plan, spec).mechanism.deviation(contributions)
        low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], ENTRIES)
        assert low < np.sum((noise / stated) ** 2) < high


TRUST = {"central": ("key-holder", "others"), "key-holder": ("server", "others")}
HIDING = {
    "local": ("clear", "masked"),
    "distributed": ("clear", "masked", "two-server"),
    "central": ("clear", "masked"),
    "key-holder": ("two-server",),
    "twice": ("clear", "masked", "ckks"),
}
CASES = [(word, scheme) for word, ways in HIDING.items() for scheme in ways]


def planned(word: str, scheme: str, **changes: Any) -> Plan:
    words = {"noise": word, "adversaries": TRUST.get(word, PARTIES)} | changes
    return (
        replace(PLAN, **words)
        if scheme == "clear"
        else hidden(PLAN, 10, sum=scheme, min_cohort_size=10, **words)
    )


def test_every_mechanism_of_this_package_is_held_to_the_contract() -> None:
    assert set(HIDING) == {*OURS, "twice"}


@pytest.mark.parametrize(("word", "scheme"), CASES)
class TestContract:
    """Of every mechanism, under every sum that it goes with."""

    def test_the_noise_that_a_party_does_not_know_bounds_what_it_is_charged(
        self, word: str, scheme: str
    ) -> None:
        require_charge_bounds_noise(planned(word, scheme), SPEC)

    def test_its_charge_holds_in_smaller_and_larger_cohorts(self, word: str, scheme: str) -> None:
        plan = planned(word, scheme)
        sigma = sigma_of(Protection(plan, SPEC).charge().others, SPEC, plan)
        assert sigma is not None
        for cohort in (6, 14):
            fewest = max(plan.survivors(cohort), Protection(plan, SPEC).mechanism.min_contributions(cohort))
            if fewest <= cohort:  # a smaller cohort than declared may hold too few for any sum
                require_gaussian(unknown_noise(plan, SPEC, OTHERS, cohort), sigma)

    def test_its_charge_is_one_that_a_ledger_adds_up(self, word: str, scheme: str) -> None:
        plan = planned(word, scheme)
        assert dump_charge(Protection(plan, SPEC).charge()) == dump_charge(Protection(plan, SPEC).charge())

    def test_where_it_trusts_a_party_of_the_promise_nothing_is_bounded(self, word: str, scheme: str) -> None:
        plan = planned(word, scheme, adversaries=PARTIES)
        mechanism = Protection(plan, SPEC).mechanism
        assert (mechanism.charge() is None) == (word in TRUST)
        if word in TRUST:
            with pytest.raises(ConfigError, match="out of `adversaries`"):
                Protection(plan, SPEC).charge()

    def test_its_noise_has_its_head_room(self, word: str, scheme: str) -> None:
        require_headroom(planned(word, scheme), SPEC)

    def test_its_deviation_is_that_of_the_total(self, word: str, scheme: str) -> None:
        require_deviation(planned(word, scheme), SPEC)

    def test_the_same_source_draws_the_same_and_another_another(self, word: str, scheme: str) -> None:
        (one, other), total = draws(planned(word, scheme), SPEC, 2)
        again, total_again = draws(planned(word, scheme), SPEC, 2)
        for noise, same in ((one, again[0]), *((total[p], total_again[p]) for p in PARTIES)):
            np.testing.assert_array_equal(noise, same)
        if one.any():
            assert abs(np.corrcoef(one, other)[0, 1]) < stats.norm.isf(ALARM / 2) / sqrt(ENTRIES)

    def test_the_party_that_it_names_draws_for_totals_and_no_other(self, word: str, scheme: str) -> None:
        mechanism = Protection(planned(word, scheme), SPEC).mechanism
        drawing = {p for p in PARTIES if mechanism.total_noise(p, 3, source(p)) is not None}
        assert drawing == ({mechanism.total_by} if mechanism.total_by else set())

    def test_it_says_what_each_party_learns(self, word: str, scheme: str) -> None:
        mechanism = Protection(planned(word, scheme), SPEC).mechanism
        said = {party: mechanism.learns(party) for party in PARTIES}
        assert said[SERVER]
        assert mechanism.total_by is None or said[mechanism.total_by]
        assert kind_of(word).legend

    def test_too_few_contributions_are_whole_numbers(self, word: str, scheme: str) -> None:
        mechanism = Protection(planned(word, scheme), SPEC).mechanism
        found = [mechanism.min_contributions(cohort) for cohort in range(1, 40)]
        assert all(type(n) is int and n >= 0 for n in found)

    def test_a_number_that_nobody_sums_is_noised_by_its_client(self, word: str, scheme: str) -> None:
        assert type(Protection(planned(word, scheme), replace(SPEC, reduction="none")).mechanism) is Local

    def test_what_declares_no_sensitivity_is_not_noised(self, word: str, scheme: str) -> None:
        plan, bare = planned(word, scheme, non_private=("own",)), replace(SPEC, sensitivity={})
        mechanism = Protection(plan, bare).mechanism
        assert isinstance(mechanism, NoNoise)
        assert Protection(plan, bare).charge() == NON_PRIVATE
        assert mechanism.client_noise(3, source("a")) is mechanism.total_noise(SERVER, 3, source("b")) is None


# What the contract catches -----------------------------------------------------------------------------


class Thrifty(Twice):
    """Charged as all of the noise, of which it draws nine tenths."""

    def client_noise(self, size: int, source: Source) -> Integers | None:
        return rounded(size, 0.9 * self.sigma, source)


class Coin(Twice):
    """Of the right deviation, and two values."""

    def client_noise(self, size: int, source: Source) -> Integers | None:
        return round(self.sigma) * (2 * (source.words(size) % np.uint64(2)).astype(np.int64) - 1)


class Repeating(Twice):
    """Every two entries have one noise: their difference is bare."""

    def client_noise(self, size: int, source: Source) -> Integers | None:
        return np.repeat(rounded(size // 2, self.sigma, source), 2)


class Generous(Twice):
    """The others are charged for three draws, of which there are two."""

    def charge(self) -> Charge | None:
        own = super().charge()
        assert own is not None
        return replace(own, others=GaussianDpEvent(sqrt(3) * self.plan.noise_multiplier))


@every(
    ("kind", "says"),
    [
        (Thrifty, "less noise than charged"),
        (Coin, "another shape"),
        (Repeating, "entries that hang together"),
    ],
)
def test_noise_that_is_less_than_its_charge_says_is_caught(
    kind: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, kind)
    with pytest.raises(AssertionError, match=says):
        require_charge_bounds_noise(planned("twice", "clear"), SPEC)


def test_a_charge_that_is_too_small_for_another_party_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one contribution: beside others' noise a total has more of it."""
    install(monkeypatch, Generous)
    plan, alone = planned("twice", "clear", corrupt=0.0, dropout=0.0), replace(SPEC, cohort=2)
    with pytest.raises(AssertionError, match="less noise than charged"):
        require_charge_bounds_noise(plan, alone)
    install(monkeypatch, Twice)
    require_charge_bounds_noise(plan, alone)


# A study and an exchange with it --------------------------------------------------------------------------

HIDDEN = {"sum": '"masked"', "dropout": "0.0", "corrupt": "0.0"}


@every("scheme", ["clear", "masked"])
def test_a_study_runs_with_a_mechanism_from_outside(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = client_level(noise='"twice"', rounds=1, **({} if scheme == "clear" else HIDDEN))
    watched = Watched(monkeypatch)
    finished = run(study, tmp_path)
    algorithm, plan = composed(study)
    [contribution] = algorithm.contributions
    assert (plan.sum, plan.noise) == (scheme, "twice")
    assert not any(record["rejected_from"] or record["abstained"] for record in finished.records)
    [(header, _, answers)] = watched.asked
    left = np.sum(watched.left(header, contribution.spec.name, answers), axis=0)
    added = (
        np.rint(answers.totals[contribution.spec.name].value / contribution.spec.grid.step).astype(np.int64)
        - left
    )
    sigma = plan.noise_multiplier * 0.5 / contribution.spec.grid.step
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], added.size)
    assert low < np.sum((added / sigma) ** 2) < high, "the server's noise"
    server, others = (finished.records[-1]["epsilon"][party] for party in (SERVER, OTHERS))
    assert 0 < others < 0.8 * server < np.inf


@every("scheme", ["clear", "masked", "ckks", "two-server"])
def test_an_exchange_goes_with_it(scheme: str, tmp_path: Path) -> None:
    plan = planned("twice", scheme, corrupt=0.0, dropout=0.0)
    given = ClientFunction(
        SPEC, lambda context: Value(integers=np.full(2000, 7, np.int64), step=SPEC.grid.step)
    )
    records = [(np.ones((1, 1)), np.zeros(1))] * 10
    query = CohortQuery(cohort=tuple(range(10)), broadcast=np.zeros(0, np.float32), sums=(Sum(SPEC, 2000),))
    with SecureAggregator(plan, [given], records, ledger=tmp_path / "ledger.sqlite") as aggregator:
        answers = aggregator.query(query)
        assert aggregator.ledger.worst(OTHERS) < aggregator.ledger.worst(SERVER) < np.inf
    noise = np.rint(answers.totals["own"].value / SPEC.grid.step).astype(np.int64) - 70
    require_gaussian(noise, sqrt(11) * 2.0 / SPEC.grid.step * 0.999)


# What is refused -------------------------------------------------------------------------------------------


def defect(**changes: Any) -> Any:
    """`Twice` with these members in place of its own."""
    return type("Defect", (Twice,), changes)


def released(plan: Plan, value: int = 0) -> Any:
    key = ReleaseKey("client-0000", bytes(32), 1, 0, 0, "own")
    return protect(
        Protection(plan, SPEC), Value(integers=np.full(50, value), step=SPEC.grid.step), key=key, weight=1.0
    )


@every(
    ("changes", "says"),
    [
        ({"charge": lambda own: GaussianDpEvent(2.0)}, "a Charge or None of `charge`"),
        ({"charge": lambda own: (NoOpDpEvent(),) * 3}, "a Charge or None of `charge`"),
        (
            {"charge": lambda own: replace(NO_COST, server=LaplaceDpEvent(2.0))},
            "a charge of events that a ledger adds up",
        ),
        ({"charge": lambda own: replace(NO_COST, others=2.0)}, "a charge of events that a ledger adds up"),
        ({"min_contributions": lambda own, cohort: -1}, "a whole number of at least 0"),
        ({"min_contributions": lambda own, cohort: 0.8 * cohort}, "a whole number of at least 0"),
        ({"min_contributions": lambda own, cohort: True}, "a whole number of at least 0"),
        ({"headroom": lambda own: 5}, "a Headroom of whole numbers"),
        ({"headroom": lambda own: Headroom(share=2.5)}, "a Headroom of whole numbers"),  # type: ignore[arg-type]
        ({"headroom": lambda own: Headroom(total=-1)}, "a Headroom of whole numbers"),
        ({"headroom": lambda own: Headroom(share=2**19)}, "a `share` below the grid's 524288 units"),
        ({"deviation": lambda own, n: float("nan")}, "a finite `deviation`"),
        ({"deviation": lambda own, n: -1.0}, "a finite `deviation`"),
        ({"deviation": lambda own, n: None}, "a finite `deviation`"),
        ({"noised": False}, "`noised` as True"),
        ({"learns": lambda own, party: None}, "words of `learns`"),
        ({"participation": 3}, "that a ledger enforces"),
        ({"participation": 3.5}, "that a ledger enforces"),
        ({"__init__": lambda own, plan, spec: setattr_(own, plan, spec)}, "`total_by` as of its kind"),
    ],
)
def test_a_declaration_that_cannot_hold_is_refused_before_a_ledger_opens(
    changes: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, defect(**changes))
    plan = planned("twice", "clear")
    with pytest.raises(ConfigError, match=says) as refusal:
        SecureAggregator(
            plan, [ClientFunction(SPEC, lambda context: Value())], [], ledger=tmp_path / "ledger.sqlite"
        )
    assert "from the mechanism 'twice' for 'own'" in str(refusal.value)
    assert not list(tmp_path.iterdir())


def setattr_(own: Any, plan: Plan, spec: ValueSpec) -> None:
    """Of one that names another party than its kind."""
    for name, value in {"plan": plan, "spec": spec, "total_by": None}.items():
        object.__setattr__(own, name, value)


@every(("most", "held"), [(3, {"own": 3}), (3, {"own": 2}), (None, {})])
def test_a_participation_that_the_ledger_s_schedule_holds_is_taken(
    most: int | None, held: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, defect(participation=most))
    plan = planned("twice", "clear", max_releases=held)
    assert Protection(plan, SPEC).charge()
    assert (plan.terms().max_releases or {}).get("own", 0) <= (most or 0)
    if most is not None:
        with pytest.raises(ConfigError, match="that a ledger enforces"):
            Protection(replace(plan, max_releases={"own": 4}), SPEC).charge()


@every(
    ("noise", "says"),
    [
        (np.zeros(50), "int64 noise of shape .50,.* got .float64"),
        (np.zeros(50, np.int32), "int64 noise of shape .50,.* got .int32"),
        (np.zeros(49, np.int64), r"int64 noise of shape .50,.* got .int64 of shape \(49,\)"),
        (np.zeros((50, 1), np.int64), "int64 noise of shape"),
        ([0] * 50, "int64 noise of shape"),
        (np.full(50, 6, np.int64), "within its own headroom of 5 grid units"),
        (np.full(50, -6, np.int64), "within its own headroom of 5 grid units"),
        (np.full(50, -(2**63), np.int64), "within its own headroom of 5 grid units"),
        (np.full(50, 5, np.int64), None),
        (np.full(50, -5, np.int64), None),
    ],
)
def test_noise_of_another_form_or_beyond_its_head_room_is_not_released(
    noise: Any, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends of the headroom itself are released as they are, at the end of the grid too."""
    install(
        monkeypatch,
        defect(headroom=lambda own: Headroom(share=5, total=5), client_noise=lambda own, *drawn: noise),
    )
    plan = planned("twice", "clear")
    if says is None:
        np.testing.assert_array_equal(released(plan)._numbers, noise)
        for end in (2**40, -(2**40)):
            inside = np.sign(end) * (SPEC.grid.limit - 5)
            np.testing.assert_array_equal(released(plan, end)._numbers, inside + noise)
        return
    with pytest.raises(LocalProtocolError, match=says) as refusal:
        released(plan)
    assert "from the mechanism 'twice' for 'own'" in str(refusal.value)


class ByHolder(Twice):
    """Noise by the key holder of a two-server sum, in place of the server's."""

    total_by: ClassVar[str | None] = KEY_HOLDER
    size: ClassVar[int] = 100

    def headroom(self) -> Headroom:
        return Headroom(share=None, total=100)

    def total_noise(self, party: str, size: int, source: Source) -> Integers | None:
        return np.full(size, self.size, np.int64) if party == KEY_HOLDER else None


def two_server(tmp_path: Path) -> Any:
    plan = planned("twice", "two-server", corrupt=0.0, dropout=0.0)
    spec = replace(SPEC, grid=Grid(step=2.0**-3, bound=2.0**5))
    given = ClientFunction(
        spec, lambda context: Value(integers=np.full(3, 200, np.int64), step=spec.grid.step)
    )
    records = [(np.ones((1, 1)), np.zeros(1))] * 10
    query = CohortQuery(cohort=tuple(range(10)), broadcast=np.zeros(0, np.float32), sums=(Sum(spec, 3),))
    with SecureAggregator(plan, [given], records, ledger=tmp_path / "ledger.sqlite") as aggregator:
        return aggregator.query(query).totals["own"].value / spec.grid.step


def test_a_total_has_room_for_the_noise_that_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, ByHolder)
    assert np.abs(two_server(tmp_path) - 2100).max() < 13 * 16 * sqrt(10)


@every("size", [101, -101, 2**40])
def test_a_total_whose_noise_is_more_than_declared_is_not_told(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could wrap, and nobody would see it. The key holder refuses, whatever the total is."""
    install(monkeypatch, type("Beyond", (ByHolder,), {"size": size}))
    with pytest.raises(LocalProtocolError, match="headroom of 100 grid"):
        two_server(tmp_path)


@every(
    ("changes", "party", "says"),
    [
        ({"total_noise": lambda own, party, size, source: None}, SERVER, "noise for totals by server"),
        (
            {"total_noise": lambda own, party, size, source: np.zeros(size, np.int64)},
            KEY_HOLDER,
            "noise for totals by server",
        ),
        ({"total_noise": lambda own, party, size, source: np.zeros(size)}, SERVER, "int64 noise of shape"),
        (
            {"total_by": None, "total_noise": lambda own, *asked: np.zeros(3, np.int64)},
            SERVER,
            "noise for totals by no party",
        ),
    ],
)
def test_a_total_gets_noise_by_the_party_that_is_declared_or_is_not_told(
    changes: Any, party: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, defect(**changes))
    with pytest.raises(LocalProtocolError, match=says):
        Protection(planned("twice", "clear"), SPEC).mechanism.total_noise(party, 3, source("a"))


def test_noise_that_nobody_draws_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is charged, and would be nowhere."""
    install(monkeypatch, defect(total_by=None, client_noise=lambda own, *drawn: None))
    with pytest.raises(LocalProtocolError, match="or the key holder draws"):
        released(planned("twice", "clear"))


@every("changes", [{"legend": ""}, {"legend": None}, {"mutual": 1}, {"total_by": "others"}])
def test_a_kind_without_what_a_plan_is_checked_by_is_refused(
    changes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, defect(**changes))
    with pytest.raises(ConfigError, match="mechanism 'twice'"):
        Protection(planned("twice", "clear"), SPEC).charge()


def test_an_object_that_makes_no_mechanism_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, SimpleNamespace(legend="noise", mutual=False, total_by=None))
    with pytest.raises(ConfigError, match="mechanism 'twice'"):
        Protection(planned("twice", "clear"), SPEC).charge()


def test_a_mechanism_s_own_refusal_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(own: Any) -> None:
        raise ConfigError("too coarse for it")

    install(monkeypatch, defect(check=refuse))
    with pytest.raises(ConfigError, match="too coarse for it"):
        Protection(planned("twice", "clear"), SPEC).charge()


def test_a_mechanism_may_say_that_no_bound_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, defect(charge=lambda own: None))
    plan = planned("twice", "clear")
    with pytest.raises(ConfigError, match="non_private"):
        Protection(plan, SPEC).charge()
    assert Protection(replace(plan, non_private=("own",)), SPEC).charge() in (NON_PRIVATE, EXPOSED)


def test_an_empty_vector_has_empty_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.zeros(0, np.int64)
    install(
        monkeypatch, defect(headroom=lambda own: Headroom(share=5), client_noise=lambda own, *asked: drawn)
    )
    key = ReleaseKey("client-0000", bytes(32), 1, 0, 0, "own")
    value = Value(integers=drawn, step=SPEC.grid.step)
    assert protect(Protection(planned("twice", "clear"), SPEC), value, key=key, weight=1.0)._numbers.size == 0


# Which word is whose ---------------------------------------------------------------------------------


def test_no_other_distribution_takes_the_place_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    contribution(monkeypatch, {"local": Twice, "none": Twice, "distributed": Twice})
    assert {word: kind_of(word) for word in OURS} == OURS
    assert isinstance(Protection(planned("none", "clear"), SPEC).mechanism, NoNoise)
    assert names() == ("none", "local", "distributed", "central", "key-holder")


def test_two_distributions_with_one_word_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("mine", f"{home}:Mine", registry.GROUP) for home in ("one", "other")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with pytest.raises(ConfigError, match="one:Mine and other:Mine"):
        kind_of("mine")


@every("value", ["nothing.there:Mine", "securefl.mechanisms.mechanism:Nobody"])
def test_a_distribution_that_is_broken_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", value, registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    with pytest.raises(ConfigError, match=f"Expected the mechanism 'mine' in {value}"):
        kind_of("mine")


RECORDS = [(np.ones((1, 1)), np.zeros(1))]


@every(
    ("changes", "says"),
    [
        (
            {"noise": "centrl"},
            r"noise among none, local, distributed, central, key-holder, twice, got 'centrl' "
            r"\(did you mean `central`\?\)",
        ),
        ({"noise": "key_holder"}, r"got 'key_holder' \(did you mean `key-holder`\?\)"),
        ({"noise": ""}, "got ''"),
        ({"noise": "distributed", "corrupt": None}, "Expected `corrupt`"),
        ({"noise": "key-holder"}, 'sum = "two-server" with noise = "key-holder", got \'clear\''),
    ],
)
@every("spec", [SPEC, replace(SPEC, sensitivity={}), None])
def test_a_plan_that_is_made_by_hand_is_refused_before_anything(
    changes: Any, says: str, spec: ValueSpec | None, tmp_path: Path
) -> None:
    """By every party, whatever is sent: no ledger is opened, and nothing is charged or released."""
    plan = replace(PLAN, non_private=("own",), **changes)
    given = [] if spec is None else [ClientFunction(spec, lambda context: Value())]
    spec = {} if spec is None else {"own": spec}
    with pytest.raises(ConfigError, match=says):
        SecureAggregator(plan, given, RECORDS, ledger=tmp_path / "ledger.sqlite")
    assert not list(tmp_path.iterdir())
    record = OwnRecord(SERVER, Journal())
    with pytest.raises(ConfigError, match=says):
        ServerParty(plan, spec, record, clients=1)
    with pytest.raises(ConfigError, match=says):
        KeyHolderParty(plan, spec, record)
    with pytest.raises(ConfigError, match=says):
        ClientParty(plan, given, Ledger(None, plan.terms()), Journal(), {}, rng=lambda *place: None)  # type: ignore[arg-type, return-value]
    if spec is not None:
        with pytest.raises(ConfigError, match=says):
            Protection(plan, spec).charge()
        with pytest.raises(ConfigError, match=says):
            _ = Protection(plan, spec).mechanism


def test_a_study_says_the_nearest_word() -> None:
    with pytest.raises(ConfigError, match=r"'twic' .*`twice`"):
        client_level(noise='"twic"')
