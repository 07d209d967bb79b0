"""Whether two checkouts give the same models, epsilons and bytes for the packaged studies.

    python tools/same_results.py OLD NEW [--rounds 3] [--records 3000] [--study NAME ...] [--json]
    python tools/same_results.py OLD --keep FILE      # what OLD gives, to be compared later as FILE

OLD and NEW are folders of checkouts; each runs with its own code in this interpreter's environment. Every
study is played for a few rounds of its first seed, with fewer records; of a sweep three cells are. A model's
digest is of what the server broadcasts next. The first arm of a study is played once more, stopped after its
first round and resumed: `resumed` is the digest of that model. `ledger` is a digest of the terms and of every
release on record, but for session and time. `refused` is what spoilt texts of the study are told. Where noise
or keys are fresh, digests differ between two runs of one checkout too: `--twice` runs OLD a second time, and
says "fresh" there. Exit code 1 where a row differs that need not.
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
import hashlib, importlib, importlib.metadata as metadata, json, re, sqlite3, sys, tempfile, tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

said = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"]
# What is installed may be another checkout, whose modules have other names.
points = [
    metadata.EntryPoint(name, value, group) for group, found in said.items() for name, value in found.items()
]
metadata.entry_points = lambda **asked: metadata.EntryPoints(points).select(**asked)
import numpy as np

def first(name, *modules):
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise SystemExit(f"Expected {name} in one of {modules}: say where it is now in tools/same_results.py.")

build = first("build", "securefl.study.world")
Checkpoint = first("Checkpoint", "securefl.study.checkpoint")
parse = first("parse", "securefl.study.config")
arm_folder = first("arm_folder", "securefl.study.arm", "securefl.study.run")
run_arm = first("run_arm", "securefl.study.run")
single_thread = first("single_thread", "securefl.training", "securefl.training.threads")
ConfigError = first("ConfigError", "securefl.core.errors")
text_of = first("text_of", "securefl.study.packaged")
has_sweep = first("has_sweep", "securefl.sweep.cells")
parse_sweep = first("parse_sweep", "securefl.sweep.cells")

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
    most = min(rounds, section.rounds)
    often = min(section.evaluate_every, most)
    section = replace(section, rounds=most, evaluate_every=often, seeds=section.seeds[:1])
    study = replace(study, study=section)
    fewer = replace(study, data=replace(study.data, records=max(few, study.data.clients)))
    try:
        return fewer, build(fewer, study.study.seeds[0])
    except ConfigError:  # the source has fewer, or its partition needs more
        return study, build(study, study.study.seeds[0])

def model_in(home):
    own = home / "checkpoint.sqlite"
    with Checkpoint(own if own.exists() else home / "ledger.sqlite") as checkpoint:
        state, _ = checkpoint.load()
    broadcast = getattr(state, "broadcast", None)
    return hashlib.sha256(np.ascontiguousarray(state.model if broadcast is None else broadcast).tobytes())

def ledger_in(home):
    # Sessions have a fresh nonce, and places in the chain follow the order in which clients were heard.
    columns = "holder, round, stage, attempt, name, charge, introduction, number, committed IS NULL"
    with closing(sqlite3.connect(home / "ledger.sqlite")) as db:
        terms = db.execute("SELECT name, value FROM terms WHERE name != 'identity' ORDER BY name").fetchall()
        rows = sorted(db.execute(f"SELECT {columns} FROM releases").fetchall())
    return hashlib.sha256(json.dumps([terms, rows]).encode())

SPOILT = {
    "noise of no mechanism": (r'(?m)^noise = .*$', 'noise = "loud"'),
    "noise without epsilon": (r'(?m)^noise = .*$', 'noise = "distributed"'),
    "a way of summing that is none": (r'(?m)^sum = .*$', 'sum = "aloud"'),
    "a way of scoring that is none": (r'(?m)^scores = .*$', 'scores = "aloud"'),
    "delta 0": (r'(?m)^delta = .*$', 'delta = 0'),
    "no delta": (r'(?m)^delta = .*$', ''),
    "a budget of nearly nothing": (r'(?m)^budget = .*$', 'budget = 1e-6'),
    "nothing unprotected": (r'(?m)^non_private = .*$', 'non_private = []'),
    "a cohort of one": (r'(?m)^min_cohort_size = .*$', 'min_cohort_size = 1'),
    "a whole share": (r'(?m)^max_client_weight = .*$', 'max_client_weight = 1.0'),
    "a unit that is none": (r'(?m)^unit = .*$', 'unit = "person"'),
    "a key that is none": (r'(?m)^rounds = ', 'round = '),
    "a protocol that is none": (r'(?m)^protocol = .*$', 'protocol = "fedwhat"'),
}

def told():
    composition = first("composition", "securefl.study.composition")
    for what, (pattern, instead) in SPOILT.items():
        spoilt, often = re.subn(pattern, instead, text, count=1)
        if not often:
            continue
        try:
            study = parse_sweep(spoilt).cells[0].study if has_sweep(spoilt) else parse(spoilt)
            few, here = short(study)
            for arm in few.arms:
                composition(few, arm, here)
            yield what, "not refused"
        except Exception as error:
            yield what, f"{type(error).__name__}: {error}"

for cell, own in studies.items():
    study, here = short(own)
    for place, arm in enumerate(study.arms):
        resumed = ""
        with tempfile.TemporaryDirectory() as folder:
            run = run_arm(study, arm, here, Path(folder), lambda record: None)
            home = arm_folder(Path(folder), arm, here.seed)
            model, ledger = model_in(home), ledger_in(home)
        if place == 0:
            with tempfile.TemporaryDirectory() as folder:
                run_arm(study, arm, here, Path(folder), lambda record: None, rounds=1)
                run_arm(study, arm, here, Path(folder), lambda record: None)
                resumed = model_in(arm_folder(Path(folder), arm, here.seed)).hexdigest()[:16]
        print(json.dumps({
            "arm": f"{arm.name}{cell}",
            "model": model.hexdigest()[:16],
            "epsilon": [r["epsilon"] for r in run.records],
            "up": [r["bytes_up"] for r in run.records],
            "down": [r["bytes_down"] for r in run.records],
            "resumed": resumed,
            "ledger": ledger.hexdigest()[:16],
        }), flush=True)
for what, answer in told():
    print(json.dumps({"arm": f"({what})", "refused": answer}), flush=True)
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


PARTS = ("model", "epsilon", "up", "down", "resumed", "ledger", "refused")


def compared(old: Mapping[str, Any], new: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, str]:
    """Of each part: "same", "fresh" where OLD differs from itself, or what there is on both sides."""
    found = {}
    for part in PARTS:
        if part not in {**old, **new} and "error" not in {**old, **new}:
            continue
        before, after = old.get(part, old.get("error")), new.get(part, new.get("error"))
        if before == after and "error" not in old:
            found[part] = "same"
        elif again and again.get(part) != before:
            found[part] = "fresh"
        else:
            found[part] = f"{_short(before)} -> {_short(after)}"
    return found


def _short(value: Any) -> str:
    return str(value[-1] if isinstance(value, list) else value)[:160]


ClientState = Mapping[str, Mapping[str, Any]]
"""By study, what `played` gave."""


def kept(place: Path) -> ClientState:
    """What --keep wrote, if the place is such a file."""
    return json.loads(place.read_text(encoding="utf-8")) if place.is_file() else {}


def rows(options: argparse.Namespace, before: ClientState, after: ClientState) -> Iterator[dict[str, str]]:
    for study in options.study:
        given = (study, options.rounds, options.records)
        old = before[study] if before else played(options.old, *given)
        new = after[study] if after else played(options.new, *given)
        again = played(options.old, *given) if options.twice else {}
        for arm in [*old, *(arm for arm in new if arm not in old)]:
            none: Mapping[str, Any] = {"error": "not there"}
            sides = old.get(arm, none), new.get(arm, none), again.get(arm, {})
            yield {"study": study, "arm": arm, **compared(*sides)}


def keep(options: argparse.Namespace) -> None:
    """Write what OLD gives, study by study, as JSON."""
    found = {}
    for study in options.study:
        found[study] = played(options.old, study, options.rounds, options.records)
        print(f"{study}: {len(found[study])} rows", flush=True)
        options.keep.write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="a checkout, or a file that --keep wrote")
    parser.add_argument("new", type=Path, nargs="?", help="the same")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=3000)
    parser.add_argument("--study", nargs="+", help="names of packaged studies; all of OLD by default")
    parser.add_argument("--twice", action="store_true", help="run OLD twice, and mark what is fresh there")
    parser.add_argument("--keep", type=Path, help="write what OLD gives into this file, and compare nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (options.new is None) == (options.keep is None) or (options.twice and options.old.is_file()):
        parser.error("Expected OLD and NEW, or OLD and --keep FILE; --twice needs OLD as a checkout.")
    before, after = kept(options.old), kept(options.new) if options.new else {}
    folder = options.old / "protocols" / "studies"
    options.study = options.study or sorted(before or (path.stem for path in folder.glob("*.toml")))
    if options.keep is not None:
        keep(options)
        return 0
    same = True
    for row in rows(options, before, after):
        same &= all(row.get(part, "same") in ("same", "fresh") for part in PARTS)
        line = json.dumps(row) if options.json else "  ".join(f"{value:<22}" for value in row.values())
        print(line.rstrip(), flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
