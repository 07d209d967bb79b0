"""The epsilon of the data holders of a finished run after each round, from the server's public account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from securefl.algorithm.clients import Algorithm, specs_of
from securefl.algorithm.plan import Plan
from securefl.core.release import PARTIES
from securefl.engine.account import Account
from securefl.study.arm import ArmRun

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("arm", "seed", "round", "party", "least", "median", "most")
_Row = tuple[str, int, int, str, float, float, float]
_MOST_POINTS = 60
"""The most rounds of a run whose epsilons are composed: a picture shows no more."""


def spent(runs: Sequence[ArmRun], arms: Mapping[str, tuple[Algorithm, Plan]]) -> pd.DataFrame:
    """The least, median and largest epsilon of all data holders against each party, after each round.

    Columns: arm, seed, round, party, least, median, most. Runs of many rounds have 60 of them, the first and
    the last one included. The account counts what was asked, so a lost answer counts as if it had left.
    """
    import pandas as pd

    rows = [row for run in runs for row in _rows(run, *arms[run.arm.name])]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _rows(run: ArmRun, algorithm: Algorithm, plan: Plan) -> list[_Row]:
    specs = {spec.name: spec for spec in specs_of(algorithm)}
    account = Account(plan, specs, clients=run.world.problem.clients)
    shown = set(np.linspace(0, len(run.records) - 1, _MOST_POINTS).round().astype(int))
    rows = []
    for place, record in enumerate(run.records):
        account.restore([[(name, initial, tuple(asked)) for name, initial, asked in record["charged"]]])
        if place not in shown:
            continue
        for party in PARTIES:
            found = account.epsilons(party)
            where = (run.arm.name, run.world.seed, record["round"], party)
            rows.append((*where, found[0], float(median(found)), found[-1]))
    return rows
