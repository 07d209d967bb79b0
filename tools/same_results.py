"""Whether two checkouts give the same models, epsilons and bytes for the packaged studies.

    python tools/same_results.py OLD NEW [STUDY ...]

OLD and NEW are folders of checkouts; each runs with its own code in this interpreter's environment. A study
is played for three rounds of its first seed with 3,000 records; of a sweep three cells are. `model` is a
digest of the last one. Where a row differs, OLD is played again: what differs there too is drawn fresh, such
as noise and keys. Exit code 1 where a row differs that is not fresh.
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


def played(checkout: str, study: str) -> dict[str, dict[str, Any]]:
    """By arm, what the study gives with a checkout's own code; one row of the error where it does not run."""
    env = {**os.environ, "PYTHONPATH": str(Path(checkout).resolve())}
    command = [sys.executable, __file__, "play", study]
    done = subprocess.run(command, env=env, cwd=checkout, capture_output=True, text=True, check=False)
    found = dict(map(json.loads, done.stdout.splitlines()))
    return found | ({"(ends)": {"error": done.stderr.strip()[-200:]}} if done.returncode else {})


def differing(old: str, new: str, study: str) -> int:
    """The number of figures of a study that differ and are not fresh; each is printed."""
    before, after = played(old, study), played(new, study)
    again = before if before == after else played(old, study)
    found = 0
    for arm in dict.fromkeys([*before, *after]):
        sides = [side.get(arm, {}) for side in (before, after, again)]
        for part in dict.fromkeys([*sides[0], *sides[1]]):
            one, other, fresh = (side.get(part) for side in sides)
            said = "same" if one == other else "fresh" if fresh != one else f"{one} -> {other}"
            print(f"{study}  {arm}  {part}: {said}", flush=True)
            found += part == "error" or said not in ("same", "fresh")
    return found


# In a checkout ---------------------------------------------------------------------------------------


def play(name: str) -> None:
    """Print, as JSON, a line for each arm of a packaged study."""
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
    cells = parse_sweep(text).cells if has_sweep(text) else ()
    studies = [parse(text)] if not cells else [cells[at].study for at in {0, len(cells) // 2, len(cells) - 1}]
    for number, study in enumerate(studies):
        rounds = min(ROUNDS, study.study.rounds)
        often = min(study.study.evaluate_every, rounds)
        section = replace(study.study, rounds=rounds, evaluate_every=often, seeds=study.study.seeds[:1])
        data = replace(study.data, records=min(RECORDS, study.data.records or RECORDS))
        with TemporaryDirectory() as folder:
            try:
                done = securefl.run(
                    replace(study, study=section, data=data), out=f"{folder}/run", progress=False
                )
            except securefl.errors.ConfigError:  # the source has fewer records, or its partition needs more
                done = securefl.run(replace(study, study=section), out=f"{folder}/all", progress=False)
            for arm, rows in done.metrics.groupby("arm"):
                state = done.model(arm).module.state_dict()
                model = hashlib.sha256(b"".join(own.numpy().tobytes() for own in state.values())).hexdigest()
                said = {"model": model[:16], "epsilon": done.epsilon.loc[arm].to_list()}
                said |= {part: rows[part].to_list() for part in ("bytes_up", "bytes_down")}
                print(json.dumps([f"{arm} {number}", said]), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["play", study]:
            play(study)
        case [old, new, *studies]:
            packaged = sorted(path.stem for path in Path(old, "protocols", "studies").glob("*.toml"))
            sys.exit(sum(differing(old, new, study) for study in studies or packaged) > 0)
        case _:
            sys.exit(__doc__)
