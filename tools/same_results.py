"""Whether two checkouts give the same models, epsilons and bytes for the packaged studies.

    python tools/same_results.py OLD NEW [STUDY ...]

OLD and NEW are folders of checkouts; each runs with its own code in this interpreter's environment. A study
is played for three rounds of its first seed with 3,000 records; of a sweep three cells are. `model` is a
digest of the last one. Where a figure differs, OLD is played again: what differs there too is drawn fresh,
such as noise and keys. The exit code is the number of studies with a figure that differs and is not fresh.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROUNDS, RECORDS = 3, 3000


def played(checkout: str, study: str) -> dict[str, Any]:
    """By arm and part, what a study gives with a checkout's own code; an "error" where it does not run."""
    env = {**os.environ, "PYTHONPATH": str(Path(checkout).resolve())}
    command = [sys.executable, __file__, "play", study]
    done = subprocess.run(command, env=env, cwd=checkout, capture_output=True, text=True)
    return {"error": done.stderr.strip()[-200:]} if done.returncode else json.loads(done.stdout)


def differing(old: str, new: str, study: str) -> bool:
    """Whether figures of a study differ that are not fresh. These are printed, and an error."""
    before, after = played(old, study), played(new, study)
    again = before if before == after else played(old, study)
    found = [part for part in before | after if before.get(part) == again.get(part) != after.get(part)]
    fresh = sum(before[part] != again.get(part) for part in before)
    print(f"{study}: {len(before)} figures, {fresh} fresh, {len(found)} differ", flush=True)
    for part in found or ["error"] * ("error" in before):
        print(f"{study}  {part}: {before.get(part)} -> {after.get(part)}", flush=True)
    return bool(found) or "error" in before


# In a checkout ---------------------------------------------------------------------------------------


def play(name: str) -> None:
    """Print, as JSON, a line for each part of each arm of a packaged study."""
    from importlib import metadata

    # What is installed may be another checkout, whose modules have other names.
    told = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"]
    points = [metadata.EntryPoint(*own, group) for group, found in told.items() for own in found.items()]
    metadata.entry_points = lambda **asked: metadata.EntryPoints(points).select(**asked)

    import securefl
    from securefl.study.config import parse
    from securefl.study.packaged import text_of
    from securefl.sweep.cells import has_sweep, parse_sweep

    text = text_of(name)
    cells = [own.study for own in parse_sweep(text).cells] if has_sweep(text) else [parse(text)]
    found: dict[str, Any] = {}
    for number, at in enumerate({0, len(cells) // 2, len(cells) - 1}):
        own = cells[at].study
        section = replace(own, rounds=min(ROUNDS, own.rounds), evaluate_every=1, seeds=own.seeds[:1])
        short = replace(cells[at], study=section)
        data = replace(short.data, records=min(RECORDS, short.data.records or RECORDS))
        with TemporaryDirectory() as folder:
            try:
                done = securefl.run(replace(short, data=data), out=f"{folder}/run", progress=False)
            except securefl.errors.ConfigError:  # the source has fewer records, or its partition needs more
                done = securefl.run(short, out=f"{folder}/all", progress=False)
            for arm, rows in done.metrics.groupby("arm"):
                state = done.model(arm).module.state_dict().values()
                model = hashlib.sha256(b"".join(one.numpy().tobytes() for one in state)).hexdigest()
                said = {"model": model, "epsilon": done.epsilon.loc[arm].to_list()}
                said |= rows[["bytes_up", "bytes_down"]].to_dict("list")
                found |= {f"{arm} {number}  {part}": value for part, value in said.items()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["play", study]:
            play(study)
        case [old, new, *studies]:
            packaged = sorted(path.stem for path in Path(old, "protocols", "studies").glob("*.toml"))
            sys.exit(sum(differing(old, new, study) for study in studies or packaged))
        case _:
            sys.exit(__doc__)
