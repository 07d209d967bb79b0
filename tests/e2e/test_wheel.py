"""What an installed package has: the systems below `securefl`, and nothing called `protocols` at the top."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
ANOTHER = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "another"
version = "1"
[tool.setuptools]
packages = ["protocols"]
"""
BESIDE = """
import protocols
from securefl.protocols.fedavg import FedAvg
from securefl.study.packaged import packaged
import securefl
print(protocols.OWNER, FedAvg.__module__, len(packaged()), securefl.__file__)
"""


def built(tree: Path, what: str, out: Path) -> Path:
    """The one file that the build backend makes of a tree."""
    out.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(out)], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (made,) = out.iterdir()
    return made


def listed() -> list[str]:
    """All tracked files that are there."""
    said = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in said.splitlines() if os.path.lexists(ROOT / name)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all tracked files, so that nothing is built in the checkout."""
    home = tmp_path_factory.mktemp("tree")
    for name in listed():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, home / name, follow_symlinks=False)
    return home


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    return built(tree, "build_wheel", tree.with_name("wheel"))


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    return built(tree, "build_sdist", tree.with_name("sdist"))


def expected() -> set[str]:
    """Every module, study, template and mark of the checkout, by its name in the wheel."""
    kinds = (".py", ".j2", ".toml", "py.typed")
    own = [name for name in listed() if name.startswith(("securefl/", "protocols/")) and name.endswith(kinds)]
    return {f"securefl/{name}" if name.startswith("protocols/") else name for name in own}


def check(names: Iterable[str]) -> None:
    files = {name for name in names if ".dist-info/" not in name}
    assert files == expected()
    assert {name.split("/")[0] for name in files} == {"securefl"}
    assert "securefl/protocols/py.typed" in files
    assert "securefl/protocols/studies/demo.toml" in files


def test_a_wheel_has_all_of_it_below_securefl(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        check(packed.namelist())


def test_a_wheel_of_the_sdist_has_the_same(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert not (unpacked / "protocols").exists()
    with zipfile.ZipFile(built(unpacked, "build_wheel", tmp_path / "made")) as packed_again:
        check(packed_again.namelist())


def test_it_stands_beside_another_owner_of_the_short_name(wheel: Path, tmp_path: Path) -> None:
    project, together = tmp_path / "another", tmp_path / "together"
    (project / "protocols").mkdir(parents=True)
    (project / "protocols" / "__init__.py").write_text('OWNER = "another"\n')
    (project / "pyproject.toml").write_text(ANOTHER)
    other = built(project, "build_wheel", tmp_path / "made")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", together]
    subprocess.run([*install, wheel, other], check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-c", BESIDE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(together)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    owner, module, studies, home = done.stdout.split()
    assert (owner, module) == ("another", "securefl.protocols.fedavg")
    assert int(studies) > 5
    assert Path(home).is_relative_to(together)
