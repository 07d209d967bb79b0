"""Clients that take part by secret draws of their own: the draw, its charge, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent
from scipy.stats import beta, norm
from support.every import every
from support.hidden_plans import hidden

from securefl.accounting import Curve
from securefl.accounting.composition import deltas
from securefl.accounting.events import History, dump_charge, load_charge, steps_event
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery, Sum, Total, Value, ValueSpec
from securefl.core.errors import ConfigError
from securefl.core.grid import Grid
from securefl.core.keys import SecretKey
from securefl.core.release import Charge, ReleaseKey
from securefl.core.wire import Header
from securefl.mechanisms import protecting
from securefl.mechanisms.charges import Protection, events_of
from securefl.mechanisms.mechanism import Central
from securefl.mechanisms.protecting import protect, takes_part
from securefl.mechanisms.totals import with_noise
from securefl.training.jobs import with_model

Q, Z, ROUNDS = 0.25, 0.8, 12
GRID = Grid(step=2.0**-10, bound=64.0)
SPEC = ValueSpec(
    name="own",
    reduction="sum",
    reveals="it",
    sensitivity={("client", "zero-out"): 1.0, ("client", "replace-one"): 2.0},
    grid=GRID,
)
PLAN = Plan(
    noise="central",
    noise_multiplier=Z,
    sampling_rate=Q,
    unit="client",
    adjacency="zero-out",
    delta=1e-3,
    adversaries=("others",),
    max_rounds=ROUNDS,
)
OWN = Protection(PLAN, SPEC)
SECRET = SecretKey(b"a client's own secret of a round")
KEY = ReleaseKey("client-0", bytes(32), 1, 0, 0, "own")


def secret(number: int) -> SecretKey:
    return SecretKey(number.to_bytes(32, "big"))


def sent(plan: Plan, own: SecretKey | None, key: ReleaseKey = KEY, spec: ValueSpec = SPEC) -> Any:
    """What a client with a value of norm 1 on the grid puts into the sum."""
    value = Value(integers=np.array([1024]), step=GRID.step)
    return protect(Protection(plan, spec), value, key=key, weight=1.0, secret=own)._numbers


# The charge ---------------------------------------------------------------------------------------


def test_others_are_charged_a_sampled_step_and_the_server_as_without_draws() -> None:
    charge = OWN.charge()
    assert charge == Charge(server=NonPrivateDpEvent(), key_holder=NoOpDpEvent(), others=steps_event(Q, Z, 1))
    assert load_charge(dump_charge(charge)) == charge
    assert (
        replace(charge, others=GaussianDpEvent(Z))
        == Protection(replace(PLAN, sampling_rate=1), SPEC).charge()
    )


def test_a_number_that_its_client_noises_is_not_drawn_for() -> None:
    """The server has each such number, and publishes it under its client's name."""
    each = Protection(PLAN, replace(SPEC, reduction="none"))
    assert each.sampling_rate == 1
    assert each.charge().others == GaussianDpEvent(Z)


def test_two_rounds_tell_no_more_than_is_charged() -> None:
    """All views of two rounds, integrated: the true delta between a client and zeros, in both directions."""
    at = np.linspace(-8 * Z, 1 + 8 * Z, 1501)
    zeros = norm.pdf(at, 0, Z)
    drawn = (1 - Q) * zeros + Q * norm.pdf(at, 1, Z)
    p, q = np.multiply.outer(drawn, drawn), np.multiply.outer(zeros, zeros)
    area = (at[1] - at[0]) ** 2
    epsilons = np.array([0.5, 1.0, 1.5, 2.0])
    true = [
        max(area * np.maximum(one - np.exp(e) * other, 0).sum() for one, other in ((p, q), (q, p)))
        for e in epsilons
    ]
    claimed = deltas(History.of({steps_event(Q, Z, 1): 2}), epsilons)
    assert (claimed >= np.array(true) - 1e-6).all()
    assert (claimed <= 1.02 * np.array(true) + 1e-5).all(), "it is the loss itself, and no looser bound"
    ones = norm.pdf(at, 1, Z)
    shared = (1 - Q) * q + Q * np.multiply.outer(ones, ones)
    worse = [area * np.maximum(shared - np.exp(e) * q, 0).sum() for e in epsilons]
    assert (np.array(worse) > 1.05 * claimed).all(), "one draw for two releases would cost more"


def test_an_attack_on_noised_totals_proves_no_more_than_is_charged_and_most_of_it() -> None:
    """Totals of real releases with real noise, told from those of zeros by the best test."""
    runs, rounds, level = 4000, 4, 0.05
    plan = replace(PLAN, max_rounds=rounds)
    noise = Protection(plan, SPEC).mechanism
    source = np.random.default_rng(7)
    z, step = noise.plan.noise_multiplier, SPEC.grid.step

    def score(totals: Any) -> Any:
        return np.log1p(Q * np.expm1((2 * totals - 1) / (2 * z**2))).sum(axis=1)

    own = np.array(
        [
            [sent(plan, secret(run), replace(KEY, round=number))[0] for number in range(1, rounds + 1)]
            for run in range(runs)
        ]
    )
    drawn = np.rint(source.normal(0, noise.sigma, (2, runs, rounds)))
    with_client, without = score((own + drawn[0]) * step), score(drawn[1] * step)
    bar = np.quantile(without[: runs // 2], 1 - level)  # on runs that measure nothing
    alarms, found = int((without[runs // 2 :] > bar).sum()), int((with_client > bar).sum())
    most_alarms = beta.ppf(0.999, alarms + 1, runs // 2 - alarms)
    least_found = beta.ppf(0.001, found, runs - found + 1)
    claimed = 1 - Curve(History.of(events_of(plan, [SPEC], "others", rounds))).miss([most_alarms])[0]
    unamplified = 1 - Curve(History.of({GaussianDpEvent(Z): rounds})).miss([level])[0]
    assert least_found <= claimed
    assert found / runs >= 0.8 * claimed
    assert claimed < 0.7 * unamplified


# The draw -----------------------------------------------------------------------------------------


def test_a_client_that_is_not_drawn_sends_zeros_and_nothing_else() -> None:
    values = [int(sent(PLAN, secret(number))[0]) for number in range(4000)]
    assert {*values} == {0, 1024}
    share = np.mean([value > 0 for value in values])
    assert abs(share - Q) < 5 * (Q * (1 - Q) / 4000) ** 0.5
    assert sent(replace(PLAN, sampling_rate=1), SECRET) == [1024]
    drawn = {int(sent(PLAN, None)[0]) for _ in range(200)}  # without a secret: the operating system's
    assert drawn == {0, 1024}


def test_a_release_that_is_made_again_has_its_draw_and_no_other_place_shares_it() -> None:
    numbers = range(400)
    first = [takes_part(OWN, KEY, secret(number)) for number in numbers]
    assert first == [takes_part(OWN, KEY, secret(number)) for number in numbers]
    named = replace(SPEC, name="other")
    for key, spec in (
        (replace(KEY, round=2), SPEC),
        (replace(KEY, stage=1), SPEC),
        (replace(KEY, attempt=1), SPEC),
        (replace(KEY, session=b"s" * 32), SPEC),
        (replace(KEY, name="other"), named),
    ):
        other = [takes_part(Protection(PLAN, spec), key, secret(number)) for number in numbers]
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.2, "independent of the first"


def test_the_rate_is_rounded_down_to_the_words_of_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    third = replace(PLAN, sampling_rate=1 / 3)
    bar = int(1 / 3 * 2**64)
    for word, drawn in ((0, True), (bar - 1, True), (bar, False), (2**64 - 1, False)):
        words = np.array([word], np.uint64)
        monkeypatch.setattr(
            protecting, "_source", lambda *of, words=words: SimpleNamespace(words=lambda count: words)
        )
        assert takes_part(Protection(third, SPEC), KEY, SECRET) == drawn


def test_a_total_is_divided_by_the_rate_and_not_by_the_number_of_drawn_clients() -> None:
    """That number would tell of draws. Noise is in the total if nobody was drawn, too."""
    record: Any = SimpleNamespace(secret=lambda session, number: SECRET)
    asked = CohortQuery(cohort=(0,), broadcast=np.zeros(1, np.float32), sums=(Sum(SPEC, 20000),))

    def noised(plan: Plan, value: float) -> Total:
        answers = Answers(survivors=(0,), totals={"own": Total(np.full(20000, value), 4.0)}, per_client={})
        found = with_noise(plan, record, asked, answers, Header(bytes(32), 1, 0, 0))
        assert found is not None
        return found.totals["own"]

    for value in (0.0, 3.0):
        total = noised(PLAN, value)
        assert total.weight == 4.0
        assert np.array_equal(total.value, noised(replace(PLAN, sampling_rate=1), value).value / Q)
        assert total.value.std() == pytest.approx(Z / Q, rel=0.03)
    assert OWN.mechanism.deviation(9) == Z / Q


# What is refused ----------------------------------------------------------------------------------

HIDDEN: Mapping[str, Any] = vars(hidden(replace(PLAN, sampling_rate=1), 8, min_cohort_size=8))


@every(
    ("changes", "said", "remedy"),
    [
        ({"noise": "local"}, 'Expected noise = "central"', {"noise": "central"}),
        ({"noise": "distributed", "corrupt": 0.0}, 'Expected noise = "central"', {"noise": "central"}),
        (
            {"adversaries": ("key-holder", "others")},
            'Expected adversaries = ["others"]',
            {"adversaries": ("others",)},
        ),
        ({"adversaries": ()}, 'Expected adversaries = ["others"]', {"adversaries": ("others",)}),
        ({**HIDDEN, "sampling_rate": Q}, 'Expected sum = "clear"', {"sum": "clear"}),
        ({"adjacency": "replace-one"}, 'adjacency = "zero-out"', {"adjacency": "zero-out"}),
        (
            {"unit": "record", "adjacency": "add-remove"},
            'Expected unit = "client"',
            {"unit": "client", "adjacency": "zero-out"},
        ),
        ({"separation": 3, "coefficients": (1.0, 0.5)}, "bands = 1", {"coefficients": (1.0,)}),
    ],
)
def test_draws_that_amplify_nothing_are_refused(
    changes: Mapping[str, Any], said: str, remedy: Mapping[str, Any]
) -> None:
    asked: dict[str, Any] = {**vars(PLAN), **changes}
    with pytest.raises(ConfigError) as error:
        Protection(Plan(**asked), SPEC).charge()
    assert said in str(error.value)
    assert "leave `sampling_rate` out" in str(error.value)
    remedied = Protection(Plan(**(asked | remedy)), SPEC)
    assert remedied.charge() == OWN.charge()
    assert isinstance(remedied.mechanism, Central)


@every("own_code", [False, True])
@every("norms", [0, 2])
@every("reads", ["bound", "repeated"])
def test_code_of_a_study_does_not_switch_off_the_refusal_of_a_second_draw(
    reads: Any, own_code: bool, norms: int
) -> None:
    """A loss of its own made running statistics pass: a mean of clients that two draws took was released."""
    problem: Any = SimpleNamespace(initial_norms=np.zeros(norms), own_code=own_code)
    spec = with_model(replace(SPEC, reads_state=reads), problem)
    with pytest.raises(ConfigError, match=r"reads what a client keeps of another release.*`sampling_rate`"):
        Protection(PLAN, spec).charge()
    assert Protection(replace(PLAN, sampling_rate=1.0), spec).charge().others == GaussianDpEvent(Z)
    assert Protection(PLAN, with_model(SPEC, problem)).charge() == OWN.charge()


@every("rate", [0.0, -0.1, 1.1, float("nan"), 9e-4])
def test_a_rate_that_no_study_may_have_is_refused(rate: Any) -> None:
    with pytest.raises(ConfigError, match=r"sampling_rate in \[0.001, 1\].* Take 0.01"):
        replace(PLAN, sampling_rate=rate)
    replace(PLAN, sampling_rate=0.01, delta=1e-3)


def test_a_rate_below_delta_needs_no_noise_and_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"above delta = 0\.01, got 0\.01.*a higher rate, or a lower delta"):
        replace(PLAN, sampling_rate=0.01, delta=0.01)
    replace(PLAN, sampling_rate=0.02, delta=0.01)
    replace(PLAN, sampling_rate=0.01, delta=0.009)
