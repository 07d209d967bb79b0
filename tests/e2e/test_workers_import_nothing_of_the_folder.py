"""A worker of `securefl sweep` is `python -c`, which would import from the working folder first.

In a sticky folder such as /tmp another user puts a `pickle.py`. The command itself never looks there: a
console script has its own folder in front.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_study import FEDAVG, text

MALLORY = 54340
GRID = '\n[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n'


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can play another user")
def test_a_file_of_another_user_in_the_working_folder_is_not_run(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    own.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    (own / "study.toml").write_text(text(FEDAVG, rounds=1) + GRID)
    planted = shared / "pickle.py"
    mark = tmp_path / "ran"
    planted.write_text(
        f"import sys\nopen({str(mark)!r}, 'w').write(repr(sys.orig_argv))\nraise SystemExit(3)\n"
    )
    os.chown(planted, MALLORY, MALLORY)
    script = own / "securefl"  # as the console script of an installed package
    script.write_text("import sys\nfrom securefl.commands.main import cli\ncli()\n")
    subprocess.run(
        [sys.executable, script, "sweep", own / "study.toml", "--workers", "2", "--out", own / "out"],
        cwd=shared,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert not mark.exists(), mark.read_text()


SPAWNS = """
import sys
from securefl.storage.processes import Ended, Supervisor

def work(line):
    return 5

if __name__ == "__main__":
    with Supervisor("spawn") as crew:
        crew.start("one", work)
        while crew.running:
            for _, news in crew.hear():
                sys.exit(news.code)
"""


def test_a_spawned_worker_looks_for_nothing_in_the_working_folder(tmp_path: Path) -> None:
    script, here = tmp_path / "script.py", tmp_path / "here"
    script.write_text(SPAWNS)
    here.mkdir()
    for name in ("pickle", "multiprocessing", "securefl"):
        (here / f"{name}.py").write_text(f"open('{name} ran', 'w').close()")
    done = subprocess.run([sys.executable, script], cwd=here, check=False)
    assert done.returncode == 5
    assert not list(here.glob("* ran"))
