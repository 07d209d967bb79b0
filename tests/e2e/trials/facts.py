"""What a run folder holds, read from its files: finished rounds, the model, what was charged and spent."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.trials.victim import Outcome, call
from safetensors.numpy import load

Charge = tuple[Any, ...]
_NAMES = ("holder", "round", "name", "event", "state")


@dataclass(frozen=True)
class Facts:
    """Of one arm and seed.

    model: every array of the final state, as (type, shape, bytes). charges, spent: see the functions.
    """

    rounds: list[int]
    records: list[dict[str, Any]]
    model: dict[str, tuple[str, tuple[int, ...], bytes]]
    charges: Counter[Charge]
    spent: dict[str, float]


def arms(folder: Path) -> list[Path]:
    """The folders of all arms and seeds below a run or a sweep, in order."""
    return sorted(path.parent for path in folder.rglob("seed-*/ledger.sqlite"))


def of(folder: Path, party: str) -> dict[str, Facts]:
    """The facts of all arms and seeds below a folder, by their place in it."""
    return {str(home.relative_to(folder)): _facts(home, party) for home in arms(folder)}


def _facts(home: Path, party: str) -> Facts:
    with closing(sqlite3.connect(home / "ledger.sqlite")) as db:
        rows = db.execute("SELECT round, record FROM rounds ORDER BY round").fetchall()
        (arrays,) = db.execute("SELECT arrays FROM state ORDER BY rowid DESC LIMIT 1").fetchone()
    records = [json.loads(record) for _, record in rows]
    for record in records:  # of these two, one is the clock's, and the other has times in its digest
        record.pop("wall_seconds")
        record.pop("ledger", None)
    model = {name: (str(own.dtype), own.shape, own.tobytes()) for name, own in load(arrays).items()}
    shown = ledger(home, party)
    if shown.code:
        raise RuntimeError(f"The ledger in {home} cannot be shown: {shown.told}")
    return Facts([row[0] for row in rows], records, model, charges(shown), spent(shown))


def ledger(home: Path, party: str) -> Outcome:
    """What `ledger show` says of a copy: a look may not mend what a kill has left."""
    with tempfile.TemporaryDirectory() as copied:
        for path in home.glob("ledger.sqlite*"):
            shutil.copy(path, copied)
        return call("ledger", "show", Path(copied) / "ledger.sqlite", "--json", "--party", party)


def charges(shown: Outcome) -> Counter[Charge]:
    """Holder, round, name, event and state of every release that `ledger show` lists."""
    return Counter(tuple(row[name] for name in _NAMES) for row in json.loads(shown.out)["releases"])


def spent(shown: Outcome) -> dict[str, float]:
    """By holder, the epsilon after its last release that `ledger show` lists."""
    return {row["holder"]: float(row["epsilon"]) for row in json.loads(shown.out)["releases"]}


def differences(whole: dict[str, Facts], found: dict[str, Facts], *, exact: bool) -> list[str]:
    """What is otherwise than in the uninterrupted run, in words.

    exact: False compares what encrypted scores cannot turn: rounds, how many were asked and answered, how
    many releases of each value there were, and the largest epsilon.
    """
    if whole.keys() != found.keys():
        return [f"arms {sorted(found)} instead of {sorted(whole)}"]
    wrong = []
    for place, own in found.items():
        one = whole[place]
        if own.rounds != one.rounds:
            wrong.append(f"{place}: rounds {own.rounds} instead of {one.rounds}")
        elif exact:
            wrong += [f"{place}: {what}" for what in _unequal(one, own)]
        elif _public(one) != _public(own):
            wrong.append(
                f"{place}: numbers of clients, releases or epsilon {_public(own)} not {_public(one)}"
            )
    return wrong


def _unequal(one: Facts, own: Facts) -> list[str]:
    wrong = []
    for a, b in zip(one.records, own.records, strict=True):
        names = [name for name in a if repr(a[name]) != repr(b.get(name))]  # NaN differs from itself
        if names:
            wrong.append(f"round {a['round']} has another {', '.join(names)}")
            break
    if own.model != one.model:
        wrong.append("another final model")
    if own.charges != one.charges:
        more, less = own.charges - one.charges, one.charges - own.charges
        wrong.append(f"{more.total()} charges too many, {less.total()} too few")
    if own.spent != one.spent:
        wrong.append(f"another epsilon: {max(own.spent.values())} instead of {max(one.spent.values())}")
    return wrong


def _public(own: Facts) -> Any:
    cohorts = [(len(set(r["selected"])), len(r["answered"])) for r in own.records]
    releases = Counter((number, name) for _, number, name, *_ in own.charges.elements())
    return cohorts, sorted(releases.items()), own.records[-1]["epsilon"]
