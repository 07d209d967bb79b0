"""What the benchmarks share: the arms of a packaged study, some keys changed, in a temporary folder."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from securefl.study.arm import ArmRun
from securefl.study.config import Study, parse
from securefl.study.packaged import packaged
from securefl.study.run import run_arm
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


def runs(study: Study, arms: tuple[str, ...] = ()) -> list[ArmRun]:
    """Every arm (or those named) under every seed, one after the other."""
    single_thread()
    done = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in study.study.seeds:
            world = build(study, seed)
            for arm in study.arms:
                if not arms or arm.name in arms:
                    done.append(run_arm(study, arm, world, Path(folder), lambda record: None))
    return done
