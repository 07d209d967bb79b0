"""Faults planted in the product, one at a time, which a test must turn red.

    python tools/mutants.py list                # replay tests/mutants/*.toml; `make mutants-list`
    python tools/mutants.py list noise sums/    # the mutants whose name or file has one of these words
    python tools/mutants.py room accounting 7   # sampled faults in a room; `make mutants ROOM=accounting`

A listed mutant is a piece of a file (`old`, which stands there once), what takes its place (`new`) and the
tests that kill it. The replay first runs all these tests without a fault. It fails if a mutant survives, if a
piece is gone from its file, or if a test is red without a fault. So a test can only go if its mutants die
elsewhere.

Sampled faults are drawn from the syntax tree for ten minutes: a comparison, a sign, a constant, a skipped
statement, two swapped arguments. The room's tests run against each until one fails.

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
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Final

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
        at = max(self.at, text.find(self.old) if self.at < 0 else 0)
        mutated = text[:at] + self.new + text[at + len(self.old) :]
        ast.parse(mutated)
        return mutated


def listed(words: Sequence[str]) -> list[Mutant]:
    """The mutants of the list whose name or file has one of the words, or all."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("tests/mutants/*.toml"))]
    found = [Mutant(**row) for text in texts for row in tomllib.loads(text)["mutant"]]
    return [one for one in found if not words or any(word in f"{one.name} {one.file}" for word in words)]


# Sampled faults ---------------------------------------------------------------------------------

_PAIRS: Final = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
)
_OTHER: Final[dict[Any, Any]] = dict(_PAIRS) | {other: one for one, other in _PAIRS}


def faults(text: str) -> Iterator[tuple[int, str, str]]:
    """(position, old, new) of the faults that this source offers."""
    lines = text.splitlines(keepends=True)

    def place(line: int, column: int) -> int:
        return len("".join(lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    for node in ast.walk(ast.parse(text)):
        if (new := _other(node)) is not None:
            begin, end = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
            yield begin, text[begin:end], new


def _other(node: Any) -> str | None:
    """The source of a faulty node in place of this one, if there is one. The node changes."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OTHER:
            node.ops = [_OTHER[type(op)]()]
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _OTHER:
            node.op = _OTHER[type(op)]()
        case ast.UnaryOp(op=ast.Not(), operand=node):
            pass
        case ast.Constant(value=bool(value)):
            node = ast.Constant(not value)
        case ast.Constant(value=int(value)):
            node = ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            node = ast.Constant(value * 0.9)
        case ast.Call(args=[one, two, *rest]) if ast.dump(one) != ast.dump(two):
            node.args = [two, one, *rest]
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
            return "pass"
        case _:
            return None
    return f"({ast.unparse(node)})"


def sampled(room: str, seed: int) -> list[Mutant]:
    """All faults that a room offers, in a drawn order. The tests that name a module come first."""
    home = Path("protocols" if room == "protocols" else f"securefl/{room}")
    tests = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in sorted(ROOT.glob(f"tests/unit/{room}/test_*.py"))
    }
    found = []
    for path in sorted((ROOT / home).rglob("*.py")):
        named = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("protocols.")
        order = sorted(tests, key=lambda test, named=named: named not in tests[test])
        file, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        for at, old, new in faults(text):
            name = f"{file}:{text.count(chr(10), 0, at) + 1}: {' '.join(old.split())[:70]} -> {new[:70]}"
            found.append(Mutant(name=name, file=file, old=old, new=new, tests=order, at=at))
    if not found:
        raise SystemExit(f"Expected a room of securefl such as accounting, got {room!r}.")
    random.Random(seed).shuffle(found)
    return found


# Running tests ----------------------------------------------------------------------------------

_FORKS = multiprocessing.get_context("forkserver")


def _tested(root: str, arguments: Sequence[str], log: str, writes: bool) -> None:
    """In a fork: end with the exit code of pytest, or with 3 where it breaks."""
    import pytest

    os.setsid()
    os.chdir(root)
    os.environ["PYTHONPATH"] = root
    sys.path.insert(0, root)
    sys.dont_write_bytecode = not writes
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    try:
        code = int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]))
    except BaseException as broken:
        code = 3
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
        given = (str(self.root), arguments, str(self.log), writes)
        process = _FORKS.Process(target=_tested, args=given)
        process.start()
        process.join(limit)
        code = process.exitcode
        if code is None:
            os.killpg(process.pid, 9)
            process.join()
        return code

    def require_green(self, tests: Sequence[str]) -> None:
        if self.run(*tests, limit=1800, writes=True) != 0:
            raise SystemExit(f"{self.log.read_text()[-4000:]}\nA test is red without a fault.")

    def verdict(self, mutant: Mutant, limit: float = LIMIT) -> str:
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
            code = self.run("-x", *mutant.tests, limit=limit)
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        told = {0: "SURVIVED", 1: "killed", None: "killed, by time"}
        return told.get(code) or f"ERROR: pytest ended with {code}\n{self.log.read_text()[-800:]}"


def replay(words: Sequence[str], folder: Path) -> int:
    """Replay the list, and return the number of mutants that no test kills."""
    mutants, free = listed(words), SimpleQueue()
    for worker in range(WORKERS):
        free.put(Copy(folder / f"tree{worker}"))

    def tried(mutant: Mutant) -> str:
        copy, start = free.get(), time.monotonic()
        try:
            verdict = copy.verdict(mutant)
        finally:
            free.put(copy)
        print(f"{time.monotonic() - start:6.1f} s  {mutant.name}: {verdict}", flush=True)
        return verdict

    first = free.get()
    first.require_green(sorted({test for mutant in mutants for test in mutant.tests}))
    free.put(first)
    with ThreadPoolExecutor(WORKERS) as pool:
        alive = sum(not verdict.startswith("killed") for verdict in pool.map(tried, mutants))
    print(f"{len(mutants) - alive} of {len(mutants)} mutants killed.")
    return alive


def sample(room: str, seed: int, folder: Path) -> None:
    """Plant sampled faults until the time is up, and print those that no test of the room kills."""
    mutants, copy, tried, alive = sampled(room, seed), Copy(folder / "tree"), 0, 0
    end = time.monotonic() + 60 * MINUTES
    copy.require_green(mutants[0].tests)
    for mutant in mutants:
        left = end - time.monotonic()
        verdict = copy.verdict(mutant, limit=min(LIMIT, max(left, 0)))
        if time.monotonic() > end:
            break  # the sample's time was up, not the test's
        tried += 1
        if verdict == "SURVIVED":
            alive += 1
            print(f"SURVIVED {mutant.name}", flush=True)
    print(f"{room}, seed {seed}: {tried} of {len(mutants)} faults tried, {alive} survived.")


def main() -> None:
    """Replay the list, or sample a room."""
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100"}
    _FORKS.set_forkserver_preload(_LIBRARIES.split())
    with TemporaryDirectory(prefix="mutants-") as folder:
        match sys.argv[1:]:
            case ["list", *words]:
                sys.exit(bool(replay(words, Path(folder))))
            case ["room", room, *seed]:
                sample(room, int((*seed, 1)[0]), Path(folder))
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    main()
