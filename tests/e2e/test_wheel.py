"""An installed package has the systems below `securefl`, nothing called `protocols` at the top, and a demo.

`make package` runs this file, and CI does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from contextlib import nullcontext
from email import message_from_string
from pathlib import Path

import pytest
import release
from support.checkout import copied, listed

from securefl import __version__

pytestmark = pytest.mark.slow
BUILD = release.BACKEND
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


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    return built(tree, "build_wheel", tree.with_name("wheel"))


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    return built(tree, "build_sdist", tree.with_name("sdist"))


def expected() -> set[str]:
    """Every module, study, template, specification and mark of the checkout, by its name in the wheel."""
    kinds = (".py", ".pyi", ".j2", ".toml", "py.typed", "SPEC.md", "PROOF.md")
    own = [name for name in listed() if name.startswith(("securefl/", "protocols/")) and name.endswith(kinds)]
    return {f"securefl/{name}" if name.startswith("protocols/") else name for name in own}


def check(names: Iterable[str]) -> None:
    files = {name for name in names if ".dist-info/" not in name}
    assert files == expected()
    assert {name.split("/")[0] for name in files} == {"securefl"}
    assert "securefl/protocols/py.typed" in files
    assert {"securefl/protocols/studies/demo.toml", "securefl/secagg/SPEC.md"} <= files


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


def test_an_sdist_is_the_whole_checkout(sdist: Path) -> None:
    with tarfile.open(sdist) as packed:
        files = {name.partition("/")[2] for name in packed.getnames()}
    own = {
        f"securefl/{name}" if name.startswith("protocols/") else name
        for name in listed()
        if name != ".gitignore"
    }
    assert own <= files


@pytest.fixture(scope="module")
def repository(tree: Path) -> Path:
    """The tree as a repository of one commit."""
    home = shutil.copytree(tree, tree.with_name("repository"), symlinks=True)
    git = ["git", "-C", str(home), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    return home


def head(repository: Path) -> str:
    words = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_two_builds_of_a_commit_have_the_same_bytes_and_its_name(repository: Path, tmp_path: Path) -> None:
    made = []
    for name, mask in (("first", 0o22), ("second", 0o77)):
        (tmp_path / name).mkdir()
        was = os.umask(mask)
        try:
            subprocess.run(["git", "clone", "-q", repository, tmp_path / f"{name} clone"], check=True)
            made.append(release.build(tmp_path / f"{name} clone", tmp_path / name, epoch=1_700_000_000))
        finally:
            os.umask(was)
    for first, second in zip(*made, strict=True):
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes(), first.name
    sdist, wheel = made[0]
    assert sum(name.endswith("/securefl/commit.txt") for name in release.contents(sdist)) == 1
    with zipfile.ZipFile(wheel) as packed:
        assert packed.read("securefl/commit.txt").decode() == head(repository)


def test_a_release_has_the_folder_deploy_of_its_commit(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", repository, clone], check=True)
    committed = {path.name: path.read_bytes() for path in (clone / "deploy").iterdir()}
    stale = clone / "deploy" / "__pycache__"  # ignored, so the checkout counts as unchanged
    stale.mkdir()
    (stale / "stale.pyc").touch()
    monkeypatch.setattr(release, "ROOT", clone)
    release.main(tmp_path / "dist")
    packed = {path.name: path.read_bytes() for path in (tmp_path / "dist").iterdir()}
    assert committed.items() <= packed.items()
    sums = packed.pop("SHA256SUMS").decode().splitlines()
    assert [line.split("  ")[1] for line in sums] == sorted(packed)


@pytest.mark.parametrize(
    ("tags", "refused"), [((), False), (("v0.0.1",), True), (("v0.0.1", f"v{__version__}"), False)]
)
def test_a_commit_is_released_under_no_tag_or_that_of_its_version(
    tags: tuple[str, ...], refused: bool, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", repository, clone], check=True)
    for tag in tags:
        subprocess.run(["git", "-C", clone, "tag", tag], check=True)
    monkeypatch.setattr(release, "ROOT", clone)
    with pytest.raises(SystemExit, match=r"v0\.0\.1") if refused else nullcontext():
        release.require_own_tag()


def test_a_changed_checkout_says_so(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", repository, clone], check=True)
    with (clone / "README.md").open("a", encoding="utf-8") as readme:
        readme.write("changed\n")
    with zipfile.ZipFile(built(clone, "build_wheel", tmp_path / "made")) as packed:
        assert packed.read("securefl/commit.txt").decode() == head(repository).strip() + "-dirty\n"


def test_a_tree_inside_another_repository_has_no_commit(tree: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    shutil.copytree(tree, tmp_path / "inner", symlinks=True)
    with zipfile.ZipFile(built(tmp_path / "inner", "build_wheel", tmp_path / "made")) as packed:
        assert "securefl/commit.txt" not in packed.namelist()


def test_what_an_index_is_told(wheel: Path) -> None:
    """Whoever finds the package learns what it is, for whom, and under which licence."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        said = message_from_string(packed.read(name).decode())
    assert said["Version"] == __version__
    assert said["License-Expression"] == "Apache-2.0"
    assert "secure aggregation" in said["Keywords"]
    assert {"Topic :: Security :: Cryptography", "Typing :: Typed"} <= set(said.get_all("Classifier", []))
    assert said["Description-Content-Type"] == "text/markdown"


@pytest.mark.timeout(900)
def test_the_wheel_runs_the_demo_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    """Its own environment has the wheel; what it depends on comes from the tests' environment, by path."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "-q", "--no-deps"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([*install, "--no-index", wheel], check=True, capture_output=True, env=clean)
    # A path in it, not its own .pth files: an editable install of the checkout is not found by this.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False, timeout=880
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run(home / "bin" / "python", "-c", "import securefl; print(securefl.__file__)")
    assert Path(where.strip()).is_relative_to(home)
    securefl = home / "bin" / "securefl"
    assert "demo" in run(securefl, "studies").split()
    found = json.loads(run(securefl, "demo", "--out", "demo", "--json"))
    assert (tmp_path / "demo" / "report.html").is_file()
    assert len(found["arms"]) == 5
    assert [arm["name"] for arm in found["arms"] if arm["epsilon"]["server"] != "inf"] == ["Head with noise"]
    assert found["privacy_cost"].startswith("A finite epsilon cost ")
    assert found["private"]["warnings"] == []


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
