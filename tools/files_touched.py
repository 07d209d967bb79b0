"""How many files a value touches on its way: the code that runs with it in hand.

    python tools/files_touched.py [--files]

Plays the first Ask of a tiny study under a trace. A file counts if one of its functions is given the value or
gives it back: an object that carries it, or an array or bytes that were made of it. Two ways are followed: a
profile from its client to the score (FedProf, encrypted scores), and FedLog's phi from its client to the head
eta (sums in the clear, and masked). The third is of a word, the least cohort, from TOML to its checks: it
passes the files whose code has the word. `make check` prints the counts, `--files` prints the files, too.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
ROOMS = (ROOT / "securefl", ROOT / "protocols")

STUDY = """
[study]
name = "Files"
rounds = 1
[data]
source = "digits"
clients = 5
partition = {{ kind = "iid" }}
[model]
kind = "mlp"
hidden = [8]
[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 32
[privacy]
{privacy}
noise = "none"
unit = "record"
adjacency = "replace-one"
delta = 1e-5
budget = inf
adversaries = ["server", "key-holder", "others"]
non_private = ["update", "profile", "statistic"]
min_cohort_size = 2
min_honest = 2
max_client_weight = 0.5
[[arm]]
name = "x"
{arm}
"""
MASKED = 'sum = "masked"\nscores = "clear"\ndropout = 0.2\ncorrupt = 0.0'
CLEAR = 'sum = "clear"\nscores = "{}"'
PROFILE = ("Profile", "Features", "Split")
VALUE = ("Value", "Concealed", "Release", "Delivered", "Contribution")
SCORE = ("OpenRequest", "OpenReply", "Blinded", "Score")
SUM = ("MaskedInput", "Summed", "Opened", "Total")
WAYS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "profile to score": (
        STUDY.format(privacy=CLEAR.format("ckks"), arm='protocol = "fedprof"\nfraction = 0.4\nalpha = 10.0'),
        (*PROFILE, *VALUE, *SCORE),
    ),
    "phi to eta": (
        STUDY.format(privacy=CLEAR.format("clear"), arm='protocol = "fedlog"'),
        (*VALUE, *SUM),
    ),
    "phi to eta, masked": (STUDY.format(privacy=MASKED, arm='protocol = "fedlog"'), (*VALUE, *SUM)),
}


WORD = "min_cohort_size"


class Trace:
    """Follows a value: what a function makes of what it is given is followed too.

    Followed are carriers, and arrays and bytes that a function returns which was given something followed.
    """

    def __init__(self, carriers: Sequence[str]) -> None:
        self._carriers = frozenset(carriers)
        self._followed: dict[int, Any] = {}
        self._given: dict[int, bool] = {}
        self.files: dict[str, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event not in ("call", "return") or not any(room in file.parents for room in ROOMS):
            return
        if event == "call":
            given = any(map(self.follows, frame.f_locals.values()))
            self._given[id(frame)] = given
        else:
            given = self._given.pop(id(frame), False)
            if given:
                self.follow(result)
            given = given or self.follows(result)
        if given:
            self.files.setdefault(str(file.resolve().relative_to(ROOT)), set()).add(frame.f_code.co_name)

    def follows(self, value: Any) -> bool:
        found = False
        for one in held(value):
            if type(one).__name__ in self._carriers:
                self.follow(list(getattr(one, "__dict__", {}).values()))
                found = True
            found = found or id(one) in self._followed
        return found

    def follow(self, value: Any) -> None:
        for one in held(value):
            if isinstance(one, np.ndarray | bytes) and len(one) > 8:
                self._followed[id(one)] = one  # kept, so that no other object gets its number


def held(value: Any, depth: int = 2) -> Iterator[Any]:
    """A value, and what stands in it where it is a collection."""
    yield value
    if depth and isinstance(value, Mapping):
        with suppress(AttributeError):  # a mapping that is being made
            value = tuple(value.values())
    if depth and isinstance(value, tuple | list):
        for one in value[:64]:
            yield from held(one, depth - 1)


def touched(study: str, carriers: Sequence[str]) -> dict[str, set[str]]:
    """By file below the root, the functions that have the value in hand."""
    from securefl.engine.inprocess import InProcess
    from securefl.study import world
    from securefl.study.config import parse
    from securefl.study.run import run_arm

    of, trace = parse(study), Trace(carriers)
    here = world.build(of, 0)
    ask = InProcess.query

    def traced(*given: Any) -> Any:
        """The first Ask alone: FedProf's is for profiles, before there are updates."""
        InProcess.query = ask  # type: ignore[method-assign]
        sys.setprofile(trace)
        try:
            return ask(*given)
        finally:
            sys.setprofile(None)

    InProcess.query = traced  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        run_arm(of, of.arms[0], here, Path(folder), lambda record: None)
    return dict(sorted(trace.files.items()))


def named(word: str) -> dict[str, set[str]]:
    """By file below the root, the functions and classes whose code has a word: as a name, or as a string."""
    found: dict[str, set[str]] = {}
    for path in sorted(path for room in ROOMS for path in room.rglob("*.py")):
        for outer in ast.parse(path.read_text(encoding="utf-8")).body:
            if any(_says(node, word) for node in ast.walk(outer)):
                name = getattr(outer, "name", "(module)")
                found.setdefault(str(path.resolve().relative_to(ROOT)), set()).add(name)
    return found


def _says(node: ast.AST, word: str) -> bool:
    match node:
        case ast.Name(id=said) | ast.Attribute(attr=said) | ast.arg(arg=said) | ast.keyword(arg=said):
            return said == word
        case ast.Constant(value=said):
            return bool(said == word)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", action="store_true", help="print each file with its functions")
    options = parser.parse_args()
    counted = {name: touched(*way) for name, way in WAYS.items()}
    counted["least cohort to its checks"] = named(WORD)
    for name, files in counted.items():
        print(f"{name}: {len(files)} files")
        for file, functions in files.items() if options.files else ():
            print(f"    {file}: {', '.join(sorted(functions))}")


if __name__ == "__main__":
    main()
