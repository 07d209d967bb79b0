"""Build a release twice, from two clean clones of the last commit, and refuse two that differ in a byte.

python tools/release.py FOLDER    # sdist, wheel, the files of each, how to deploy them, and SHA256SUMS
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
BACKEND = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def require_own_tag() -> None:
    """Exit if the commit has tags, but not that of the version that its package is named by."""
    source = (ROOT / "securefl" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', source, re.M)
    if (tags := git("tag", "--points-at", "HEAD").split()) and f"v{version}" not in tags:
        raise SystemExit(f"Expected the tag v{version} of this commit's __version__, got {', '.join(tags)}.")


def build(tree: Path, out: Path, epoch: int) -> list[Path]:
    """Build an sdist of a tree, and a wheel of that sdist, with all times at `epoch` in seconds."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-c", BACKEND, "build_sdist", place], cwd=tree, env=env, check=True)
        (made,) = Path(place).glob("*.tar.gz")
        sdist = out / made.name
        repack(made, sdist, epoch)
        with tarfile.open(sdist) as packed:
            packed.extractall(place, filter="data")
        unpacked = Path(place) / made.name.removesuffix(".tar.gz")
        words = [sys.executable, "-c", BACKEND, "build_wheel", str(out.resolve())]
        subprocess.run(words, cwd=unpacked, env=env, umask=0o022, check=True)  # a wheel keeps modes
    (wheel,) = out.glob("*.whl")
    return [sdist, wheel]


def repack(made: Path, sdist: Path, epoch: int) -> None:
    """Pack an sdist anew: setuptools writes owners, modes and the hour of the build into it."""
    with (
        tarfile.open(made) as old,
        sdist.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            plain = member.replace(mtime=epoch, mode=mode, uid=0, gid=0, uname="", gname="", deep=False)
            plain.pax_headers = {}
            new.addfile(plain, old.extractfile(member) if member.isfile() else None)


def contents(package: Path) -> list[str]:
    """The names of all files of an sdist or a wheel."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as packed:
            return sorted(packed.namelist())
    with tarfile.open(package) as packed:
        return sorted(member.name for member in packed.getmembers() if not member.isdir())


def sums_of(files: Iterable[Path]) -> str:
    return "".join(f"{sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files)


def write_sums(folder: Path) -> None:
    """Write the hash of each file of a folder to its SHA256SUMS."""
    there = folder / "SHA256SUMS"
    there.write_text(sums_of(sorted({*folder.iterdir()} - {there})), encoding="utf-8")


def main(out: Path) -> None:
    if changed := git("status", "--porcelain"):
        raise SystemExit(f"A release is made of a commit. Commit or remove first:\n{changed}")
    require_own_tag()
    epoch, sums = int(git("log", "-1", "--format=%ct")), []
    with tempfile.TemporaryDirectory() as place:
        for number, folder in enumerate((out, Path(place) / "again")):
            folder.mkdir(parents=True, exist_ok=True)
            clone = Path(place) / f"clone {number}"
            git("clone", "--quiet", str(ROOT), str(clone))
            made = build(clone, folder, epoch)
            sums.append(sums_of(made))
            for one in made:
                one.with_name(f"{one.name}.contents").write_text("\n".join(contents(one)) + "\n", "utf-8")
        shutil.copytree(clone / "deploy", out, dirs_exist_ok=True)
    if sums[0] != sums[1]:
        raise SystemExit(f"Two builds differ:\n{sums[0]}{sums[1]}")
    write_sums(out)
    print(sums[0], end="")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/release.py FOLDER")
    main(Path(sys.argv[1]))
