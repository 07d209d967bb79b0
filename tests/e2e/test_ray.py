"""Studies, sweeps and tables on a Ray cluster of two nodes on this machine, one of which is lost in a run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from support import pages
from support.pages import ROOT
from support.tiny_study import FEDAVG, FEDPROF, plain, study, text
from support.tiny_table import TABLE

from securefl.commands.exit_codes import ExitCode
from securefl.commands.sweep import sweep
from securefl.core.errors import ConfigError
from securefl.published.run import run_table
from securefl.storage.cluster import ClusterCrew
from securefl.study import session
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint, rounds_in
from securefl.study.config import Arm, RuntimeSection, Study, read
from securefl.study.session import run_study

# Ray leaves files and sockets of its processes to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROUNDS = 40
MEMORY = 80 * 2**20
SOURCE = Path(session.__file__).parents[1]
# As `test_sweep_run`: a shell that puts the tests in the background has its children ignore Ctrl-C.
CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from securefl.commands.main import main; main()"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one node with a processor. Tests add further ones."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": MEMORY}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()


@pytest.fixture
def add(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Adds nodes to the cluster, which are removed after the test."""
    added: list[Any] = []

    def adding(**options: Any) -> Any:
        added.append(cluster.add_node(num_cpus=1, object_store_memory=MEMORY, **options))
        cluster.wait_for_nodes()
        return added[-1]

    yield adding
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than all rounds."""
    monkeypatch.setattr(session, "_written", lambda *_: (None, Path()))


def of(runtime: RuntimeSection, rounds: int = ROUNDS) -> Study:
    return replace(study(FEDAVG, FEDPROF, rounds=rounds, seeds="[3, 4]"), runtime=runtime)


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for arm in of(RuntimeSection()).arms:
        for seed in (3, 4):
            home = arm_folder(folder, arm, seed)
            with Checkpoint(checkpoint_file(home)) as kept:
                state, records = kept.load()
            assert state is not None
            counts = [record["ledger"]["count"] for record in records]
            found[f"{arm.name} {seed}"] = state.broadcast.tobytes(), plain(records), counts
    return found


def test_a_lost_node_changes_no_bit(
    cluster: Any, add: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lane goes on elsewhere from its last round, and its ledger counts every round once."""
    run_study(of(RuntimeSection(workers=1)), tmp_path / "here", lambda *_: None)
    node, lost, told = add(), [], []
    losing = ClusterCrew._lost

    def noting(self: Any, actor: Any, why: str) -> Any:
        lost.append(why)
        return losing(self, actor, why)

    monkeypatch.setattr(ClusterCrew, "_lost", noting)

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        told.append((arm.name, seed, record["round"]))
        if len({(name, at) for name, at, _ in told}) == 2 and node in cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)

    runtime = RuntimeSection(backend="ray", address=cluster.address)
    run_study(of(runtime), tmp_path / "there", tell)
    assert lost
    assert len(told) == len(set(told)) == 4 * ROUNDS
    assert results(tmp_path / "there") == results(tmp_path / "here")


# Ray puts this process's paths in front of a worker's, so a node's own packages are given by a finder.
FINDER = """
import importlib.machinery, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "securefl":
            if {other!r} is None:
                raise ModuleNotFoundError("No module named 'securefl'")
            return importlib.machinery.PathFinder.find_spec(name, [{other!r}])

sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize("kind", ["none", "another"])
def test_a_node_with_another_securefl_is_named(
    kind: str, cluster: Any, add: Callable[..., Any], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    if kind == "another":
        shutil.copytree(SOURCE, other / "securefl")
        with (other / "securefl" / "core" / "errors.py").open("a") as file:
            file.write("# another state of the source\n")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(FINDER.format(other=None if kind == "none" else str(other)))
    add(env_vars={"PYTHONPATH": str(site)})
    expected = {
        "none": "got none on node .*No module named 'securefl'",
        "another": r"Expected securefl \S+ \(source .*, as on this machine, got securefl .* on node",
    }
    with pytest.raises(ConfigError, match=expected[kind]):
        run_study(
            of(RuntimeSection(backend="ray", address=cluster.address), 1), tmp_path / "run", lambda *_: None
        )


def test_a_sweep_on_a_cluster_is_that_of_this_machine(
    cluster: Any, add: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # with reports
    add()
    toml = tmp_path / "sweep.toml"
    toml.write_text(text(FEDAVG, seeds="[3, 4]") + '[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n')
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    for backend in ("processes", "ray"):
        done = CliRunner().invoke(
            sweep, [str(toml), "--out", str(tmp_path / backend), "--workers", "2", "--backend", backend]
        )
        assert done.exit_code == ExitCode.DONE, done.output
    tables = [pd.read_csv(tmp_path / name / "results.csv") for name in ("processes", "ray")]
    pd.testing.assert_frame_equal(*tables)


def test_a_model_beside_the_study_travels_with_its_data(
    cluster: Any, add: Callable[..., Any], tmp_path: Path
) -> None:
    """Nodes have neither the file of the records nor that of the model."""
    add()
    home = tmp_path / "home"
    home.mkdir()
    for name in ("own_table.toml", "net.py", "patients.csv"):
        shutil.copy(ROOT / "docs" / "examples" / name, home / name)
    asked = read(home / "own_table.toml")
    found = []
    for backend in ("processes", "ray"):
        address = cluster.address if backend == "ray" else None
        runtime = RuntimeSection(backend=backend, address=address)
        records: list[dict[str, Any]] = []
        run_study(
            replace(asked, runtime=runtime),
            tmp_path / backend,
            lambda arm, seed, record, records=records: records.append(dict(record)),  # type: ignore[misc]
        )
        found.append(sorted(plain(records), key=str))
    assert found[0] == found[1]


def test_a_table_on_a_cluster_is_that_of_this_machine(
    cluster: Any, add: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # with reports
    add()
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    done = {
        backend: run_table(TABLE, tmp_path / backend, lambda *_: None, backend=backend)
        for backend in ("processes", "ray")
    }
    for name, own in done["processes"].items():
        other = done["ray"][name].metrics
        pd.testing.assert_frame_equal(
            own.metrics.drop(columns="wall_seconds"), other.drop(columns="wall_seconds")
        )


def test_the_page_says_what_happens(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """how-to/cluster.md: its own cluster is this one, and the words of Ray's command are looked up."""
    monkeypatch.undo()
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
        name, _, rest = command.partition(" ")
        if name.startswith("RAY_ADDRESS="):
            monkeypatch.setenv("RAY_ADDRESS", cluster.address)
            return run(rest)
        return run(command)

    monkeypatch.setattr(pages, "shell", shell)
    assert pages.run_page(page) == []


def started(toml: Path, out: Path, before: int) -> subprocess.Popen[str]:
    """A run on a cluster of this machine that it starts itself, which has more rounds than before."""
    running = subprocess.Popen(
        [sys.executable, "-c", CODE, "run", str(toml), "--out", str(out), "--backend", "ray"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    home = out / "private" / "arms" / "fedavg" / "seed-3"
    while finished(home) <= before:
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    return running


def finished(home: Path) -> int:
    path = checkpoint_file(home)
    return rounds_in(path) if path.exists() else 0


def test_ctrl_c_ends_the_cluster_and_the_same_command_goes_on(tmp_path: Path) -> None:
    toml, out = tmp_path / "study.toml", tmp_path / "out"
    toml.write_text(text(FEDAVG, rounds=2000))
    home, first = out / "private" / "arms" / "fedavg" / "seed-3", 0
    for _ in range(2):
        running = started(toml, out, first)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        _, stderr = running.communicate(timeout=120)
        assert running.returncode == ExitCode.INTERRUPTED, stderr
        assert "Traceback" not in stderr
        assert f"Go on with: securefl run {out / 'study.toml'} --out {out}" in stderr
        assert first < finished(home) < 2000
        first = finished(home)
    while subprocess.run(["pgrep", "-s", str(running.pid)], stdout=subprocess.DEVNULL).returncode == 0:
        time.sleep(0.1)  # the test's time limit ends a wait for ever
