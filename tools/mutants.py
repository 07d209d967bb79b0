"""Faults planted in the product, one at a time, which a test must turn red.

    python tools/mutants.py list                # replay tests/mutants/*.toml; `make mutants-list`
    python tools/mutants.py list noise sums/    # the mutants whose name or file has one of these words
    python tools/mutants.py room accounting     # sampled faults in a room; `make mutants ROOM=accounting`
    python tools/mutants.py room dp --seed 7 --seconds 600

A listed mutant is a piece of a file (`old`, which stands there once), what takes its place (`new`) and the
tests that kill it. The replay first runs all these tests without a fault. It fails if a mutant survives, if a
piece is gone from its file, or if a test is red without a fault. So a test can only go if its mutants die
elsewhere.

Sampled faults are drawn from the syntax tree: a comparison, a sign, a constant, a skipped statement, two
swapped arguments. The room's tests run against each until one fails.

The faults are planted in copies of the working tree. A test runs in a fork of a process that has the large
libraries, but nothing of this project.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LISTS: Final = ROOT / "tests" / "mutants"
LIMIT: Final = 240
"""Seconds after which a test that does not end counts as red."""
_LIBRARIES: Final = (
    "cryptography.hazmat.primitives.ciphers, dp_accounting, matplotlib.pyplot, numpy, opacus, pandas, "
    "pydantic, rich.progress, scipy.stats, sklearn.linear_model, tenseal, torch"
)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault: in `file`, `new` stands in place of `old`. `tests` are arguments of pytest that kill it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    at: int = -1
    """Where `old` begins, if it may stand in several places."""

    def planted(self, text: str) -> str:
        """The file's text with the fault. Raises `ValueError` if `old` is not there, or there twice."""
        at = self.at if self.at >= 0 else text.find(self.old)
        if at < 0 or text[at : at + len(self.old)] != self.old:
            raise ValueError("the piece is not in the file")
        if self.at < 0 and text.count(self.old) > 1:
            raise ValueError("the piece stands there more than once")
        mutated = text[:at] + self.new + text[at + len(self.old) :]
        ast.parse(mutated)
        return mutated


def listed(words: Sequence[str] = ()) -> list[Mutant]:
    """The mutants of the list whose name or file has one of the words, or all."""
    rows = [
        row
        for path in sorted(LISTS.glob("*.toml"))
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]
    found = [Mutant(**row | {"tests": tuple(row["tests"])}) for row in rows]
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
_OTHER: Final[dict[Any, Callable[[], Any]]] = dict(_PAIRS) | {other: one for one, other in _PAIRS}


def faults(text: str) -> Iterator[tuple[int, str, str]]:
    """(position, old, new) of the faults that this source offers."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()

    def place(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node in ast.walk(ast.parse(text)):
        new = _other(node)
        if new is not None:
            begin, end = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
            yield begin, text[begin:end], new


def _other(node: Any) -> str | None:
    """The source of a faulty node in place of this one, if there is one."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OTHER:
            new: Any = ast.Compare(node.left, [_OTHER[type(op)]()], node.comparators)
        case ast.BinOp(op=op) if type(op) in _OTHER and not isinstance(
            node.left, ast.Constant | ast.JoinedStr
        ):
            new = ast.BinOp(node.left, _OTHER[type(op)](), node.right)
        case ast.BoolOp(op=op):
            new = ast.BoolOp(_OTHER[type(op)](), node.values)
        case ast.UnaryOp(op=ast.Not()):
            new = node.operand
        case ast.Constant(value=bool()):
            new = ast.Constant(not node.value)
        case ast.Constant(value=int()):
            new = ast.Constant(node.value + 1)
        case ast.Constant(value=float()):
            new = ast.Constant(node.value * 0.9)
        case ast.Call(args=[one, two, *rest]) if ast.dump(one) != ast.dump(two):
            new = ast.Call(node.func, [two, one, *rest], node.keywords)
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
            return "pass"
        case _:
            return None
    return f"({ast.unparse(new)})"


def sampled(room: str, seed: int) -> list[Mutant]:
    """All faults that a room offers, in a drawn order. The tests that name a module's words come first."""
    home = ROOT / ("protocols" if room == "protocols" else f"securefl/{room}")
    files = sorted(home.rglob("*.py"))
    if not files:
        raise SystemExit(f"Expected a room of securefl such as accounting, got {room!r}.")
    tests = {
        path: path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests/unit" / room).glob("test_*.py"))
    }
    found = []
    for path in files:
        named = f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts).removeprefix('protocols.')}"
        order = sorted(tests, key=lambda test: named not in tests[test])
        file, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        for at, old, new in faults(text):
            line = text.count("\n", 0, at) + 1
            found.append(
                Mutant(
                    name=f"{file}:{line}: {' '.join(old.split())[:70]} -> {new[:70]}",
                    file=file,
                    old=old,
                    new=new,
                    tests=tuple(str(test.relative_to(ROOT)) for test in order),
                    at=at,
                )
            )
    random.Random(seed).shuffle(found)
    return found


# Running tests ----------------------------------------------------------------------------------


def _served(root: str, orders: Any) -> None:
    """A process that forks a child for each run of pytest in this copy, and answers with its exit code."""
    os.chdir(root)
    os.environ |= {
        "PYTHONPATH": root,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "100",
    }
    sys.path[:0] = [root]
    exec(f"import {_LIBRARIES}")
    while (order := orders.recv()) is not None:
        arguments, log, limit, writes = order
        child = os.fork()
        if not child:
            os.setsid()
            sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            sys.dont_write_bytecode = not writes
            os._exit(_tested(arguments))
        orders.send(_ended(child, limit))


def _tested(arguments: Sequence[str]) -> int:
    """Run pytest and return its exit code, or 3 if it breaks."""
    import pytest

    try:
        code = int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]))
    except BaseException as broken:
        code = 3
        print(repr(broken))
    sys.stdout.flush()
    return code


def _ended(child: int, limit: float) -> int | None:
    """The exit code of a child, or None if it was still running after `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


class Copy:
    """A copy of the working tree, in which pytest runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        names = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).exists():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name, follow_symlinks=False)
        self._orders, orders = get_context("spawn").Pipe()
        self._server = get_context("spawn").Process(target=_served, args=(str(root), orders), daemon=False)
        self._server.start()

    def close(self) -> None:
        self._orders.send(None)
        self._server.join()

    def run(self, arguments: Sequence[str], limit: float = LIMIT, writes: bool = False) -> int | None:
        """The exit code of pytest, or None after `limit` seconds."""
        self._orders.send((list(arguments), str(self.root.with_suffix(".log")), limit, writes))
        code: int | None = self._orders.recv()
        return code

    def output(self) -> str:
        """What the last run printed."""
        return self.root.with_suffix(".log").read_text(encoding="utf-8", errors="replace")

    def verdict(self, mutant: Mutant, limit: float = LIMIT) -> str:
        """'killed', 'SURVIVED', or why the mutant could not be tried."""
        path = self.root / mutant.file
        text, stat = path.read_text(encoding="utf-8"), path.stat()
        try:
            mutated = mutant.planted(text)
        except (ValueError, SyntaxError) as bad:
            return f"STALE: {bad}"
        # Python takes a cached module of the same size and second for the changed one.
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            cached.unlink()
        path.write_text(mutated, encoding="utf-8")
        try:
            code = self.run(["-x", *mutant.tests], limit)
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        told = {0: "SURVIVED", 1: "killed", None: "killed, by time"}
        return told.get(code) or f"ERROR: pytest ended with {code}\n{self.output()[-800:]}"


@contextmanager
def copies(count: int) -> Iterator[list[Copy]]:
    """As many copies of the tree, which are removed in the end."""
    with TemporaryDirectory(prefix="mutants-") as folder:
        made = [Copy(Path(folder) / f"tree{number}") for number in range(count)]
        try:
            yield made
        finally:
            for copy in made:
                copy.close()


def replay(words: Sequence[str], workers: int) -> int:
    """Replay the list, and return the number of mutants that no test kills."""
    mutants = listed(words)
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    began, alive = time.monotonic(), 0
    with copies(workers) as made, ThreadPoolExecutor(workers) as pool:
        if made[0].run(tests, limit=1800, writes=True) != 0:
            print(made[0].output()[-4000:])
            print("A test of the list is red without a fault.")
            return 1
        free: SimpleQueue[Copy] = SimpleQueue()
        for copy in made:
            free.put(copy)

        def tried(mutant: Mutant) -> tuple[Mutant, str, float]:
            copy, start = free.get(), time.monotonic()
            try:
                return mutant, copy.verdict(mutant), time.monotonic() - start
            finally:
                free.put(copy)

        for mutant, verdict, seconds in pool.map(tried, mutants):
            alive += not verdict.startswith("killed")
            print(f"{seconds:6.1f} s  {mutant.name}: {verdict}", flush=True)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(mutants) - alive} of {len(mutants)} mutants killed in {minutes:.1f} minutes.")
    return alive


def sample(room: str, seed: int, seconds: float) -> None:
    """Plant sampled faults until the time is up, and print those that no test of the room kills."""
    end, counts = time.monotonic() + seconds, {"killed": 0, "SURVIVED": 0}
    mutants = sampled(room, seed)
    with copies(1) as (copy,):
        if copy.run(mutants[0].tests, limit=seconds, writes=True) != 0:
            raise SystemExit(f"{copy.output()[-4000:]}\nThe room's tests are red without a fault.")
        for mutant in mutants:
            left = end - time.monotonic()
            if left < 1:
                break
            verdict = copy.verdict(replace(mutant, name=""), limit=min(LIMIT, left))
            if verdict == "killed, by time" and end - time.monotonic() < 1:
                break  # the sample's time was up, not the test's
            kind = "SURVIVED" if verdict == "SURVIVED" else "killed"
            counts[kind] += 1
            if kind == "SURVIVED":
                print(f"SURVIVED {mutant.name}", flush=True)
    tried = f"{counts['killed'] + counts['SURVIVED']} of {len(mutants)} faults tried"
    print(f"{room}, seed {seed}: {tried}, {counts['killed']} killed, {counts['SURVIVED']} survived.")


def main() -> None:
    """Replay the list, or sample a room."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    own = commands.add_parser("list", help="replay tests/mutants/*.toml")
    own.add_argument("words", nargs="*")
    own.add_argument("--workers", type=int, default=2)
    own = commands.add_parser("room", help="sample faults in one room")
    own.add_argument("room")
    own.add_argument("--seed", type=int, default=1)
    own.add_argument("--seconds", type=float, default=600)
    given = parser.parse_args()
    if given.command == "list":
        sys.exit(bool(replay(given.words, given.workers)))
    sample(given.room, given.seed, given.seconds)


if __name__ == "__main__":
    main()
