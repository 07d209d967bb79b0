"""The wheel under each Python that is here, in an environment with the newest packages that resolve.

    python tools/newest.py [VERSION]    # make check-newest [ON=3.11]

With a version, under this Python alone.

uv resolves in a second, compiles nothing, and links the files of its cache into all environments.
They stay in the user's cache, so that a later run, of another checkout too, fetches newer packages alone.
Only torch is held back, to what constraints.txt says; PyPI's build of it comes with 4 GB of CUDA packages,
so a CPU build in the folder that PIP_FIND_LINKS names is taken first.
Flower's face has an environment of its own, since its pins exclude the newest packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
UV = Path(sys.executable).with_name("uv")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """What a command says. It sees no stdin, and none of this Python's own settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if links := env.get("PIP_FIND_LINKS"):
        env["UV_FIND_LINKS"] = links.replace(" ", ",")
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, cwd=cwd, env=env, check=True, text=True, **streams).stdout


def found(version: str) -> str:
    """The path of a Python of this machine. Empty if there is none, which is told."""
    try:
        return run(UV, "python", "find", "--no-python-downloads", version).strip()
    except subprocess.CalledProcessError:
        print(f"Python {version} is not on this machine: not checked.", flush=True)
        return ""


def checked(version: str, base: str, wheel: Path) -> str:
    """What the checks say under one Python. CalledProcessError if one fails."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "securefl", "check-newest")
    from mistakes import STUDY

    (torch,) = re.findall("^torch==.*", (ROOT / "constraints.txt").read_text(), re.M)
    here, began, said = wheel.with_name(version), time.monotonic(), []
    here.mkdir()
    (here / "study.toml").write_text(STUDY.replace("rounds = 1", "rounds = 2"))
    for check, extra in (("check", ""), ("check_flower", "[flower]")):
        home = cache / f"{version}-{check}"
        python = home / "bin" / "python"
        run(UV, "venv", "--quiet", "--allow-existing", "--python", base, home)
        own = ("--link-mode", "hardlink", "--upgrade", "--reinstall-package", "securefl")
        run(UV, "pip", "install", "--python", python, *own, torch, f"securefl{extra} @ file://{wheel}")
        said += run(python, "-I", __file__, check, cwd=here).splitlines()[-1:]
    return f"Python {version}: {'; '.join(said)} ({time.monotonic() - began:.0f} s)"


def main(*versions: str) -> None:
    """Check under each of these Pythons, and go on where one fails; end with exit code 1 if one failed."""
    from mutants import Copy

    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")  # its shims start nothing
    os.environ["PATH"] = os.pathsep.join([*map(str, pyenv.glob("versions/*/bin")), os.environ["PATH"]])
    bases = [(version, base) for version in versions or VERSIONS if (base := found(version))]
    with TemporaryDirectory() as made, ThreadPoolExecutor(2) as pool:
        run(UV, "build", "--wheel", "--out-dir", made, Copy(Path(made, "tree")).root)
        (wheel,) = Path(made).glob("*.whl")
        failed = False
        for version, future in [(own[0], pool.submit(checked, *own, wheel)) for own in bases]:
            try:
                print(future.result(), flush=True)
            except subprocess.CalledProcessError as error:
                failed = True
                print(f"{error.stdout}\nPython {version} FAILED: {error}", flush=True)
    sys.exit(failed)


# Inside an environment, in an empty folder -----------------------------------------------------------


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
    typed(f"encrypt {to}.pub --params strong-encrypted --baseline base.json -o base.enc")
    for way, baseline in {"pads": "base.json", "strong-encrypted": "base.enc"}.items():
        for name in ("north", "south"):
            typed(f"encrypt {to}.pub --params {way} --profile {name}.json -o {way}-{name}.enc")
        typed(f"match {to}.key --baseline {baseline} {way}-north.enc {way}-south.enc -o {way}.enc")
        typed(f"reveal --secret K/secret.key --evaluator V/evaluator.pub {way}.enc")
    typed("run study.toml --out run")
    assert Path("run/report.html").is_file()
    print(f"{imported} names, a sum, files and a run: numpy {numpy.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    inside = {"check": check, "check_flower": check_flower}
    inside.get("".join(sys.argv[1:]), partial(main, *sys.argv[1:]))()
