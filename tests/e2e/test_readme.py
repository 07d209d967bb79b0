"""The protocol in one file of CONTRIBUTING runs. `test_notebooks` runs the README's own loop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from securefl.study.config import Arm, parse
from securefl.study.packaged import packaged
from securefl.study.run import run_arm
from securefl.study.world import build

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_protocol_in_one_file_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", CONTRIBUTING, flags=re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "__main__"}  # a module that exists, for dataclasses
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    study = parse(packaged()["demo"].replace("rounds = 40", "rounds = 1"))
    world = build(study, 1)
    arm = Arm(name="Slowest", protocol="slowest", options=names["Slowest"](fraction=0.2))
    run = run_arm(study, arm, world, tmp_path, lambda record: None)
    selected = run.records[0]["selected"]
    assert selected == sorted(world.population().seconds.argsort()[-12:])
