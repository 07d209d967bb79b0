"""The wheel under each Python that is here, in an environment with the newest packages that resolve.

    python tools/newest.py    # make check-newest

The environments are kept in the user's cache: a later run, of another checkout too, asks for newer packages
alone. Only torch is held back, to what constraints.txt says. PyPI's build of it comes with 4 GB of CUDA
packages; with PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu set, pip takes the other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """What a command says. It sees no stdin, and none of this Python's own settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, cwd=cwd, env=env, check=True, **streams).stdout.decode()


def starts(python: str | Path, *words: str) -> bool:
    return os.path.exists(python) and not subprocess.run([python, *words], capture_output=True).returncode


def found(version: str) -> Path | None:
    """A Python of this version: of pyenv, or on PATH, where pyenv has shims that start nothing."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    here = [*pyenv.glob(f"versions/{version}.*/bin/python{version}"), shutil.which(f"python{version}")]
    return next((Path(python) for python in here if python and starts(python, "-c", "import venv")), None)


def built(folder: Path) -> Path:
    """The wheel of all tracked files. They are copied first, so that nothing is built in the checkout."""
    for name in filter(os.path.lexists, run("git", "ls-files").splitlines()):
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "tree" / name, follow_symlinks=False)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run(sys.executable, "-c", build, folder, cwd=folder / "tree")
    return next(folder.glob("*.whl"))


def pythons(version: str, python: Path, wheel: Path) -> tuple[Path, Path]:
    """The Python that has this wheel and the newest packages, and one that has Flower's pins before them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "securefl"
    homes = [cache / f"newest-{version}", cache / f"newest-{version}-flower"]
    newest, flower = (home / "bin" / "python" for home in homes)
    for own, home in zip((newest, flower), homes, strict=True):
        if not starts(own, "-m", "pip", "--version"):
            print(f"Python {version}: making {home}", flush=True)
            run(python, "-m", "venv", "--clear", home)
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    (torch,) = re.findall("^torch==.*", (ROOT / "constraints.txt").read_text(), re.M)
    run(newest, *install, "--upgrade", "--upgrade-strategy", "eager", torch, wheel)
    run(newest, *install, "--force-reinstall", "--no-deps", wheel)  # pip keeps another one of this version
    packages = Path("lib", f"python{version}", "site-packages")
    (homes[1] / packages / "newest.pth").write_text(f"{homes[0] / packages}\n")
    run(flower, *install, f"{wheel}[flower]")
    return newest, flower


def main() -> int:
    """Check under each Python, and go on where one fails; 1 if one failed, or none is here, else 0."""
    from mistakes import STUDY

    codes = []
    with tempfile.TemporaryDirectory() as made:
        wheel = built(Path(made))
        for version in VERSIONS:
            if (python := found(version)) is None:
                print(f"Python {version} is not on this machine: not checked.", flush=True)
                continue
            began, here = time.monotonic(), Path(made, version)
            here.mkdir()
            (here / "study.toml").write_text(STUDY.replace("rounds = 1", "rounds = 2"))
            try:
                both = zip(pythons(version, python, wheel), ("check", "check_flower"), strict=True)
                said = [run(own, "-I", __file__, what, cwd=here).splitlines()[-1] for own, what in both]
            except subprocess.CalledProcessError as error:
                said = [(error.stdout or b"").decode(), f"FAILED: {error}"]
            codes.append(said[-1].startswith("FAILED"))
            print(f"Python {version}: {'; '.join(said)} ({time.monotonic() - began:.0f} s)", flush=True)
    return int(not codes or any(codes))


# Inside an environment, in an empty folder with study.toml ------------------------------------------


def names(*, flower: bool) -> int:
    """Import every public name of Flower's face, or of all others; their number."""
    listed = (ROOT / "tests" / "architecture" / "public.txt").read_text(encoding="utf-8")
    own = [(face, name) for face, name in re.findall(r"^([\w.]+)\.(\w+)", listed, re.M)]
    own = [(face, name) for face, name in own if (face == "securefl.flower") is flower]
    for face, name in own:
        getattr(import_module(face), name)
    return len(own)


def check_flower() -> None:
    print(names(flower=True), "of Flower's face")


def check() -> None:
    import numpy
    import torch

    import securefl
    from securefl.commands.main import cli

    def typed(words: str) -> None:
        cli(words.split(), standalone_mode=False)

    assert not Path(securefl.__file__).is_relative_to(ROOT), securefl.__file__
    imported = names(flower=False)
    trust = {"corrupt": 0.25, "min_honest": 2, "max_client_weight": 0.5}
    total = securefl.masked_sum([[1.0, 2.0], [0.5, 0.0], [0.25, 1.0], [9.0, 9.0]], bound=10, **trust).total
    assert numpy.allclose(total, [10.75, 12.0]), total
    typed("keygen --role evaluator --out V")
    typed("keygen --role key-holder --out K")
    to = "--public K/public.key --evaluator V/evaluator"
    for name, mean in {"base": 0.0, "north": 0.1, "south": 1.0}.items():
        Path(f"{name}.json").write_text(json.dumps({"mean": [mean, -mean], "variance": [1.0, 2.0]}))
    for way in ("pads", "strong"):
        for name in ("north", "south"):
            typed(f"encrypt {to}.pub --params {way} --profile {name}.json -o {way}-{name}.enc")
        typed(f"match {to}.key --baseline base.json {way}-north.enc {way}-south.enc -o {way}.enc")
        typed(f"reveal --secret K/secret.key --evaluator V/evaluator.pub {way}.enc")
    typed("run study.toml --out run")
    assert Path("run/report.html").is_file()
    print(f"{imported} names, a sum, files and a run: numpy {numpy.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    sys.exit({"check": check, "check_flower": check_flower}.get(*sys.argv[1:] or ["main"], main)())
