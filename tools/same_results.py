"""Whether two checkouts give the same models, epsilons and bytes for the packaged studies.

    python tools/same_results.py OLD NEW [--rounds 3] [--records 3000] [--study NAME ...] [--json]

OLD and NEW are folders of checkouts; each runs with its own code in this interpreter's environment. Every
study is played for a few rounds of its first seed, with fewer records; of a sweep three cells are. A model's
digest is of what the server broadcasts next. Where noise or keys are fresh, digests differ between two runs
of one checkout too: `--twice` runs OLD a second time, and says "fresh" there. Exit code 1 where a row differs
that need not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RUNNER = r"""
import hashlib, importlib.metadata as metadata, json, sys, tempfile, tomllib
from dataclasses import replace
from pathlib import Path

said = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"]
# What is installed may be another checkout, whose modules have other names.
metadata.entry_points = lambda *, group: metadata.EntryPoints(
    metadata.EntryPoint(name, value, group) for name, value in said.get(group, {}).items()
)
import numpy as np
from securefl.study import world
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import parse
from securefl.study.run import run_arm
from securefl.training import single_thread
try:
    from securefl.core.errors import ConfigError
    from securefl.study.packaged import text_of
    from securefl.sweep.cells import has_sweep, parse_sweep
except ModuleNotFoundError:  # a checkout from before there were rooms
    from securefl.errors import ConfigError
    from securefl.study.commands import text_of
    from securefl.study.sweep import has_sweep, parse_sweep

try:
    from securefl.study.arm import arm_folder
except ModuleNotFoundError:  # a checkout from before an arm's files had a module
    from securefl.study.run import arm_folder

single_thread()
name, rounds, records = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
text = text_of(name)
if has_sweep(text):
    cells = parse_sweep(text).cells
    studies = {f" [{c.name}]": c.study for c in (cells[0], cells[len(cells) // 2], cells[-1])}
else:
    studies = {"": parse(text)}

def short(study):
    few = records if study.data.records is None else min(records, study.data.records)
    section = study.study
    section = replace(section, rounds=min(rounds, section.rounds), seeds=section.seeds[:1])
    study = replace(study, study=section)
    fewer = replace(study, data=replace(study.data, records=max(few, study.data.clients)))
    try:
        return fewer, world.build(fewer, study.study.seeds[0])
    except ConfigError:  # the source has fewer, or its partition needs more
        return study, world.build(study, study.study.seeds[0])

for cell, own in studies.items():
    study, here = short(own)
    for arm in study.arms:
        with tempfile.TemporaryDirectory() as folder:
            run = run_arm(study, arm, here, Path(folder), lambda record: None)
            with Checkpoint(arm_folder(Path(folder), arm, here.seed) / "checkpoint.sqlite") as checkpoint:
                state, _ = checkpoint.load()
        digest = hashlib.sha256()
        broadcast = getattr(state, "broadcast", None)
        digest.update(np.ascontiguousarray(state.model if broadcast is None else broadcast).tobytes())
        print(json.dumps({
            "arm": f"{arm.name}{cell}",
            "model": digest.hexdigest()[:16],
            "epsilon": [r["epsilon"] for r in run.records],
            "up": [r["bytes_up"] for r in run.records],
            "down": [r["bytes_down"] for r in run.records],
        }), flush=True)
"""


def played(checkout: Path, study: str, rounds: int, records: int) -> dict[str, Mapping[str, Any]]:
    """By arm, what the study gives with a checkout's own code; one row of the error where it does not run."""
    env = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, study, str(rounds), str(records)],
        env=env,
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {row["arm"]: row for row in map(json.loads, done.stdout.splitlines())}
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1]
        found["(it does not run)"] = {"arm": "(it does not run)", "error": said}
    return found


PARTS = ("model", "epsilon", "up", "down")


def compared(old: Mapping[str, Any], new: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, str]:
    """Of each part: "same", "fresh" where OLD differs from itself, or what there is on both sides."""
    found = {}
    for part in PARTS:
        before, after = old.get(part, old.get("error")), new.get(part, new.get("error"))
        if before == after and "error" not in old:
            found[part] = "same"
        elif again and again.get(part) != before:
            found[part] = "fresh"
        else:
            found[part] = f"{_short(before)} -> {_short(after)}"
    return found


def _short(value: Any) -> str:
    return str(value[-1] if isinstance(value, list) else value)[:120]


def rows(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    for study in options.study:
        given = (study, options.rounds, options.records)
        old, new = played(options.old, *given), played(options.new, *given)
        again = played(options.old, *given) if options.twice else {}
        for arm in [*old, *(arm for arm in new if arm not in old)]:
            none: Mapping[str, Any] = {"error": "not there"}
            sides = old.get(arm, none), new.get(arm, none), again.get(arm, {})
            yield {"study": study, "arm": arm, **compared(*sides)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=3000)
    parser.add_argument("--study", nargs="+", help="names of packaged studies; all of OLD by default")
    parser.add_argument("--twice", action="store_true", help="run OLD twice, and mark what is fresh there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.old / "protocols" / "studies"
    options.study = options.study or sorted(path.stem for path in folder.glob("*.toml"))
    same = True
    for row in rows(options):
        same &= all(row[part] in ("same", "fresh") for part in PARTS)
        line = json.dumps(row) if options.json else "  ".join(f"{value:<22}" for value in row.values())
        print(line.rstrip(), flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
