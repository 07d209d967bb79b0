"""What a first call costs beside importing the libraries that it needs: CPU time, as ratios in one run.

    python benchmarks/startup.py [WORD ...]    # those that have these words in their name

Each call runs in a new interpreter, twice: the second one does the same work again, without the first's
imports and caches. It prints for each call

    needs     which of torch, pandas and dp_accounting the call uses; `click, numpy` if none
    first     CPU of the interpreter until the first call ends, over that of importing what it needs
    start-up  the same without the work: first call minus second

The study trains one arm for one round, and its report has five pictures: the work of `run` and `report`.
Bytecode is kept in a folder of this run, as an installed package keeps it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pandas as pd

ROUNDS: Final = 5
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


def python(call: str) -> str:
    """The code of a call in Python."""
    return f"def call(out):\n    import securefl\n    securefl.{call}\n"


def command(words: str) -> str:
    """The code of a command."""
    return COMMAND.format(words=words)


TRUST: Final = "corrupt=0.25, dropout=0.25, min_honest=2, max_client_weight=0.5"
ALL: Final = ("torch", "pandas", "dp_accounting")
CALLS: Final = {
    'run("study.toml", out=out, progress=False)': ALL,
    'forecast("study.toml", progress=False).table': ALL,
    'load("model.safetensors")': ("torch",),
    f"masked_sum({{name: [1.0] for name in 'abcd'}}, bound=10, {TRUST})": ("dp_accounting",),
    "SecureAggregator": ("dp_accounting",),
}
COMMANDS: Final = {
    "run study.toml --out OUT": ALL,
    "sweep sweep.toml --out OUT": ALL,
    "report runs/a --out OUT": ALL,
    "compare runs/a runs/b": ("pandas",),
    "export runs/a --out OUT.safetensors": ALL,
    "predict model.safetensors table.csv --out OUT.csv": ("torch", "pandas"),
    "party init OUT study.toml --client 0 --yes": ALL,
    "reproduce": ("torch", "dp_accounting"),
    **dict.fromkeys(("data list", "--help", "keygen --help", "match --help", "studies"), LIGHT),
}
"""A call and the heavy libraries that it uses."""
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


def made(folder: Path, env: dict[str, str]) -> None:
    """Fill the folder in which calls are timed (see `MADE`)."""
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    (folder / "sweep.toml").write_text(f'{STUDY}\n[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n')
    (folder / "table.csv").write_text(f"client,a,b,class\n{ROWS}")
    for words in MADE:
        figures(command(words) + "call('')\nprint(0, file=sys.stderr)", folder, env)


def timed(code: str, needs: Sequence[str], folder: Path, env: dict[str, str]) -> dict[str, float]:
    """The ratios of a call. A first round, which writes bytecode, is not counted."""
    found, imports = [], f"import sys, time, {', '.join(needs)}; print(time.process_time(), file=sys.stderr)"
    for _ in range(ROUNDS + 1):
        (floor,) = figures(imports, folder, env)
        with TemporaryDirectory(dir=folder) as out:
            first, again = figures(code + TWICE.format(out=out), folder, env)
        found.append({"first": first / floor, "start-up": (first - again) / floor})
    return pd.DataFrame(found[1:]).median().round(2).to_dict()


def main() -> None:
    calls = [(f"securefl.{call}", python(call), needs) for call, needs in CALLS.items()]
    calls += [(f"securefl {words}", command(words), needs) for words, needs in COMMANDS.items()]
    with TemporaryDirectory() as home:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        env |= {"PYTHONPATH": str(HERE), "PYTHONPYCACHEPREFIX": f"{home}/bytecode"}
        folder = Path(home, "calls")
        made(folder, env)
        for name, code, needs in calls:
            if all(word in name for word in sys.argv[1:]):
                print(f"{name:64} {', '.join(needs):28}", timed(code, needs, folder, env), flush=True)


if __name__ == "__main__":
    main()
