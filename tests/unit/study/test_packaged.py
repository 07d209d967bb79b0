"""Every study that ships can be set up, whatever was tightened since it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.every import every
from support.tiny_study import run

from securefl.core.errors import DataError
from securefl.study import world
from securefl.study.composition import composition
from securefl.study.config import Study, parse
from securefl.study.packaged import packaged
from securefl.sweep.cells import has_sweep, parse_sweep

SLOW = (
    "cifar10_fedprof",
    "fedprof_private",
    "fedcor_cifar10_1spc",
    "fedcor_cifar10_2spc",
    "fedcor_cifar10_dir",
    "heads_from_scratch",
)
"""Photographs take more than a minute to be spoilt, and a noise beside private training 40 s to be found."""


def cells(text: str) -> list[Study]:
    """The study; of a sweep every fifth cell, which has each protocol and placement among them."""
    return [cell.study for cell in parse_sweep(text).cells][::5] if has_sweep(text) else [parse(text)]


@every("name", SLOW)
def test_a_packaged_study_that_takes_long_to_set_up_is_read(name: str) -> None:
    assert all(study.arms for study in cells(packaged()[name]))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in packaged()]
)
def test_every_arm_of_a_packaged_study_can_be_composed(name: str) -> None:
    worlds: dict[tuple[object, ...], world.World] = {}
    for study in cells(packaged()[name]):
        key = (study.data, study.model, study.local, study.corruption, study.dpsgd)
        try:
            here = worlds.get(key) or worlds.setdefault(key, world.build(study, study.study.seeds[0]))
        except DataError as error:
            pytest.skip(str(error))
        for arm in study.arms:
            _, plan = composition(study, arm, here)
            assert plan.max_rounds == study.study.rounds


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in packaged() if name != "cifar10_fedprof"])  # over 5 minutes
def test_the_first_round_of_every_arm_of_a_packaged_study_is_answered(name: str, tmp_path: Path) -> None:
    """A study of FLTrust beside liars once lost every client, and no test played it."""
    for number, study in enumerate(cells(packaged()[name])):
        try:
            here = world.build(study, study.study.seeds[0])
        except DataError as error:
            pytest.skip(str(error))
        for arm in study.arms:
            (record,) = run(study, tmp_path / f"{number}", here=here, arm=arm, rounds=1).records
            assert record["answered"], arm.name
            assert not record["abstained"], arm.name
