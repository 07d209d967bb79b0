"""The NVFlare example from a clean environment, by its one command, in NVFlare's simulator."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.checkout import copied

from securefl.accounting import statement

SITES = tuple(f"client-{number:04}" for number in range(5))

# It makes an environment of its own: a minute of pip, and the simulator's processes after that.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run's folder, and what `make nvflare` printed in a copy of the repository without environments."""
    home = copied(tmp_path_factory.mktemp("clean"))
    # Nothing of the tests' own environment may help.
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTEST_ADDOPTS")
    done = subprocess.run(
        ["make", "nvflare"],
        cwd=home,
        env={name: value for name, value in os.environ.items() if name not in ours},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return home / "runs" / "nvflare", done.stdout


def test_the_final_model_is_that_of_nvflares_own_fedavg(made: tuple[Path, str]) -> None:
    folder, said = made
    plain, secure = (np.load(folder / f"{job}.npy").astype(np.float64) for job in ("plain", "secure"))
    assert plain.shape == secure.shape == (2410,)
    assert np.abs(plain - secure).max() <= 1e-6
    assert re.search(r"final models: 2410 values, at most \d\.\de-0[7-9] apart", said)


def test_both_runs_have_trained_on_all_sites(made: tuple[Path, str]) -> None:
    """Two models that nobody trained would be equal too."""
    folder, said = made
    losses = re.findall(r"round (\d): 5 sites with 1594 records, loss (\d\.\d+) before it", said)
    assert [number for number, _ in losses] == ["1", "2", "3"]
    assert float(losses[0][1]) > float(losses[1][1]) > float(losses[2][1])
    plain = np.load(folder / "plain.npy")
    assert np.abs(plain - np.load(folder / "start.npy")).max() > 0.01


def test_each_party_charged_three_updates_and_nothing_failed_in_silence(made: tuple[Path, str]) -> None:
    folder, _ = made
    assert "Traceback" not in (folder / "logs" / "secure.log").read_text()
    for name in SITES:
        releases = statement(folder / "parties" / name / "ledger.sqlite", party="server").releases
        assert [(row["holder"], row["name"], row["round"]) for row in releases] == [
            (name, "update", number) for number in (1, 2, 3)
        ]
        assert {row["state"] for row in releases} == {"committed"}


def test_no_process_of_it_is_left(made: tuple[Path, str]) -> None:
    folder, _ = made
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = one.read_bytes().decode(errors="replace")
        except OSError:
            continue
        assert str(folder.parents[1]) not in words
