"""Privacy events: their stored form and their composition, against dp-accounting's accountants."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every import every

from securefl.accounting.composition import compose
from securefl.accounting.events import (
    NO_COST,
    NON_PRIVATE,
    dump_charge,
    dump_event,
    load_charge,
    load_event,
    steps_event,
)
from securefl.core.errors import DataError, UnsupportedEvent
from securefl.core.release import Charge

multipliers = st.floats(1e-300, 1e300, allow_nan=False, allow_infinity=False)
events = st.one_of(
    st.just(NoOpDpEvent()), st.just(NonPrivateDpEvent()), multipliers.map(lambda z: GaussianDpEvent(z))
)
UNKNOWN = [
    LaplaceDpEvent(1.0),
    PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)),
    PoissonSampledDpEvent(1.5, GaussianDpEvent(1.0)),
    GaussianDpEvent(0.0),
    GaussianDpEvent(-1.0),
    GaussianDpEvent(math.nan),
    GaussianDpEvent(math.inf),
]


@given(events)
def test_an_event_survives_json(event: DpEvent) -> None:
    assert load_event(json.loads(json.dumps(dump_event(event), allow_nan=False))) == event


@given(events, events, events)
def test_a_charge_survives_and_its_text_tells_charges_apart(a: DpEvent, b: DpEvent, c: DpEvent) -> None:
    charge = Charge(server=a, key_holder=b, others=c)
    assert load_charge(dump_charge(charge)) == charge
    other = Charge(server=b, key_holder=a, others=c)
    assert (dump_charge(other) == dump_charge(charge)) == (a == b)


def test_an_unknown_event_is_refused_not_guessed() -> None:
    """Alone, and beside a non-private one, with which any history is infinite."""
    for event in UNKNOWN:
        with pytest.raises(UnsupportedEvent):
            dump_event(event)
        for beside in ({}, {NonPrivateDpEvent(): 1}):
            with pytest.raises(UnsupportedEvent):
                compose({**beside, event: 1}, 1e-5)


@every(
    "stored",
    [
        {},
        {"event": "laplace"},
        {"event": "gaussian"},
        {"event": "gaussian", "noise_multiplier": "1.0"},
        {"event": "gaussian", "noise_multiplier": 0.0},
        {"event": "gaussian", "noise_multiplier": math.nan},
        {"event": "gaussian", "noise_multiplier": 1.0, "sampled": 0.1},
        {"event": "none", "but": "something"},
        {"event": "non_private", "half": True},
        {"event": "composed", "events": []},
    ],
)
def test_a_stored_event_of_another_version_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedEvent, match="that this version knows"):
        load_event(stored)


@every(
    "text",
    ["[]", "null", '{"server": 1, "key-holder": 1, "others": 1}', '{"server": {"event": "none"}}'],
)
def test_a_stored_charge_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises((DataError, UnsupportedEvent)):
        load_charge(text)
    with pytest.raises(UnsupportedEvent):
        load_event({"event": "composed", "events": [text]})


@every(
    "zs",
    [[1.0], [0.7, 3.0], [2.0] * 20, [5.0] * 300, [0.6, 1.5, 9.0, 9.0]],
)
def test_gaussians_compose_as_dp_accounting_says(zs: list[float]) -> None:
    counted = {GaussianDpEvent(z): zs.count(z) for z in zs}
    pld, rdp = PLDAccountant(value_discretization_interval=5e-4), RdpAccountant()
    for event, count in counted.items():
        pld.compose(event, count)
        rdp.compose(event, count)
    for delta in (1e-3, 1e-5, 1e-8):
        ours = compose(counted, delta)
        assert ours == pytest.approx(pld.get_epsilon(delta), rel=1e-3, abs=1e-3)
        assert ours <= rdp.get_epsilon(delta) * (1 + 1e-9)


def test_one_unprotected_release_is_infinite_and_nothing_is_zero() -> None:
    assert compose({}, 1e-5) == 0.0
    assert compose({NoOpDpEvent(): 1000}, 1e-5) == 0.0
    assert compose({GaussianDpEvent(100.0): 1, NonPrivateDpEvent(): 1}, 1e-5) == math.inf
    assert compose({NonPrivateDpEvent(): 0}, 1e-5) == 0.0
    assert compose({steps_event(0.1, 1.0, 5): 0}, 1e-5) == 0.0
    assert compose({steps_event(1.0, 2.0, 4): 3}, 1e-5) == compose({GaussianDpEvent(2.0): 12}, 1e-5)


@given(
    st.lists(multipliers, min_size=1, max_size=4), st.integers(1, 10**6), st.sampled_from([1e-12, 1e-5, 0.5])
)
@settings(max_examples=200)
def test_any_noise_gives_an_epsilon_and_more_releases_never_less(
    zs: list[float], count: int, delta: float
) -> None:
    once = compose({GaussianDpEvent(z): 1 for z in zs}, delta)
    often = compose({GaussianDpEvent(z): count for z in zs}, delta)
    assert 0 <= once <= often * (1 + 1e-6)
    assert not math.isnan(often)


def test_the_two_named_charges() -> None:
    assert NO_COST.by_party().keys() == NON_PRIVATE.by_party().keys() == {"server", "key-holder", "others"}
    assert {p: compose({e: 1}, 1e-5) for p, e in NON_PRIVATE.by_party().items()} == {
        "server": math.inf,
        "key-holder": 0.0,
        "others": math.inf,
    }
