"""Two processes that begin at once on one folder: one runs it, the other is sent away."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.trials import facts
from support.trials.cases import CASES
from support.trials.kills import Whole, whole
from support.trials.victim import Child

_NAMES = ("masked", "ckks", "central", "masked", "ckks", "central", "masked", "sweep")
"""In turn: every eighth pair is one of sweeps."""


@dataclass(frozen=True)
class Result:
    """How the loser ended, and what was wrong."""

    case: str
    told: str
    wrong: tuple[str, ...]


def trials(pairs: int) -> Iterator[Result]:
    """So many pairs, in turn fresh and after a kill in the middle."""
    wholes: dict[str, Whole] = {}
    for number in range(pairs):
        name = _NAMES[number % len(_NAMES)]
        if name not in wholes:
            wholes[name] = whole(CASES[name])
        yield _pair(name, wholes[name], begun=number % 2 == 1)


def _pair(name: str, expected: Whole, *, begun: bool) -> Result:
    case = CASES[name]
    with tempfile.TemporaryDirectory() as root:
        toml, home = Path(root) / "tiny.toml", Path(root) / "run"
        toml.write_text(case.text)
        words = ("sweep" if case.swept else "run", toml, "--out", home)
        if begun and not case.swept:
            Child(*words, fatal=expected.statements // 2).wait()
        children = [Child(*words), Child(*words)]
        ended = [(child.pid, child.wait()) for child in children]
        codes = sorted(outcome.code for _, outcome in ended)
        if codes != [0, 1]:
            told = "; ".join(outcome.told for _, outcome in ended)
            return Result(name, told, (f"they ended with {codes}: {told}",))
        (winner, _), (_, loser) = sorted(ended, key=lambda one: one[1].code)
        wrong = [] if loser.explained else [f"no explanation: {loser.told}"]
        if not re.search(rf"\b{winner}\b", loser.err):
            wrong.append(f"the message does not name process {winner}: {loser.told}")
        wrong += facts.differences(expected.facts, facts.of(home, case.party), exact=case.exact)
    return Result(name, loser.told, tuple(wrong))
