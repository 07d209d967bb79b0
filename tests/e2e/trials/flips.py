"""One flipped bit in a database of a run that was killed, or of a key holder; then what its commands say.

Every command must end as if nothing had happened, or refuse in a sentence: no traceback, no other result, and
no epsilon below the true one. A run's databases are flipped as the kill left them, with their write-ahead
logs, and after these were folded in.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from e2e.trials import facts
from e2e.trials.cases import CASES
from e2e.trials.victim import HUNG, TRACEBACK, Child, Outcome, call, must

Verdict = Literal["same", "refused", "traceback", "crash", "hung", "unexplained", "changed", "lower epsilon"]
GOOD: tuple[Verdict, ...] = ("same", "refused")
_MATCHING = "matching"
BASES = ("masked", "ckks", _MATCHING)


@dataclass(frozen=True)
class Base:
    """A folder to damage, and what its commands say undamaged.

    result: what `run` leaves in the end. printed: by `reveal`. before, after: by holder, the epsilon that the
    ledger shows at first and in the end.
    """

    name: str
    folder: Path
    result: dict[str, facts.Facts]
    printed: str
    before: dict[str, float]
    after: dict[str, float]


def trials(count: int, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """So many flips, spread over the bases, and in each over its files, the small as often as the large.

    Each tells where the bit was, the worst that a command did, and what it said then.
    """
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as root:
        bases = [
            base
            for name in names
            for base in (_matching(Path(root)) if name == _MATCHING else _runs(name, Path(root)))
        ]
        for number in range(count):
            yield _flip(rng, bases[number % len(bases)])


def _flip(rng: np.random.Generator, base: Base) -> dict[str, Any]:
    """Flip a bit in a copy of the folder, and try every command on it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "copy"
        shutil.copytree(base.folder, folder)
        files = [*folder.rglob("*.sqlite"), *folder.rglob("*.sqlite-wal")]
        filled = sorted(path for path in files if path.stat().st_size)
        path = filled[int(rng.integers(len(filled)))]
        content = bytearray(path.read_bytes())
        bit = int(rng.integers(8 * len(content)))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        found = _reveal(base, folder) if base.name == _MATCHING else _resume(base, folder)
        file = str(path.relative_to(folder))
    verdict, told = next((one for one in found if one[0] not in GOOD), found[0])
    return {"base": base.name, "file": file, "bit": bit, "verdict": verdict, "told": told}


# Runs --------------------------------------------------------------------------------------------------


def _runs(name: str, root: Path) -> Iterator[Base]:
    left, folded, ended = (root / f"{name}-{what}" for what in ("with-logs", "folded", "ended"))
    _killed(name, left)
    shutil.copytree(left, folded)
    for path in sorted(folded.rglob("*.sqlite")):
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(left, ended)
    (home,) = facts.arms(ended)
    before = facts.spent(facts.ledger(home, CASES[name].party))
    must(call("run", ended / "study.toml", "--out", ended, "--trust-code", ended))
    result = facts.of(ended, CASES[name].party)
    after = facts.spent(facts.ledger(home, CASES[name].party))
    yield from (Base(name, folder, result, "", before, after) for folder in (left, folded))


def _killed(name: str, home: Path) -> None:
    """A run of which some rounds are finished, and one was cut off."""
    toml = home.with_suffix(".toml")
    toml.write_text(CASES[name].text)
    whole = call("run", toml, "--out", home.with_name(f"{name}-whole"))
    must(whole)
    Child("run", toml, "--out", home, fatal=3 * whole.statements // 4).wait()
    (arm,) = facts.arms(home)
    if not facts.charges(facts.ledger(arm, CASES[name].party)) or not (arm / "ledger.sqlite-wal").exists():
        raise RuntimeError(f"{home} was not killed in the middle.")


def _resume(base: Base, folder: Path) -> list[tuple[Verdict, str]]:
    party = CASES[base.name].party
    # The note of the study's home holds for the folder that it was written in, and this is a copy.
    trusted = ("--trust-code", folder)
    ran = call("run", folder / "study.toml", "--out", folder, *trusted)
    told = [_verdict("run", ran), _verdict("report", call("report", folder, *trusted))]
    shown = call("ledger", "show", next(folder.rglob("ledger.sqlite")), "--json", "--party", party)
    told.append(_spent(shown, base.before if ran.code else base.after))
    if ran.code == 0 and told[-1][0] == "same":  # facts would stumble over a ledger that is not shown
        wrong = facts.differences(base.result, facts.of(folder, party), exact=True)
        told += [("changed", "; ".join(wrong))] if wrong else []
    return told


# A key holder ------------------------------------------------------------------------------------------


def _matching(root: Path) -> Iterator[Base]:
    """A matching of two profiles of which the scores were revealed once."""
    home = root / _MATCHING
    home.mkdir()
    keys, own = home / "K", home / "V"
    must(call("keygen", "--role", "key-holder", "--params", "strong", "--out", keys))
    must(call("keygen", "--role", "evaluator", "--out", own))
    sealed = []
    for number, name in enumerate(("base", "first", "second")):
        path = home / f"{name}.json"
        path.write_text(json.dumps({"mean": [0.1 * number, -0.2], "variance": [1.0, 1.5]}))
        if number:
            sealed.append(path.with_suffix(".enc"))
            public = ("--public", keys / "public.key", "--evaluator", own / "evaluator.pub")
            must(call("encrypt", *public, "--profile", path, "-o", sealed[-1]))
    words = ("--public", keys / "public.key", "--evaluator", own / "evaluator.key")
    must(call("match", *words, "--baseline", home / "base.json", *sealed, "-o", home / "scores.enc"))
    revealed = _revealed(home)
    must(revealed)
    after = facts.spent(_shown(home))
    yield Base(_MATCHING, home, {}, revealed.out, after, after)


def _revealed(home: Path) -> Outcome:
    words = ("--secret", home / "K/secret.key", "--evaluator", home / "V/evaluator.pub", "--json")
    return call("reveal", *words, home / "scores.enc")


def _shown(home: Path) -> Outcome:
    return call("ledger", "show", home / "K/ledger.sqlite", "--json", "--party", "key-holder")


def _reveal(base: Base, folder: Path) -> list[tuple[Verdict, str]]:
    again = _revealed(folder)
    told = [_verdict("reveal", again), _spent(_shown(folder), base.before)]
    if again.code == 0 and again.out != base.printed:
        told.append(("changed", "other scores"))
    return told


# Verdicts ----------------------------------------------------------------------------------------------


def _verdict(command: str, outcome: Outcome) -> tuple[Verdict, str]:
    told = f"{command}: {outcome.told}"
    if outcome.code == 0:
        return "same", told
    if outcome.code == HUNG:
        return "hung", told
    if outcome.code < 0:
        return "crash", told
    if outcome.code == TRACEBACK:
        return "traceback", told
    return ("refused" if outcome.explained else "unexplained"), told


def _spent(shown: Outcome, least: dict[str, float]) -> tuple[Verdict, str]:
    """Of `ledger show`: whether any holder is said to have spent less than is true."""
    if shown.code:
        return _verdict("ledger show", shown)
    found = facts.spent(shown)
    low = [name for name, epsilon in least.items() if found.get(name, 0.0) < epsilon]
    told = (
        f"ledger show: {', '.join(f'{name} {found.get(name, 0.0)}, not {least[name]}' for name in low[:2])}"
    )
    return ("lower epsilon", told) if low else ("same", "")
