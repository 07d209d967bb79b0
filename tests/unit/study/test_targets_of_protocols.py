"""The target of [dpsgd] under every registered protocol: what its clients are told in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.changed_protocols import Changed
from support.every import every
from support.private_studies import DPSGD, private
from support.tiny_study import composed, run, world
from targets import OPTIONS

from securefl.accounting.composition import compose
from securefl.accounting.events import NO_COST, steps_event
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError
from securefl.mechanisms.charges import Protection, events_of
from securefl.study.composition import composition, sized
from securefl.study.config import Arm, Study
from securefl.study.seeded import World
from securefl.study.world import of_study

TARGET, ROUNDS = 5.0, 3
PROTOCOLS = sorted(point.name for point in entry_points(group="securefl.protocols"))
NOT_PRIVATELY = ("adds", "feddbe", "feddrop", "fedproto", "pfedme")
"""Their training has no form of [dpsgd]: they are refused with it, whatever the epsilon."""


def asked(name: str, *, rate: float = 1.0, target: float = TARGET, **privacy: str) -> Study:
    every = "" if name in ("fedlog", "fedproto", "heads") else "fraction = 1.0\n"
    section = DPSGD.replace("noise_multiplier = 1.2", f"epsilon = {target}")
    section = section.replace("sampling_rate = 0.1", f"sampling_rate = {rate}").replace(
        "steps = 5", "steps = 2"
    )
    told = {"noise": '"local"'} | privacy
    return private(name, f"{every}{OPTIONS.get(name, '')}", rounds=ROUNDS, extra=section, **told)


@pytest.fixture(scope="module")
def here() -> World:
    return world(asked("fedavg"))


def test_those_that_do_not_train_privately_are_registered() -> None:
    assert {*NOT_PRIVATELY} <= {*PROTOCOLS}


@every("name", sorted({*PROTOCOLS} - {*NOT_PRIVATELY}))
def test_the_last_round_ends_at_the_target(name: str, tmp_path: Path) -> None:
    of = asked(name)
    told = run(of, tmp_path).records[-1]["epsilon"]
    most = max(told[party] for party in of.privacy.adversaries)
    assert 0.99 * TARGET < most <= TARGET


@every("name", NOT_PRIVATELY)
def test_a_protocol_without_private_training_is_refused(name: str) -> None:
    of = asked(name)
    with pytest.raises(ConfigError):
        composed(of)


def test_a_client_of_fltrust_is_charged_once_a_round_whether_it_is_trusted_or_not(here: World) -> None:
    of = asked("fltrust")
    algorithm, plan = composed(of, here)
    scored, summed = (own.spec for own in algorithm.contributions)
    assert events_of(plan, [scored], "server", ROUNDS) == {scored.training: ROUNDS}
    assert Protection(plan, summed).charge() == NO_COST


def test_trials_beyond_the_last_round_are_not_paid_for(here: World) -> None:
    """FedCor declares 50 trials by default. Its noise was calibrated for all, however few the rounds."""
    of = asked("fedcor")
    counts = {}
    for rounds in (1, 2, 3, 6, 200):
        algorithm = of.arms[0].options.build(replace(here.problem, rounds=rounds))
        counts[rounds] = {own.spec.name: own.spec.schedule.asked(rounds) for own in algorithm.contributions}
    assert [counts[r]["update"] for r in counts] == [1, 2, 4, 10, 250]
    assert [counts[r]["loss"] for r in counts] == [1, 2, 4, 10, 102]


# Protocols of other distributions --------------------------------------------------------------------

Events = Callable[[DpEvent], DpEvent]


@dataclass(frozen=True)
class Charging:
    """A contribution whose training is charged `charge(event)` in place of its event."""

    own: Any
    charge: Events
    extra: int = 0

    @property
    def spec(self) -> ValueSpec:
        spec: ValueSpec = self.own.spec
        if spec.training is None:
            return spec
        training = self.charge(spec.training)
        return replace(spec, training=training, schedule=replace(spec.schedule, extra=self.extra))


def charged(of: Study, charge: Events, extra: int = 0) -> Arm:
    changed = Changed(of.arms[0].options, lambda own: Charging(own, charge, extra))  # type: ignore[arg-type, return-value]
    return replace(of.arms[0], options=changed)


@settings(max_examples=12)
@given(
    name=st.sampled_from(["fedavg", "lg_fedavg", "fedlog", "pow_d", "cs_fl"]),
    times=st.integers(1, 7),
    extra=st.integers(0, 4),
    beside=st.sampled_from([0.0, 0.5, 3.0]),
    target=st.floats(0.01, 20),
)
@example(name="fedlog", times=1, extra=0, beside=0.0, target=8.0)
def test_whatever_a_protocol_charges_ends_at_the_target(
    here: World, name: str, times: int, extra: int, beside: float, target: float
) -> None:
    """Several trainings in one event, extra queries, and a Gaussian whose noise follows that of training."""
    of = asked(name, target=target)
    here = of_study(here, of)

    def charge(event: DpEvent) -> DpEvent:
        (z,) = {step.event.noise_multiplier for step in [event.event]}  # type: ignore[attr-defined]
        more = [GaussianDpEvent(beside * z)] if beside else []
        return ComposedDpEvent((*[event] * times, *more))

    algorithm, plan = composition(of, charged(of, charge, extra), here)
    specs = [own.spec for own in algorithm.contributions]
    told = compose(events_of(plan, specs, "server", ROUNDS), plan.delta)
    assert 0.99 * target < told <= target


FIXED: Mapping[str, Events] = {
    "a Gaussian of fixed noise beside": lambda event: ComposedDpEvent((event, GaussianDpEvent(1.0))),
    "steps of fixed noise": lambda event: steps_event(1.0, 0.9, 3),
}


@every("noise", ["none", "local"])
@every("what", FIXED)
def test_a_charge_that_does_not_follow_the_noise_is_refused(what: str, noise: str, here: World) -> None:
    of = asked("fedavg", noise=f'"{noise}"')
    with pytest.raises(ConfigError, match=r"\[dpsgd\]"):
        composition(of, charged(of, FIXED[what]), here)


@every("retries", [0, 2])
def test_retries_are_in_the_target_of_two_trainings(retries: int) -> None:
    hidden = {"sum": '"masked"', "noise": '"none"', "dropout": "0.2", "corrupt": "0.0"}
    of = asked("fedrep", rate=0.5, max_retries=str(retries), **hidden)
    here = world(of)
    algorithm, plan = composed(of, here)
    (own,) = algorithm.contributions
    private = sized(of, of.arms[0], here.problem).private
    assert private is not None
    assert own.spec.training == steps_event(0.5, private.noise_multiplier, 2 * private.steps)
    assert own.spec.training is not None
    assert 0.99 * TARGET < compose({own.spec.training: ROUNDS + retries}, plan.delta) <= TARGET
