"""The wheel under each Python that is here, in an environment with the newest packages that resolve.

    python tools/newest.py [VERSION]    # make check-newest [ON=3.11]

With a version, under this Python alone.

uv resolves in a second, compiles nothing, and links the files of its cache into an environment of each run.
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
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
UV = Path(sys.executable).with_name("uv")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """What a command says. It sees no stdin, and none of this Python's own settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["UV_FIND_LINKS"] = env.get("PIP_FIND_LINKS", "").replace(" ", ",")
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, cwd=cwd, env=env, check=True, text=True, **streams).stdout


def checked(version: str, wheel: Path) -> str:
    """What the checks say under one Python, and whether it is here. CalledProcessError if one fails."""
    from mistakes import STUDY

    try:
        base = run(UV, "python", "find", "--no-python-downloads", version).strip()
    except subprocess.CalledProcessError:
        return f"Python {version} is not on this machine: not checked."
    (torch,) = re.findall("^torch==.*", (ROOT / "constraints.txt").read_text(), re.M)
    here, began, said = wheel.with_name(version), time.monotonic(), []
    here.mkdir()
    (here / "study.toml").write_text(STUDY.replace("rounds = 1", "rounds = 2"))
    alone = (UV, "run", "--quiet", "--isolated", "--no-project", "--link-mode", "hardlink")
    for extra in ("", "[flower]"):
        packages = ("--with", torch, "--with", f"securefl{extra} @ file://{wheel}")
        program = ("python", "-I", __file__, f"check{extra}")
        said += run(*alone, "--python", base, *packages, *program, cwd=here).splitlines()[-1:]
    return f"Python {version}: {'; '.join(said)} ({time.monotonic() - began:.0f} s)"


def main(*versions: str) -> None:
    """Check under each of these Pythons, and go on where one fails; end with exit code 1 if one failed."""
    from mutants import Copy

    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")  # its shims start nothing
    os.environ["PATH"] = os.pathsep.join([*map(str, pyenv.glob("versions/*/bin")), os.environ["PATH"]])
    with TemporaryDirectory() as made, ThreadPoolExecutor(2) as pool:
        run(UV, "build", "--wheel", "--out-dir", made, Copy(Path(made, "tree")).root)
        (wheel,) = Path(made).glob("*.whl")
        failed = False
        for version, future in [(one, pool.submit(checked, one, wheel)) for one in versions or VERSIONS]:
            try:
                print(future.result(), flush=True)
            except subprocess.CalledProcessError as error:
                failed = True
                print(f"{error.stdout}\nPython {version} FAILED: {error}", flush=True)
    sys.exit(failed)


# Inside an environment, in an empty folder -----------------------------------------------------------

TRUST = {"corrupt": 0.25, "min_honest": 2, "max_client_weight": 0.5}
KEYS = "--public K/public.key --evaluator V/evaluator"
MATCHED = f"""keygen --role evaluator --out V
keygen --role key-holder --out K
encrypt {KEYS}.pub --params strong-encrypted --baseline own.json -o base.enc
encrypt {KEYS}.pub --params strong-encrypted --profile own.json -o own.enc
match {KEYS}.key --baseline base.enc own.enc -o scores.enc
reveal --secret K/secret.key --evaluator V/evaluator.pub scores.enc
encrypt {KEYS}.pub --params pads --profile own.json -o own-pads.enc
match {KEYS}.key --baseline own.json own-pads.enc -o pads.enc
reveal --secret K/secret.key --evaluator V/evaluator.pub pads.enc
run study.toml --out run"""


def check(*, flower: bool) -> None:
    """Import every public name of Flower's face, or of all others, and use these."""
    listed = (ROOT / "tests" / "architecture" / "public.txt").read_text(encoding="utf-8")
    names = re.findall(r"^([\w.]+)\.(\w+)", listed, re.M)
    for face, name in (own for own in names if (own[0] == "securefl.flower") is flower):
        getattr(import_module(face), name)
    if flower:
        return print("Flower's face")

    import securefl
    from securefl.commands.main import cli

    assert not Path(securefl.__file__).is_relative_to(ROOT), securefl.__file__
    total = securefl.masked_sum([[1.0, 2.0], [0.5, 0.0], [0.25, 1.0], [9.0, 9.0]], bound=10, **TRUST).total
    assert abs(total - [10.75, 12.0]).max() < 1e-6, total
    Path("own.json").write_text(json.dumps({"mean": [0.1, -0.1], "variance": [1.0, 2.0]}))
    for words in MATCHED.splitlines():
        cli(words.split(), standalone_mode=False)
    assert Path("run/report.html").is_file()
    print(f"{len(names)} names, a sum, files and a run")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check" | "check[flower]" as how]:
            check(flower="flower" in how)
        case versions:
            main(*versions)
