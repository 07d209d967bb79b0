"""What the README says is run: its protocol in one file, its commands, its pictures."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from securefl.study.commands import packaged
from securefl.study.config import Arm, parse
from securefl.study.run import run_arm
from securefl.study.world import build

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_the_protocol_in_one_file_runs(tmp_path: Path) -> None:
    (code,) = blocks("python")
    names: dict[str, Any] = {"__name__": "__main__"}  # a module that exists, for dataclasses
    exec(compile(code, "README.md", "exec"), names)
    study = parse(packaged()["demo"].replace("rounds = 40", "rounds = 1"))
    world = build(study, 1)
    arm = Arm(name="Slowest", protocol="slowest", options=names["Slowest"](fraction=0.1))
    run = run_arm(study, arm, world, tmp_path, lambda record: None)
    selected = [k for k, times in enumerate(run.records[0]["selected"]) if times]
    assert selected == sorted(world.roster().seconds.argsort()[-6:])


def test_its_commands_exist() -> None:
    commands = {point.name for point in entry_points(group="securefl.commands")}
    used = set(re.findall(r"securefl (\w+)(?= )", "\n".join(blocks(""))))
    assert used
    assert used <= commands
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make (\w+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_its_files_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).is_file(), link
    for path in re.findall(r"`((?:protocols|securefl|benchmarks)/[\w/.]+\.py)`", README):
        assert (ROOT / path).is_file(), path
