"""The example app on real processes: a SuperLink with TLS, registered SuperNodes, and one that is killed."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "examples" / "flower" / "federation.py"

# Its processes start one after the other, and stock nodes start one more for every message.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def run(out: Path, *options: str) -> tuple[str, list[dict[str, str]]]:
    """What the driver printed, and the rounds of its run. No process of it is left."""
    command = [sys.executable, str(DRIVER), "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out.parent, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left(out) == []
    # Who answered is not for publication: the public table has no such column.
    with (out / "run" / "private" / "metrics.csv").open() as file:
        return done.stdout, list(csv.DictReader(line for line in file if not line.startswith("#")))


def left(out: Path) -> list[str]:
    """Processes that name this folder."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = one.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(out) in words and one.parent.name != str(os.getpid()):
            found.append(words.replace("\0", " "))
    return found


# A shell that puts the tests in the background has its children ignore Ctrl-C.
INTERRUPTED = """
import signal, sys, time
from pathlib import Path
from processes import federation
signal.signal(signal.SIGINT, signal.default_int_handler)
folder = Path(sys.argv[1])
with federation(folder) as own:
    own.start("deaf", "sh", "-c", "trap '' TERM INT; sh -c 'sleep 600; :' $0 & echo here; wait", folder)
    own.wait("deaf", lambda: "here" in own.said("deaf"))
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_process_is_left_after_an_interrupt(tmp_path: Path, number: signal.Signals) -> None:
    """Neither one that does not listen, nor what it started; and a second interrupt changes nothing."""
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    found = [str(DRIVER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(found)},
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        assert len(left(tmp_path)) > 1
        driver.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            driver.wait(1)
        driver.send_signal(number)
        assert driver.wait(60) != 0
    assert left(tmp_path) == []


def test_a_supernode_is_killed_and_the_others_sum_comes_out(tmp_path: Path) -> None:
    said, rounds = run(tmp_path / "f", "--kill", "client-0002")
    assert [row["answered"] for row in rounds] == ["5", "4"]
    assert "client-0000: sent 3 releases" in said
    assert "round 2: 4 of 5 answered; client-0002 silent since round 2" in said


def test_nodes_of_an_installed_app_carry_the_same_rounds(tmp_path: Path) -> None:
    said, rounds = run(tmp_path / "f", "--installed")
    assert [row["answered"] for row in rounds] == ["5", "5"]
    assert "refused" not in said


@pytest.mark.skipif(
    subprocess.run(["unshare", "--net", "--map-root-user", "true"], check=False).returncode != 0,
    reason="no network namespaces here, and Ray listens on all interfaces without one",
)
def test_the_same_app_runs_in_a_simulation(tmp_path: Path) -> None:
    _, rounds = run(tmp_path / "f", "--simulation")
    assert [row["answered"] for row in rounds] == ["5", "5"]
