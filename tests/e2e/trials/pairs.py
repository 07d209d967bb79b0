"""Two processes that begin at once on one folder: one runs it, the other is sent away."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from e2e.trials import facts
from e2e.trials.cases import CASES, TURNS
from e2e.trials.kills import Whole, whole
from e2e.trials.victim import Child


def trials(pairs: int) -> Iterator[dict[str, Any]]:
    """So many pairs, in turn fresh and after a kill in the middle: how the loser ended, and what is wrong."""
    wholes: dict[str, Whole] = {}
    for number, name in enumerate(islice(cycle(TURNS), pairs)):
        if name not in wholes:
            wholes[name] = whole(CASES[name])
        told, wrong = _pair(name, wholes[name], begun=number % 2 == 1)
        yield {"case": name, "told": told, "wrong": wrong}


def _pair(name: str, expected: Whole, *, begun: bool) -> tuple[str, list[str]]:
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
            return told, [f"they ended with {codes}"]
        (winner, _), (_, loser) = sorted(ended, key=lambda one: one[1].code)
        wrong = [] if loser.explained else [f"no explanation: {loser.told}"]
        if not re.search(rf"\b{winner}\b", loser.err):
            wrong.append(f"the message does not name process {winner}: {loser.told}")
        wrong += facts.differences(expected.facts, facts.of(home, case.party), exact=case.exact)
    return loser.told, wrong
