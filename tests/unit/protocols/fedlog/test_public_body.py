"""FedLog with a public body: exact sensitivities, noise where the plan says, and the epsilon asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.observed_runs import couple
from support.tiny_fedlog import BOUNDED, UNIT, study, world
from support.tiny_problem import client_context, tiny_problem
from support.tiny_study import plain

from securefl.core.errors import ConfigError
from securefl.protocols.class_sums import Clipping, Statistic
from securefl.protocols.fedlog.bodies import Public
from securefl.protocols.fedlog.options import FedLog
from securefl.protocols.fedproto import FedProto
from securefl.study.arm import ArmRun
from securefl.study.config import Study, parse
from securefl.study.results import collect
from securefl.study.run import run_arm
from securefl.study.run_report import bought
from securefl.study.seeded import World
from securefl.study.world import build


def run(of: Study, folder: Path, here: World | None = None) -> ArmRun:
    return run_arm(of, of.arms[0], here or world(), folder, lambda record: None)


def statistic(clip: Clipping, classes: int = 3, q: int = 4) -> Statistic:
    problem = tiny_problem(width=q, hidden=(5,), outputs=classes, clients=2)
    return Statistic(Public(problem, clip.activation()), clip, classes, 5, 2)


def total(made: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return made.compute(client_context(x.astype(np.float32), y)).floats()


# The grid ----------------------------------------------------------------------------------------


BEYOND: list[tuple[dict[str, Any], str]] = [
    ({"clip": Clipping(kind="none", digits=16), "client_bound": 40_000.0}, "client_bound < 32,768, .*40,000"),
    (
        {"clip": Clipping(kind="bounded", bound=1024, digits=20)},
        r"norm < 2\^31 grid units, got 2,400,.*1024 for each of 5",
    ),
]


@every(("options", "told"), BEYOND)
def test_a_bound_that_the_grid_cannot_hold_is_refused_before_a_round(
    options: dict[str, Any], told: str
) -> None:
    problem = tiny_problem(hidden=(5,))
    for kind in (FedLog, FedProto):
        remedied = {**options, "clip": replace(options["clip"], digits=10)}
        assert kind(**remedied).build(problem).contributions[0].spec.grid.step == 2**-10
        with pytest.raises(ConfigError, match=f"{told}.*ower .*`digits` of `clip`"):
            _ = kind(**options).build(problem).contributions[0].spec


# Sensitivity -------------------------------------------------------------------------------------


def test_sensitivities_are_those_of_the_specification() -> None:
    unit = statistic(Clipping()).spec.sensitivity
    assert unit["record", "add-remove"] == pytest.approx(np.sqrt(2))
    assert unit["record", "replace-one"] == pytest.approx(2)
    scaled = statistic(Clipping(bound=3.0)).spec.sensitivity
    assert scaled["record", "add-remove"] == pytest.approx(np.sqrt(10))
    assert scaled["record", "replace-one"] == pytest.approx(6)
    bounded = replace(
        statistic(Clipping()), clip=Clipping(kind="bounded", bound=1.0), width=84
    ).spec.sensitivity
    assert bounded["record", "add-remove"] == pytest.approx(9.219544, rel=1e-3)
    assert bounded["record", "replace-one"] == pytest.approx(2 * np.sqrt(84), rel=1e-3)


def test_records_without_a_label_and_records_that_are_not_finite_take_no_part() -> None:
    """Nor does anybody hear of them: to abstain because of one record would tell that it is there."""
    made = statistic(Clipping())
    for label in (-1, 3):
        assert not total(made, np.ones((1, 4)), np.array([label])).any()
    assert not total(made, np.full((1, 4), np.nan), np.array([1])).any()
    assert not total(made, np.zeros((0, 4)), np.zeros(0, np.int64)).any()


# Whole runs --------------------------------------------------------------------------------------


@every("adjacency", ["add-remove", "replace-one"])
def test_epsilon_is_what_was_asked_for_when_the_schedule_ends(adjacency: str, tmp_path: Path) -> None:
    """A public body's statistic cannot change: one exchange spends epsilon, later rounds ask nobody."""
    finished = run(study("local", epsilon=2.0, rounds=3, adjacency=adjacency), tmp_path)
    assert [record["epsilon"]["server"] for record in finished.records] == pytest.approx([2.0] * 3)
    assert [record["asked"] for record in finished.records] == [1, 0, 0]
    assert [record["bytes_up"] > 0 for record in finished.records] == [True, False, False]
    assert len({record["accuracy"] for record in finished.records}) == 1
    assert finished.records[-1]["epsilon"]["key-holder"] == 0.0


def test_exact_calibration_and_unit_norm_beat_the_paper_by_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digits at epsilon 1, central: measured 0.78 against 0.12 over three seeds, under noise of one key."""
    couple(monkeypatch, b"central")
    ours, paper = [], []
    for seed in (1, 2, 3):
        here = build(study(), seed)
        ours.append(run(study(), tmp_path / f"a{seed}", here).records[-1]["accuracy"])
        theirs = study(clip=BOUNDED, calibration="paper")
        paper.append(run(theirs, tmp_path / f"b{seed}", here).records[-1]["accuracy"])
    assert np.mean(ours) > np.mean(paper) + 0.5


def test_without_noise_it_is_the_exact_head_and_epsilon_is_endless(tmp_path: Path) -> None:
    finished = run(study("none"), tmp_path, build(study("none"), 1))
    assert finished.records[-1]["accuracy"] > 0.8
    assert finished.records[-1]["epsilon"]["server"] == np.inf
    again = run(study("none"), tmp_path / "again", build(study("none"), 1))
    assert plain(again.records) == plain(finished.records)


def test_bytes_are_those_of_the_statistic(tmp_path: Path) -> None:
    """Up: 10 x 85 grid integers of four bytes a client, and headers; nothing grows with the body."""
    record = run(study(), tmp_path).records[0]
    assert 20 * 3400 < record["bytes_up"] < 20 * 3600
    assert record["bytes_down"] < 20 * 300


def test_a_budget_that_ends_stops_releases_and_keeps_the_model(tmp_path: Path) -> None:
    """Bodies trained, per client: calibrated for epsilon 2 over 5 releases; a budget of 1.7 bears 3."""
    written = study("local", epsilon=2.0, rounds=4, budget="1.7", adjacency="add-remove").text
    written = written.replace("add-remove", "zero-out")
    written = written.replace('unit = "record"', 'unit = "client"\nforce_delta = true')
    of = parse(written + 'body = "private"\nclient_bound = 60.0\n')
    finished = run(of, tmp_path)
    answered = [len(record["answered"]) for record in finished.records]
    assert answered == [20, 20], "no client's budget bears round 3, which is not played"
    assert finished.records[-1]["epsilon"]["server"] <= 1.7
    assert [record["ended"] for record in finished.records] == [False, True]
    assert finished.records[1]["retired"] == list(range(20))
    assert len(run(of, tmp_path).records) == 2, "a resumed run knows it"
    assert bought(of, collect(of, [finished])) == [
        (
            "FedLog",
            ": a budget of 1.7 bought 2 of 4 rounds; 20 of 20 clients retired by themselves, after taking "
            "part in 2.",
        )
    ]


def test_one_client_only_and_a_class_that_nobody_has(tmp_path: Path) -> None:
    here = build(study(clients="1"), 1)
    x, y = here.records[0]
    some = replace(here, records=[(x[y != 7], y[y != 7])])
    assert run(study("none", clients="1"), tmp_path, some).records[-1]["accuracy"] > 0.6


def test_bodies_that_would_void_the_promise_are_refused() -> None:
    unprepared = study(clip=UNIT + '\nbody = "dp-sgd"')
    with pytest.raises(ConfigError, match=r"section \[dpsgd\]"):
        unprepared.arms[0].options.build(world().problem)
    with pytest.raises(ValueError, match="of the loss alone"):
        FedLog(body="dp-sgd", alpha=0.01)
    with pytest.raises(ConfigError, match="epsilon"):
        parse(study().text.replace("epsilon = 1.0\n", ""))
