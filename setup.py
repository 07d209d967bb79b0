"""Marks a package with the commit that it is built from. All else stands in pyproject.toml."""

import os
import subprocess
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent


def mark(package: Path) -> None:
    """Write the checkout's commit into a package. Without a git checkout nothing is written."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    # An sdist may be unpacked inside of another repository, whose commit says nothing of it.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(HERE.parent)}
    try:
        said = subprocess.run(words, cwd=HERE, env=env, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return
    (package / "commit.txt").write_text(said, encoding="utf-8")


class MarkedBuild(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            mark(Path(self.build_lib) / "securefl")


class MarkedSource(sdist):
    def make_release_tree(self, base_dir: str, files: Any) -> None:
        super().make_release_tree(base_dir, files)
        mark(Path(base_dir) / "securefl")


setup(cmdclass={"build_py": MarkedBuild, "sdist": MarkedSource})
