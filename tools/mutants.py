"""Faults planted in the product, one at a time, which a test must turn red.

    python tools/mutants.py list                # replay tests/mutants/*.toml; `make mutants-list`
    python tools/mutants.py list noise sums/    # the mutants whose name or file has one of these words
    python tools/mutants.py room accounting 7   # sampled faults in a room; `make mutants ROOM=accounting`

A listed mutant is a piece of a file (`old`, which stands there once), what takes its place (`new`) and the
tests that kill it. All these tests first run without a fault. It fails if a mutant survives, if a piece is
gone from its file, or if a test is red without a fault. So a test can only go if its mutants die elsewhere.

Sampled faults are drawn from the tokens of a room for ten minutes: a comparison, a sign, a number, a check
that does not raise. The room's tests run against each until one fails.

The faults are planted in copies of the working tree. A test runs in a fork of a process that has the large
libraries, but nothing of this project.
"""

from __future__ import annotations

import ast
import compileall
import multiprocessing
import os
import random
import subprocess
import sys
import time
import tokenize
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path
from py_compile import PycInvalidationMode
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LIMIT: Final = 240
"""Seconds after which a test that does not end counts as red."""
WORKERS: Final = 2
MINUTES: Final = 10
_LIBRARIES: Final = (
    "cryptography.hazmat.primitives.ciphers dp_accounting matplotlib.pyplot numpy opacus pandas pydantic "
    "pytest rich.progress scipy.stats sklearn.linear_model tenseal torch"
)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault: in `file`, `new` stands in place of `old`. `tests` are arguments of pytest that kill it.

    at: where `old` begins, if it may stand in several places.
    """

    name: str
    file: str
    old: str
    new: str
    tests: Sequence[str]
    at: int = -1

    def planted(self, text: str) -> str:
        """The file's text with the fault. ValueError if `old` is not there once, or gives no program."""
        if self.at < 0 and text.count(self.old) != 1:
            raise ValueError(f"the piece stands {text.count(self.old)} times in the file")
        at = text.find(self.old, max(self.at, 0))
        mutated = text[:at] + self.new + text[at + len(self.old) :]
        ast.parse(mutated)
        return mutated


def listed(words: Sequence[str]) -> list[Mutant]:
    """The mutants of the list whose name or file has one of the words, or all."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("tests/mutants/*.toml"))]
    found = [Mutant(**row) for text in texts for row in tomllib.loads(text)["mutant"]]
    return [one for one in found if not words or any(word in f"{one.name} {one.file}" for word in words)]


_SWAPS: Final = (
    "<:<=,<=:<,>:>=,>=:>,==:!=,!=:==,and:or,or:and,+:-,-:+,*://,//:*,+=:-=,-=:+=,True:False,False:True,"
    "min:max,max:min,not:,raise:,is:is not"
)
_OTHER: Final = dict(swap.split(":") for swap in _SWAPS.split(","))


def sampled(room: str, seed: int) -> list[Mutant]:
    """All faults that a room offers, in a drawn order. The tests that name a module come first."""
    home = ROOT / ("protocols" if room == "protocols" else f"securefl/{room}")
    tests = {}
    for path in ROOT.glob(f"tests/unit/{room}/test_*.py"):
        tests[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
    if not tests:
        raise SystemExit(f"Expected a room with a folder of tests such as accounting, got {room!r}.")
    found = []
    for path in home.rglob("*.py"):
        file, lines = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8").splitlines(keepends=True)
        order = sorted(tests, key=lambda test, stem=path.stem: (stem not in tests[test], test))
        for token in tokenize.generate_tokens(iter(lines).__next__):
            old, (line, column) = token.string, token.start
            if (new := f"({old} + 1)" if token.type == tokenize.NUMBER else _OTHER.get(old)) is not None:
                name = f"{file}:{line}:{column}: {old} -> {new or 'nothing'}"
                at = sum(map(len, lines[: line - 1])) + column
                found.append(Mutant(name=name, file=file, old=old, new=new, tests=order, at=at))
    random.Random(seed).shuffle(found)
    return found


# Running tests ----------------------------------------------------------------------------------

_FORKS = multiprocessing.get_context("forkserver")


def _tested(root: Path, arguments: Sequence[str]) -> None:
    """In a fork: end with the exit code of pytest."""
    os.setsid()
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path.insert(0, str(root))
    with root.with_suffix(".log").open("w") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    import pytest

    code = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments])
    sys.stdout.flush()
    os._exit(code)


class Copy:
    """A copy of the working tree, in which pytest runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT)
        subprocess.run(["xargs", "-0", "cp", "-dp", "--parents", "-t", root], cwd=ROOT, input=listed)
        # By their times, Python takes a cached module of the same size and second for the changed one.
        compileall.compile_dir(root, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    def run(self, *arguments: str, limit: float = LIMIT, times: int = 2) -> int | None:
        """The exit code of pytest, or None after `limit` seconds. What dies without a code runs again."""
        process = _FORKS.Process(target=_tested, args=(self.root, arguments))
        process.start()
        process.join(limit)
        code = process.exitcode
        if code is None:
            os.killpg(process.pid, 9)
            process.join()
        elif times > 1 and not 0 <= code < 100:
            return self.run(*arguments, limit=limit, times=times - 1)
        return code

    def verdict(self, mutant: Mutant) -> str:
        """'killed', 'SURVIVED', or why the mutant could not be tried."""
        path = self.root / mutant.file
        text = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutant.planted(text), encoding="utf-8")
            code = self.run("-x", *mutant.tests)
        except (ValueError, SyntaxError) as bad:
            return f"STALE: {bad}"
        finally:
            path.write_text(text, encoding="utf-8")
        told = {0: "SURVIVED", 1: "killed", None: "killed, by time"}
        return told.get(code) or f"ERROR: pytest ended with {code}\n{self.log()}"

    def log(self) -> str:
        """What pytest said last."""
        return self.root.with_suffix(".log").read_text()[-4000:]


def tried(mutants: Sequence[Mutant], minutes: float) -> int:
    """Plant one fault after another, and return the number of those that no test kills."""

    def one(mutant: Mutant) -> str:
        if (start := time.monotonic()) > end:
            return ""
        copy = free.pop()
        verdict = copy.verdict(mutant)
        free.append(copy)
        if verdict.startswith("STALE") and mutant.at >= 0:
            return ""  # no program
        print(f"{time.monotonic() - start:6.1f} s  {mutant.name}: {verdict}", flush=True)
        return verdict

    with TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(WORKERS) as pool:
        free = [Copy(Path(folder, f"tree{worker}")) for worker in range(WORKERS)]
        if free[0].run(*sorted({test for own in mutants for test in own.tests}), limit=1800):
            raise SystemExit(f"{free[0].log()}\nA test is red without a fault.")
        end = time.monotonic() + 60 * minutes
        verdicts = [verdict for verdict in pool.map(one, mutants) if verdict]
    killed = sum(verdict.startswith("killed") for verdict in verdicts)
    print(f"{killed} of {len(verdicts)} mutants killed.")
    return len(verdicts) - killed


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    _FORKS.set_forkserver_preload(_LIBRARIES.split())
    match sys.argv[1:]:
        case ["list", *words]:
            sys.exit(tried(listed(words), inf) > 0)
        case ["room", room, *seed]:
            tried(sampled(room, int((*seed, 1)[0])), MINUTES)
        case _:
            sys.exit(__doc__)
