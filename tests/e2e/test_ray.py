"""Sweeps on a Ray cluster of two nodes on this machine, and one whose workers end themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from e2e import pages
from e2e.pages import ROOT
from support.tiny_study import FEDAVG, text

from securefl.commands.exit_codes import ExitCode
from securefl.commands.sweep import sweep

# Ray leaves files and sockets of its processes to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
MEMORY = 80 * 2**20
# As `test_sweep_run`: a shell that puts the tests in the background has its children ignore Ctrl-C.
CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from securefl.commands.main import main; main()"
)
CELLS = '[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n'
DYING = """
import os, pathlib, sys
from sklearn.datasets import load_digits

MARK = pathlib.Path(__file__).with_name("lost")

def digits():
    if "default_worker" in sys.argv[0] and not MARK.exists():
        MARK.touch()
        os._exit(1)
    return load_digits(return_X_y=True)
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two nodes with a processor each."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from ray.cluster_utils import Cluster

    before = signal.getsignal(signal.SIGTERM)
    options = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": MEMORY}
    made = Cluster(initialize_head=True, head_node_args=options)
    made.add_node(num_cpus=1, object_store_memory=MEMORY)
    made.wait_for_nodes()
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    made.shutdown()
    signal.signal(signal.SIGTERM, before)  # each node has set Ray's


def swept(toml: Path, out: Path, *options: str) -> pd.DataFrame:
    done = CliRunner().invoke(sweep, [str(toml), "--out", str(out), *options])
    assert done.exit_code == ExitCode.DONE, done.output
    return pd.read_csv(out / "results.csv")


@pytest.mark.usefixtures("cluster")
def test_a_sweep_whose_worker_dies_is_that_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    toml = tmp_path / "sweep.toml"
    toml.write_text(
        text(FEDAVG, seeds="[3, 4]").replace('source = "digits"', 'source = "dying:digits"\nclasses = 10')
        + CELLS
    )
    there = swept(toml, tmp_path / "there", "--ray")
    assert (tmp_path / "lost").exists()
    pd.testing.assert_frame_equal(there, swept(toml, tmp_path / "here", "--workers", "1"))


def test_the_page_says_what_happens(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """how-to/cluster.md: its own cluster is this one, and the words of Ray's command are looked up."""
    monkeypatch.chdir(tmp_path)
    run, page = pages.shell, ROOT / "docs" / "how-to" / "cluster.md"

    def shell(command: str) -> str:
        if command.startswith("pip install"):
            return ""
        if command.startswith("ray "):
            _, verb, *options = command.split()
            known = run(f"{Path(sys.executable).parent / 'ray'} {verb} --help")
            assert all(option.partition("=")[0] in known for option in options), known
            return ""
        return run(command.removeprefix("RAY_ADDRESS=10.0.0.1:6379 "))

    monkeypatch.setattr(pages, "shell", shell)
    assert pages.run_page(page) == []


def until(reached: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    while not reached():
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)


def test_ctrl_c_ends_the_cluster_and_keeps_finished_cells(tmp_path: Path) -> None:
    toml, out = tmp_path / "study.toml", tmp_path / "out"
    toml.write_text(text(FEDAVG) + '[sweep.grid]\n"study.rounds" = [2, 5000, 5001]\n')
    running = subprocess.Popen(
        [sys.executable, "-c", CODE, "sweep", str(toml), "--out", str(out), "--ray"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    until(lambda: any(out.glob("cells/*/private/cell.json")), running)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    _, stderr = running.communicate(timeout=120)
    assert running.returncode == ExitCode.INTERRUPTED, stderr
    assert "Traceback" not in stderr
    assert f"securefl sweep {out / 'sweep.toml'} --out {out} --ray" in stderr
    assert len(list(out.glob("cells/*/private/cell.json"))) == 1
    while subprocess.run(["pgrep", "-s", str(running.pid)], stdout=subprocess.DEVNULL).returncode == 0:
        time.sleep(0.1)  # the test's time limit ends a wait for ever
