"""What the benchmarks share: the arms of a study, played in a temporary folder."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from securefl.algorithm.clients import State
from securefl.study.arm import ArmRun, arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Arm, Study, parse
from securefl.study.packaged import packaged
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.training import single_thread


def changed(name: str, **lines: str) -> Study:
    """The packaged study without a sweep, `key = value` lines replaced in every section that has the key."""
    text = re.split(r"^\[+sweep", packaged()[name], flags=re.M)[0]
    for key, value in lines.items():
        hits = [line for line in text.splitlines() if line.split("=")[0].strip() == key]
        if not hits:
            raise SystemExit(f"{name} has no line for {key}")
        for line in hits:
            text = text.replace(line, f"{key} = {value}")
    return parse(text)


def played(
    study: Study,
    arm: Arm,
    world: World,
    tell: Callable[[Mapping[str, Any]], None] = lambda record: None,
    rounds: int | None = None,
) -> tuple[ArmRun, State]:
    """An arm up to a round, by default to its end, and its last state."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_arm(study, arm, world, Path(folder), tell, rounds=rounds)
        with Checkpoint(checkpoint_file(arm_folder(Path(folder), arm, world.seed))) as saved:
            state, _ = saved.load()
    assert state is not None
    return run, state


def runs(study: Study, arms: tuple[str, ...] = ()) -> list[ArmRun]:
    """Every arm (or those named) under every seed, one after the other."""
    single_thread()
    worlds = [build(study, seed) for seed in study.study.seeds]
    chosen = [arm for arm in study.arms if not arms or arm.name in arms]
    return [played(study, arm, world)[0] for world in worlds for arm in chosen]
