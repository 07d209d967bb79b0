"""What a first call costs beside importing the libraries that it needs: CPU time, as ratios in one run.

    python benchmarks/startup.py [--rounds 5] [--only WORD]

Each call runs in a new interpreter, twice: the second one does the same work again, without the first's
imports and caches. It prints for each call

    needs     which of torch, pandas and dp_accounting the call uses; `click, numpy` if none
    first     CPU of the interpreter until the first call ends, over that of importing what it needs
    start-up  the same without the work: first call minus second

The study trains one arm for one round, and its report has five pictures: the work of `run` and `report`.
Bytecode is kept in a folder of this run, as an installed package keeps it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

HERE = Path(__file__).resolve().parents[1]
STUDY: Final = """
[study]
name = "tiny"
rounds = 1
seeds = [0]

[data]
source = "table.csv"
target = "class"
classes = ["no", "yes"]
client_column = "client"
test_share = 0.3
columns.a = { range = [0, 1] }
columns.b = { range = [0, 1] }

[model]
kind = "mlp"
hidden = [32]

[local]
optimizer = "sgd"
learning_rate = 0.1
momentum = 0.0
decay = 1.0
epochs = 1
batch_size = 32

[privacy]
sum = "clear"
scores = "clear"
noise = "none"
unit = "record"
adjacency = "add-remove"
delta = 1e-5
budget = inf
adversaries = ["server", "others"]
non_private = ["update"]

[[arm]]
name = "FedAvg"
protocol = "fedavg"
fraction = 0.5
"""
ROWS: Final = "".join(
    f"{row % 10},{row % 7 / 7},{row % 11 / 11},{'yes' if row % 7 > 3 else 'no'}\n" for row in range(200)
)
COMMAND: Final = """
import sys
from securefl.commands.main import main

def call(out):
    sys.argv = ["securefl", *{words!r}.replace("OUT", out).split()]
    try:
        main()
    except SystemExit as ended:
        assert ended.code in (0, 4), ended.code
"""
PYTHON: Final = """
def call(out):
    import securefl
    securefl.{call}
"""
TWICE: Final = """
from time import process_time
call("{out}/1")
first = process_time()
call("{out}/2")
again = process_time() - first
import sys
print(first, again, file=sys.stderr)
"""
LIGHT: Final = ("click", "numpy")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call. needs: the heavy libraries that it uses. code: defines `call(out)`, out a new path."""

    name: str
    code: str
    needs: tuple[str, ...] = ()


def command(words: str, *needs: str) -> Case:
    return Case(name=f"securefl {words}", code=COMMAND.format(words=words), needs=needs)


TRUST: Final = "corrupt=0.25, dropout=0.25, min_honest=2, max_client_weight=0.5"
ALL: Final = ("torch", "pandas", "dp_accounting")
CASES: Final = (
    Case(
        name="securefl.run(...)",
        code=PYTHON.format(call='run("study.toml", out=out, progress=False)'),
        needs=ALL,
    ),
    Case(
        name="securefl.forecast(...)",
        code=PYTHON.format(call='forecast("study.toml", progress=False).table'),
        needs=ALL,
    ),
    Case(name="securefl.load(...)", code=PYTHON.format(call='load("model.safetensors")'), needs=("torch",)),
    Case(
        name="securefl.masked_sum(...)",
        code=PYTHON.format(call=f"masked_sum({{name: [1.0] for name in 'abcd'}}, bound=10, {TRUST})"),
        needs=("dp_accounting",),
    ),
    Case(
        name="securefl.SecureAggregator",
        code=PYTHON.format(call="SecureAggregator"),
        needs=("dp_accounting",),
    ),
    command("run study.toml --out OUT", *ALL),
    command("sweep sweep.toml --out OUT", *ALL),
    command("report runs/a --out OUT", *ALL),
    command("compare runs/a runs/b", "pandas"),
    command("export runs/a --out OUT.safetensors", *ALL),
    command("predict model.safetensors table.csv --out OUT.csv", "torch", "pandas"),
    command("party init OUT study.toml --client 0 --yes", *ALL),
    command("reproduce", "torch", "dp_accounting"),
    command("data list"),
    *(command(f"{word}--help") for word in ("", "keygen ", "match ")),
    command("studies"),
)
MADE: Final = (
    "run study.toml --out runs/a",
    "run study.toml --out runs/b",
    "export runs/a --out model.safetensors",
)
"""What the folder has before calls are timed."""


def figures(code: str, folder: Path, env: dict[str, str]) -> list[float]:
    """The numbers that a new interpreter prints on the last line of stderr."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [float(word) for word in done.stderr.split("\n")[-2].split()]


def imports(needs: Sequence[str]) -> str:
    return f"import sys, time, {', '.join(needs or LIGHT)}; print(time.process_time(), file=sys.stderr)"


def made(folder: Path, env: dict[str, str]) -> None:
    """Fill the folder in which calls are timed (see `MADE`)."""
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    (folder / "sweep.toml").write_text(f'{STUDY}\n[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n')
    (folder / "table.csv").write_text(f"client,a,b,class\n{ROWS}")
    for words in MADE:
        figures(COMMAND.format(words=words) + "call('')\nprint(0, file=sys.stderr)", folder, env)


def timed(case: Case, folder: Path, env: dict[str, str], rounds: int) -> str:
    """The line of a case. A first round, which writes bytecode, is not counted."""
    found = []
    for _ in range(rounds + 1):
        (floor,) = figures(imports(case.needs), folder, env)
        with TemporaryDirectory(dir=folder) as out:
            first, again = figures(case.code + TWICE.format(out=out), folder, env)
        found.append((first / floor, (first - again) / floor))
    whole, start = (median(column) for column in zip(*found[1:], strict=True))
    return f"{case.name:64} {', '.join(case.needs or LIGHT):28} {whole:6.2f} {start:9.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="time the calls that have this word in their name")
    options = parser.parse_args()
    with TemporaryDirectory() as home:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        env |= {"PYTHONPATH": str(HERE), "PYTHONPYCACHEPREFIX": f"{home}/bytecode"}
        made(Path(home, "calls"), env)
        print(f"{'call':64} {'needs':28} {'first':>6} {'start-up':>9}")
        for case in CASES:
            if options.only in case.name:
                print(timed(case, Path(home, "calls"), env, options.rounds), flush=True)


if __name__ == "__main__":
    main()
