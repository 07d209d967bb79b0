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
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import tokenize
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path
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


_PAIRS: Final = ("< <=", "> >=", "== !=", "and or", "+ -", "* //", "+= -=", "True False", "min max")
_OTHER: Final = {one: other for pair in map(str.split, _PAIRS) for one, other in (pair, pair[::-1])} | {
    "not": "",
    "raise": "",
    "is": "is not",
}


def sampled(room: str, seed: int) -> list[Mutant]:
    """All faults that a room offers, in a drawn order. The tests that name a module come first."""
    home = ROOT / ("protocols" if room == "protocols" else f"securefl/{room}")
    tests = {path: path.read_text(encoding="utf-8") for path in ROOT.glob(f"tests/unit/{room}/test_*.py")}
    if not tests:
        raise SystemExit(f"Expected a room with a folder of tests such as accounting, got {room!r}.")
    found = []
    for path in sorted(home.rglob("*.py")):
        file, lines = path.relative_to(ROOT), path.read_text(encoding="utf-8").splitlines(keepends=True)
        order = sorted(tests, key=lambda test, stem=path.stem: (stem not in tests[test], test))
        for token in tokenize.generate_tokens(iter(lines).__next__):
            more = f"({token.string} + 1)" if token.type == tokenize.NUMBER else None
            if (new := _OTHER.get(token.string, more)) is not None:
                line, at = token.start
                found.append(
                    Mutant(
                        name=f"{file}:{line}:{at}: {token.string} -> {new or 'nothing'}",
                        file=str(file),
                        old=token.string,
                        new=new,
                        tests=list(map(str, order)),
                        at=len("".join(lines[: line - 1])) + at,
                    )
                )
    random.Random(seed).shuffle(found)
    return found


# Running tests ----------------------------------------------------------------------------------

_FORKS = multiprocessing.get_context("forkserver")


def _tested(root: str, arguments: Sequence[str], log: str, writes: bool) -> None:
    """In a fork: end with the exit code of pytest, or with 3 where it breaks."""
    os.setsid()
    os.chdir(root)
    os.environ["PYTHONPATH"] = root
    sys.path.insert(0, root)
    sys.dont_write_bytecode = not writes
    with open(log, "w") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    code = 3
    try:
        import pytest

        code = int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]))
    except BaseException as broken:
        print(repr(broken))
    sys.stdout.flush()
    os._exit(code)


class Copy:
    """A copy of the working tree, in which pytest runs."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root.with_suffix(".log")
        listing = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for name in filter(os.path.lexists, names.split("\0")):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name, follow_symlinks=False)

    def run(self, *arguments: str, limit: float = LIMIT, writes: bool = False) -> int | None:
        """The exit code of pytest, or None after `limit` seconds."""
        process = _FORKS.Process(target=_tested, args=(str(self.root), arguments, str(self.log), writes))
        process.start()
        process.join(limit)
        code = process.exitcode
        if code is None:
            os.killpg(process.pid, 9)
            process.join()
        return code

    def verdict(self, mutant: Mutant) -> str:
        """'killed', 'SURVIVED', or why the mutant could not be tried."""
        path = self.root / mutant.file
        text, stat = path.read_text(encoding="utf-8"), path.stat()
        try:
            mutated = mutant.planted(text)
        except (ValueError, SyntaxError) as bad:
            return f"STALE: {bad}"
        # Python takes a cached module of the same size and second for the changed one.
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            cached.unlink()
        path.write_text(mutated, encoding="utf-8")
        try:
            code = self.run("-x", *mutant.tests)
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        told = {0: "SURVIVED", 1: "killed", None: "killed, by time"}
        return told.get(code) or f"ERROR: pytest ended with {code}\n{self.log.read_text()[-800:]}"


def tried(mutants: Sequence[Mutant], minutes: float) -> int:
    """Plant one fault after another, and return the number of those that no test kills."""
    here, verdicts = threading.local(), []

    def take() -> None:
        here.copy = free.pop()

    def one(mutant: Mutant) -> None:
        if (start := time.monotonic()) > end:
            return
        verdict = here.copy.verdict(mutant)
        if verdict.startswith("STALE") and mutant.at >= 0:
            return  # no program
        verdicts.append(verdict)
        print(f"{time.monotonic() - start:6.1f} s  {mutant.name}: {verdict}", flush=True)

    with TemporaryDirectory(prefix="mutants-") as folder:
        free = [Copy(Path(folder, f"tree{worker}")) for worker in range(WORKERS)]
        if free[0].run(*sorted({test for own in mutants for test in own.tests}), limit=1800, writes=True):
            raise SystemExit(f"{free[0].log.read_text()[-4000:]}\nA test is red without a fault.")
        end = time.monotonic() + 60 * minutes
        with ThreadPoolExecutor(WORKERS, initializer=take) as pool:
            list(pool.map(one, mutants))
    killed = sum(verdict.startswith("killed") for verdict in verdicts)
    print(f"{killed} of {len(verdicts)} mutants killed.")
    return len(verdicts) - killed


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100"}
    _FORKS.set_forkserver_preload(_LIBRARIES.split())
    match sys.argv[1:]:
        case ["list", *words]:
            sys.exit(tried(listed(words), inf) > 0)
        case ["room", room, *seed]:
            tried(sampled(room, int((*seed, 1)[0])), MINUTES)
        case _:
            sys.exit(__doc__)
