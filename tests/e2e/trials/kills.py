"""kill -9 at random SQL statements and at random times, over runs and sweeps, until they are done.

What must hold then: every round is in the checkpoint once; records, final model, releases and epsilon are the
uninterrupted run's, bit for bit; and no charge that was committed before a kill is gone. Of encrypted scores
the noise differs from run to run, so there cohort sizes, numbers of releases and the largest epsilon are
compared.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from e2e.trials import facts
from e2e.trials.cases import CASES, Case
from e2e.trials.victim import FATAL, HUNG, Child, Outcome, call, must

MOST_KILLS = 3
"""In one folder, one after the other."""
_PATIENCE = 120
"""Seconds for a worker that was just started to import everything, and to see that its sweep is gone."""


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run: what it left, its SQL statements (in a sweep: a cell's), and its seconds."""

    facts: dict[str, facts.Facts]
    statements: int
    seconds: float


def whole(case: Case) -> Whole:
    """Run a case to its end, twice, to know that it repeats and what it leaves."""
    with tempfile.TemporaryDirectory() as name:
        homes = [Path(name) / "first", Path(name) / "second"]
        ended = [_run(case, home) for home in homes]
        for outcome in ended:
            must(outcome)
        first, second = (facts.of(home, case.party) for home in homes)
        if wrong := facts.differences(first, second, exact=case.exact):
            raise RuntimeError(f"The case {case.name} ends otherwise each time: {wrong}")
        if not all(own.charges for own in first.values()):
            raise RuntimeError(f"The case {case.name} releases nothing.")
        statements = ended[1].statements
        if case.swept:
            cell = next(homes[0].glob("cells/*/study.toml"))
            statements = call("run", cell, "--out", Path(name) / "cell").statements
        return Whole(first, statements, ended[1].seconds)


def trials(kills: int, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Trials over these cases in turn until so many were killed: when they died, and what is wrong."""
    wholes = {name: whole(CASES[name]) for name in names}
    done = 0
    for number, name in enumerate(cycle(names)):
        if done >= kills:
            return
        died, wrong = _trial(CASES[name], wholes[name], np.random.default_rng([1, number]))
        yield {"case": name, "number": number, "kills": died, "wrong": wrong}
        done += len(died)


def _trial(case: Case, expected: Whole, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """Kill a run a few times in its folder, let it end, and look."""
    kills: list[str] = []
    before = Counter[tuple[str, facts.Charge]]()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "run"
        for _ in range(1 if case.swept else int(rng.integers(1, MOST_KILLS + 1))):
            fatal, after = _moment(rng, expected)
            outcome = _run(case, home, fatal=fatal, after=after)
            if outcome.code == 0:  # it had ended before its time came
                break
            if outcome.code != -signal.SIGKILL:
                return kills, [f"killed, {outcome.told}"]
            kills.append(f"statement {fatal}" if fatal else f"{after:.2f} s")
            before |= _committed(case, home)
        outcome = _run(case, home)
        if outcome.code:
            return kills, [f"does not go on, {outcome.told}"]
        wrong = facts.differences(expected.facts, facts.of(home, case.party), exact=case.exact)
        if lost := before - _committed(case, home):
            wrong.append(f"{lost.total()} charges that were committed before a kill are lost")
    return kills, wrong


def _moment(rng: np.random.Generator, of: Whole) -> tuple[int, float]:
    """A statement to die at, or seconds to die after; the other is none."""
    if rng.random() < 0.5:
        return int(rng.integers(1, of.statements + 1)), 0.0
    return 0, float(rng.uniform(0, of.seconds))


def _committed(case: Case, home: Path) -> Counter[tuple[str, facts.Charge]]:
    """Every committed charge in the ledgers below a folder that can be shown: others were not finished."""
    found = Counter[tuple[str, facts.Charge]]()
    for own in sorted(path.parent for path in home.rglob("ledger.sqlite")):
        shown = facts.ledger(own, case.party)
        if shown.code == 0:
            place = str(own.relative_to(home))
            charges = facts.charges(shown).items()
            found |= Counter({(place, one): n for one, n in charges if one[-1] == "committed"})
    return found


def _run(case: Case, home: Path, *, fatal: int = 0, after: float = 0.0) -> Outcome:
    toml = home.with_suffix(".toml")
    toml.write_text(case.text)
    if case.swept:
        return _sweep(toml, home, fatal, after)
    child = Child("run", toml, "--out", home, fatal=fatal)
    return child.wait(after) if after else child.wait()


def _sweep(toml: Path, home: Path, fatal: int, after: float) -> Outcome:
    """A sweep in two workers. It is killed after so many seconds; or its workers at a statement, each."""
    words = ["sweep", str(toml), "--out", str(home), "--workers", "2"]
    environment = {**os.environ, FATAL: str(fatal or "")}
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        command = [sys.executable, "-m", "e2e.trials.victim", *words]
        with subprocess.Popen(
            command, env=environment, stdout=out, stderr=err, start_new_session=True
        ) as main:
            try:
                main.wait(after or None)
            except subprocess.TimeoutExpired:
                main.kill()
            code = main.wait()
        seconds = time.perf_counter() - began
        if not _gone(main.pid):
            code = HUNG
        out.seek(0)
        err.seek(0)
        told = err.read().decode(errors="replace")
        if fatal and code == 1 and "ended from outside" in told:
            code = -signal.SIGKILL  # of its workers
        return Outcome(code, out.read().decode(errors="replace"), told, 0, seconds)


def _gone(group: int) -> bool:
    """Wait until the workers have ended with their sweep: while they write, its folder belongs to them."""
    for _ in range(_PATIENCE * 10):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    os.killpg(group, signal.SIGKILL)
    return False
