"""A sweep of digits, and cells as if they had run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from securefl.core.release import PARTIES
from securefl.report.accuracy import MEASURES
from securefl.report.tables import write_csv
from securefl.storage.files import folder_at
from securefl.storage.private_folder import NOTICE, RUN, note_format, private_folder
from securefl.study.config import Study, parse
from securefl.study.publication import public
from securefl.sweep.cells import Sweep, claim, parse_sweep
from securefl.sweep.run import facts_of, finish
from securefl.sweep.tradeoff import results_table, summary_table
from support.tiny_study import text

NOISED = (
    text("", non_private="[]")
    .replace('noise = "none"', 'noise = "local"')
    .replace('adversaries = ["server", "key-holder", "others"]', 'adversaries = ["server", "others"]')
)
ARMS = "".join(
    f'[[arm]]\nname = "{name}"\nprotocol = "fedlog"\nclip = {{ kind = "{clip}" }}\n'
    for name, clip in (("unit", "unit-l2"), ("bounded", "bounded"))
)
ONE = ARMS[: ARMS.index("[[arm]]", 1)]
"""The first arm alone, which has a finite epsilon."""
EPSILONS = '"privacy.epsilon" = [1.0, 4.0, inf]'
LISTS = ('"privacy.calibration" = "exact"', '"privacy.calibration" = "paper"')


def sweep(grid: str = "", *lists: str, study: str = NOISED + ARMS) -> Sweep:
    tables = "".join(f"[[sweep.list]]\n{entry}\n" for entry in lists)
    return parse_sweep(study + (f"[sweep.grid]\n{grid}\n" if grid else "") + tables)


def two_lists() -> Sweep:
    """Three epsilons under two calibrations."""
    return sweep(EPSILONS, *LISTS, study=NOISED.replace("target = 0.2", "target = 0.25") + ARMS)


def summary_of(found: Sweep, out: Path) -> pd.DataFrame:
    """The summary of the cells that are finished in a folder."""
    told = facts_of(found, out)
    return summary_table(found, told, results_table(found, told))


def row(arm: str, seed: int, number: int, accuracy: float, epsilon: Mapping[str, float]) -> dict[str, Any]:
    return {
        "arm": arm,
        "seed": seed,
        "round": number,
        "accuracy": accuracy,
        "loss": 1.0,
        "bytes_up": 1000,
        "bytes_down": 500,
        "seconds": 1.0,
        "models": "global",
        **{f"epsilon_{party}": value for party, value in epsilon.items()},
    }


def finished(found: Sweep, out: Path, **more: Any) -> Path:
    """The same as `fill`, with the files of each cell that its report writes too. Returns the folder."""
    claim(out, found)
    fill(found, out, **more)
    for cell in found.cells:
        folder = out / "cells" / cell.folder
        if folder.is_dir():
            as_run(cell.study, folder)
    return out


def as_run(study: Study, folder: Path) -> Path:
    """Make a folder with `private/metrics.csv` that of a finished run. Returns the folder."""
    note_format(folder, RUN)
    (folder / "study.toml").write_text(study.text)
    rounds = pd.read_csv(folder / "private" / "metrics.csv", comment="#")
    public(rounds).to_csv(folder / "metrics.csv", index=False)
    reasons = [
        {"name": arm.name, "infinite_reason": "one record moves the sum without bound" if number else ""}
        for number, arm in enumerate(study.arms)
    ]
    said = {"accuracy": MEASURES["classification"].words, "arms": reasons}
    (folder / "summary.json").write_text(json.dumps(said))
    return folder


def plain_run(folder: Path, accuracies: Sequence[float], arm: str = "unit") -> Path:
    """A finished run without noise, with these final accuracies by seed."""
    written = NOISED.replace('noise = "local"', 'noise = "none"').replace("[]", '["statistic"]', 1)
    study = parse(written + ONE.replace('"unit"', f'"{arm}"'))
    spent = dict.fromkeys(PARTIES, math.inf)
    rows = [row(arm, seed, 1, value, spent) | {"floor": 0.1} for seed, value in enumerate(accuracies, 1)]
    write_csv(private_folder(folder_at(folder)) / "metrics.csv", pd.DataFrame(rows), [NOTICE])
    return as_run(study, folder)


def fill(
    found: Sweep,
    out: Path,
    *,
    leave: int = 0,
    alarms: Sequence[Mapping[str, Any]] = (),
    seeds: int = 3,
    outside: Sequence[str] = (),
    personal: bool = False,
) -> None:
    """Folders as finished cells leave them, of some seeds and two rounds, but for the last `leave`.

    personal: whether accuracies are of personal models.
    """
    for place, cell in enumerate(found.cells[: len(found.cells) - leave]):
        folder = out / "cells" / cell.folder
        folder.mkdir(parents=True)
        home = private_folder(folder)
        asked = cell.study.privacy.epsilon or math.inf
        rows, endless = [], {}
        for a, arm in enumerate(cell.study.arms):
            spent = math.inf if a or asked == math.inf else 0.9 * asked
            endless[arm.name] = "one record moves the sum without bound" if spent == math.inf else ""
            epsilon = {"server": spent, "key-holder": 99.0, "others": spent / 2}
            for seed in range(1, seeds + 1):
                for number in (1, 2):
                    accuracy = 0.1 * number + 0.01 * seed + 0.02 * place
                    models = "personal" if personal else "global"
                    rows.append(
                        {**row(arm.name, seed, number, accuracy, epsilon), "models": models, "floor": 0.1}
                    )
        write_csv(home / "metrics.csv", pd.DataFrame(rows), [NOTICE])
        card = [
            {
                "party": "server",
                "arms": list(endless),
                "learns": "sums",
                "epsilon": f"{asked:.3g}".replace("inf", "∞"),
            }
        ]
        told = {"card": card, "infinite_reason": endless, "alarms": alarms, "outside": outside}
        finish(folder, cell.study, {**told, "kind": "classification"})
