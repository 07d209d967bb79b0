"""Hostile bytes, in processes of their own: a crash there is seen here."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fuzz.decoders import ALONE, parsing
from fuzz.parties import KINDS

FUZZ = Path(__file__).with_name("run.py")
ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SLOW = [pytest.param(seed, 25_000, marks=pytest.mark.slow) for seed in range(1, 7)]


def run(folder: Path, *words: object, timeout: int | None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FUZZ, *map(str, words)]
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=environment
    )


@pytest.mark.parametrize(("seed", "inputs"), [(0, 16_000), *SLOW])
def test_many_inputs_do_no_harm_and_every_decoder_gets_some(seed: int, inputs: int, tmp_path: Path) -> None:
    """No crash, no error but the package's own, no growth. Other decoders read what nobody else writes."""
    done = run(tmp_path, seed, inputs, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    figures, *reached = done.stdout.splitlines()
    tried, refused, passed, grown_kib = map(int, figures.split())
    assert tried == inputs
    assert refused > 0.6 * tried
    assert passed > 0, "single flips that leave a valid ring element are garbage, not a danger"
    assert grown_kib < 64 * 1024
    found = set(parsing(ROOT / "securefl", ROOT))
    assert len(found) > 90
    missed = sorted(one for one in found.difference(reached) if not one.startswith(tuple(ALONE)))
    assert missed == [], done.stderr[-4000:]
    assert [where for where in ALONE if not any(one.startswith(where) for one in found)] == []


def test_every_message_class_is_fuzzed() -> None:
    marked = [
        kind
        for path in (ROOT / "securefl").rglob("*.py")
        for kind in re.findall(r'^@message\("([\w-]+)"', path.read_text(encoding="utf-8"), re.M)
    ]
    assert sorted(kind.__wire__.kind for kind in KINDS) == sorted(marked)


def test_a_new_decoder_is_found(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        "class A:\n    def b(self):\n        def c(raw):\n            json.loads(raw)\n"
    )
    assert [one.split()[1] for one in parsing(tmp_path, tmp_path)] == ["A.b.<locals>.c"]


GUIDED = pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed here")


@pytest.mark.slow  # unguided inputs are tried in the fast suite
@pytest.mark.timeout(3600)  # longer than libFuzzer's limit, 1200 seconds, so that an input that hangs is told
@GUIDED
def test_a_minute_of_inputs_guided_by_coverage(tmp_path: Path) -> None:
    done = run(tmp_path, "--guided", 60, tmp_path / "kept", timeout=None)
    _, *table = (tmp_path / "kept" / "fuzz.csv").read_text().splitlines()
    rows = list(csv.DictReader(table))
    assert [row for row in rows if row["findings"] != "0" or int(row["executions"]) == 0] == []
    assert len(rows) > 60
    assert done.returncode == 0, done.stderr[-2000:]


ENDS = """
import os, sys, time
from pathlib import Path
from fuzz import run
from fuzz.target import Target

def loop(raw):
    while raw:
        pass

run.PATIENCE = 1
found = {"loop": loop, "death": lambda raw: raw and os._exit(1), "error": lambda raw: raw[9]}
found |= {"waits": lambda raw: time.sleep(1.5), "takes": lambda raw: None}
found |= {"comes later": lambda raw: Path(sys.argv[1], "fuzz.csv").read_text()}
os.sched_getaffinity = lambda process: {0, 1}
run.targets = lambda: ((name, Target(name, enter, b"valid")) for name, enter in found.items())
run.guided_inputs(1, Path(sys.argv[1]))
"""


@pytest.mark.slow
@GUIDED
def test_a_loop_an_error_and_a_process_that_ends_are_findings(tmp_path: Path) -> None:
    """An input that waits is none: its process may have to, on a loaded machine.

    A run that is interrupted leaves figures: while a later target is tried, those of earlier ones are there.
    """
    command = [sys.executable, "-c", ENDS, str(tmp_path / "kept")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(ROOT)])}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    _, *table = (tmp_path / "kept" / "fuzz.csv").read_text().splitlines()
    found = {row["target"]: row["findings"] for row in csv.DictReader(table)}
    assert found == {"loop": "1", "death": "1", "error": "1", "waits": "0", "takes": "0"} | {
        "comes later": "0"
    }
