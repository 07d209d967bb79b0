"""Private selection in a sweep: a random number of trials, of which only the best one is published.

    [sweep]
    choice = { trials = "poisson", mean = 10 }

The number of trials and the cell of each are drawn from the operating system's randomness (`dp.choice`).
Every trial is a run of its own in `private/trials/`. The best one is copied to `chosen/`, and its report
states the epsilon of the choice. The folder `private/` is not for publication, nor is the number of trials.

A trial's score is its last accuracy on the server's records, which count as public.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from securefl.accounting.figures import plain, short
from securefl.core.errors import ConfigError, DataError
from securefl.core.release import PARTIES
from securefl.dp.choice import Trials, epsilon_of_choice, uniform
from securefl.dp.noise import Source
from securefl.storage.files import folder_at, subfolder, write
from securefl.storage.private_folder import private_folder
from securefl.study import world
from securefl.study.accounted import NOTE, Choice, allotted
from securefl.study.composition import composition
from securefl.study.config import note_home
from securefl.study.folder import require_no_more
from securefl.study.interruption import Stop
from securefl.study.publication import PERSONAL
from securefl.study.session import reopen, run_study
from securefl.sweep.cells import CONFIG, Cell, Sweep
from securefl.sweep.run import share_key
from securefl.training.devices import Hardware

DRAWN = "trials.json"
TRIALS = "trials"
CHOSEN = "chosen"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The outcome of a private selection.

    Attributes:
        cell: the best trial's cell; None if no trial was drawn, or none has a score.
        score: the best trial's last accuracy on the server's records.
        epsilon: the cost of publishing cell, score and run together, by party.
        sentences: the same for people.
        folder: its run folder.
    """

    cell: Cell | None
    score: float
    epsilon: Mapping[str, float]
    sentences: tuple[str, ...]
    folder: Path

    def as_json(self) -> dict[str, Any]:
        """The outcome for scripts. An infinite epsilon is the text "inf"."""
        return {
            "chosen": None if self.cell is None else self.cell.name,
            "score": None if self.cell is None else self.score,
            "epsilon": plain(self.epsilon),
            "sentences": list(self.sentences),
            "folder": None if self.cell is None else str(self.folder),
        }


def require_choosable(sweep: Sweep) -> Trials:
    """The trials of a sweep with a choice. Raises ConfigError for cells to which no known bound applies."""
    if sweep.choice is None:
        raise ConfigError("[sweep] Expected `choice`, got none: say how many trials are drawn.")
    promises, deals = set(), list[Any]()
    for cell in sweep.cells:
        study, privacy = cell.study, cell.study.privacy
        if len(study.arms) != 1 or len(study.study.seeds) != 1:
            raise ConfigError(
                f"[sweep] Expected one arm and one seed in a cell with `choice`, got {len(study.arms)} arms "
                f"and {len(study.study.seeds)} seeds in the cell {cell.name}: a trial is one run. Leave the "
                "others out, or sweep over them."
            )
        if privacy.ledger is not None:
            raise ConfigError(
                "[sweep] Expected no `ledger` with `choice`, got one: a shared ledger cannot count a choice "
                "yet. Leave one of them out."
            )
        promises.add((privacy.unit, privacy.adjacency, privacy.delta, privacy.adversaries))
        # Under another deal a client is another one: the bound of the choice would hold for nobody.
        deal = (study.data, study.study.seeds) if privacy.unit == "client" else None
        if deal not in deals:
            deals.append(deal)
    if len(promises) > 1:
        raise ConfigError(
            "[sweep] Expected one unit, adjacency, delta and `adversaries` in all cells with `choice`, got "
            f"{len(promises)} of them. Leave them out of the grid."
        )
    if len(deals) > 1:
        raise ConfigError(
            '[sweep] Expected one section [data] and one seed in all cells with `choice` and unit "client", '
            f"got {len(deals)} of them: they make other clients of the same people. Leave them out of the "
            "grid."
        )
    return sweep.choice


def cost(sweep: Sweep) -> dict[str, float]:
    """Epsilon of the choice against each party, from public inputs alone."""
    trials = require_choosable(sweep)
    runs = []
    for cell in sweep.cells:
        study, seed = cell.study, cell.study.study.seeds[0]
        made = composition(study, study.arms[0], world.build(study, seed, Hardware()))
        runs.append(allotted(study, study.arms[0], seed, made, ""))
    delta = sweep.cells[0].study.privacy.delta
    return {party: epsilon_of_choice([own.events(party) for own in runs], trials, delta) for party in PARTIES}


def choose(
    sweep: Sweep,
    out: Path,
    *,
    stop: Stop | None = None,
    source: Source | None = None,
) -> Chosen:
    """Draw trials, run them, and copy the best to `chosen/`. If trials were drawn before, resume those.

    The caller has locked and claimed the folder `out`.

    Args:
        source: of the draw's randomness, by default the operating system. Only tests pass another one.
    """
    trials, spent = require_choosable(sweep), cost(sweep)
    drawn = _drawn(private_folder(out) / DRAWN, trials, len(sweep.cells), source or Source())
    best, score = None, -math.inf
    for number, place in enumerate(drawn):
        study = sweep.cells[place].study
        study = replace(study, runtime=study.runtime.here)
        home = _home(out, number)
        share_key(sweep, out, study, home)
        require_no_more(study, home)
        found, _ = run_study(study, home, lambda arm, seed, record: None, stop=stop, baselines=False)
        if found.summary[0].models == PERSONAL:
            raise ConfigError(
                "[sweep] Expected one global model with `choice`, got personal ones: their accuracies are of "
                "clients' own records, which no epsilon of a choice covers. Leave `choice` out, or take a "
                "protocol with one model for all."
            )
        own = found.summary[0].final_accuracy
        # Of equal scores the first wins: trials are identically distributed, so this prefers no cell.
        if own > score:  # false for nan, the score of a diverged run
            best, score = number, own
    said = told(sweep, spent)
    if best is None:
        nothing = "Nothing is chosen: no drawn trial has a score. The epsilon covers this outcome too."
        return Chosen(cell=None, score=score, epsilon=spent, sentences=(nothing, *said), folder=out / CHOSEN)
    accounting = Choice(sentence=" ".join(said), epsilon=spent)
    cell, folder = sweep.cells[drawn[best]], _published(sweep, out, best, accounting)
    first = f"Chosen: {cell.name}, with an accuracy of {score:.3f}."
    return Chosen(cell=cell, score=score, epsilon=spent, sentences=(first, *said), folder=folder)


def _home(out: Path, number: int) -> Path:
    return subfolder(private_folder(out) / TRIALS) / f"{number:04d}"


def _drawn(path: Path, trials: Trials, cells: int, source: Source) -> list[int]:
    """The cell of each trial, drawn once and kept. A second draw would be a choice that epsilon misses."""
    if not path.exists():
        drawn = [uniform(cells, source) for _ in range(trials.draw(source))]
        write(path, json.dumps(drawn), secret=True)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not all(type(place) is int and 0 <= place < cells for place in found):
            raise ValueError("a trial has no cell")
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path} is damaged ({error}), so the drawn trials are lost. Restore it, or begin a new sweep in "
            "another folder, whose epsilon adds to this one's."
        ) from None
    return list(found)


def _published(sweep: Sweep, out: Path, number: int, accounting: Choice) -> Path:
    """Copy a trial into a folder without its number, and rewrite its report with the cost of the choice.

    All files there bear the time at which the sweep began. Their own would tell which trial of how many it
    is.
    """
    folder = out / CHOSEN
    if not (folder / NOTE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder_at(folder, mode=0o700)  # until it has the modes of what is copied
        shutil.copytree(_home(out, number), folder, dirs_exist_ok=True)
        accounting.write(folder)
    study = sweep.cells[0].study
    note_home(folder, study.home)
    reopen(folder, brought=study.brought, run_code=True, trusted=study.namer.trusted)
    began = (out / CONFIG).stat().st_mtime_ns
    for path in (*folder.rglob("*"), folder, out):
        os.utime(path, ns=(began, began))
    return folder


def told(sweep: Sweep, spent: Mapping[str, float]) -> Sequence[str]:
    """Two sentences: the cost of the choice (see `cost`), and what it covers."""
    trials = require_choosable(sweep)
    law = "Poisson" if trials.trials == "poisson" else f"negative binomial, shape {trials.shape:g}"
    epsilons = ", ".join(f"{short(value)} against the {party}" for party, value in spent.items())
    delta = sweep.cells[0].study.privacy.delta
    return (
        f"The choice among {len(sweep.cells)} cells by a random number of trials ({law}, mean "
        f"{trials.mean:g}) is accounted for: cell, score and model together cost epsilon {epsilons}, at "
        f"delta {delta:g} (Papernot and Steinke 2022). An epsilon in its study is of one trial.",
        "The score is the accuracy on the server's records, which count as public. So this epsilon covers "
        "none of the server's records, and no other run over the same records.",
    )
