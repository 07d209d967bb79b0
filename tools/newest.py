"""The wheel under each Python that is here, in an environment with the newest packages that resolve.

    python tools/newest.py [VERSION ...]    # make check-newest [ON=3.11]

With versions, under these Pythons alone.

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
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
UV = Path(sys.executable).with_name("uv")
ALONE = "--quiet --isolated --no-project --link-mode hardlink"


def run(*command: str | Path, cwd: str | Path = ROOT) -> bool:
    """Whether a command fails. What it says is printed if so."""
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    print(f"{done.stdout}{done.stderr}" * bool(done.returncode), end="", flush=True)
    return bool(done.returncode)


def failures(version: str, wheel: Path) -> int:
    """How many of the two checks fail under one Python; they say what does."""
    if not (python := shutil.which(f"python{version}")):
        print(f"Python {version} is not on this machine: not checked.", flush=True)
        return 0
    (torch,) = re.findall("^torch==.*", (ROOT / "constraints.txt").read_text(), re.M)
    failed = 0
    for extra in ("", "[flower]"):
        alone = (*ALONE.split(), "--python", python, "--with", torch)
        program = ("python", "-I", __file__, f"check{extra}")
        with TemporaryDirectory() as here:
            failed += run(
                UV, "run", *alone, "--with", f"securefl{extra} @ file://{wheel}", *program, cwd=here
            )
    print(f"Python {version}: {failed} of two checks failed.", flush=True)
    return failed


def main(*versions: str) -> int:
    """How many checks fail under these Pythons. It goes on where one fails."""
    from mutants import Copy

    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")  # its shims start nothing
    os.environ["PATH"] = os.pathsep.join([*map(str, pyenv.glob("versions/*/bin")), os.environ["PATH"]])
    os.environ["UV_FIND_LINKS"] = os.environ.get("PIP_FIND_LINKS", "").replace(" ", ",")
    with TemporaryDirectory() as made:
        if run(UV, "build", "--wheel", "--out-dir", made, Copy(Path(made, "tree")).root):
            return 1
        (wheel,) = Path(made).glob("*.whl")
        return sum(failures(version, wheel) for version in versions or VERSIONS)


# Inside an environment, in an empty folder -----------------------------------------------------------

KEYS = "--public K/public.key --evaluator V/evaluator"
MATCHED = f"""keygen --role evaluator --out V
keygen --role key-holder --out K --params strong
encrypt {KEYS}.pub --params strong-encrypted --baseline own.json -o base.enc
encrypt {KEYS}.pub --params strong-encrypted --profile own.json -o own.enc
match {KEYS}.key --baseline base.enc own.enc -o scores.enc
reveal --secret K/secret.key --evaluator V/evaluator.pub scores.enc
encrypt {KEYS}.pub --params pads --profile own.json -o own-pads.enc
match {KEYS}.key --baseline own.json own-pads.enc -o pads.enc
reveal --secret K/secret.key --evaluator V/evaluator.pub pads.enc
run fedlog_digits --out run"""


def check(*, flower: bool) -> None:
    """Import every public name of Flower's face, or of all others, and use these."""
    listed = (ROOT / "tests" / "architecture" / "public.txt").read_text(encoding="utf-8")
    names = re.findall(r"^([\w.]+)\.(\w+)", listed, re.M)
    for face, name in (own for own in names if (own[0] == "securefl.flower") is flower):
        getattr(import_module(face), name)
    if flower:
        return

    import securefl
    from securefl.commands.main import cli

    assert not Path(securefl.__file__).is_relative_to(ROOT), securefl.__file__
    trust = {"corrupt": 0.25, "min_honest": 2, "max_client_weight": 0.5}
    total = securefl.masked_sum([[1.0, 2.0], [0.5, 0.0], [0.25, 1.0], [9.0, 9.0]], bound=10, **trust).total
    assert abs(total - [10.75, 12.0]).max() < 1e-6, total
    Path("own.json").write_text(json.dumps({"mean": [0.1, -0.1], "variance": [1.0, 2.0]}))
    for words in MATCHED.splitlines():
        cli(words.split(), standalone_mode=False)
    assert Path("run/report.html").is_file()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check" | "check[flower]" as how]:
            check(flower="flower" in how)
        case versions:
            sys.exit(main(*versions))
