"""The epsilon of the data holders of a finished run after each round, from the run's ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from securefl.accounting.budget import Budget
from securefl.accounting.grouped_counts import GroupedCounts
from securefl.algorithm.clients import Algorithm
from securefl.algorithm.plan import Plan
from securefl.core.messages import client_name
from securefl.core.release import PARTIES
from securefl.study.arm import ArmRun

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("arm", "seed", "round", "party", "least", "most")
_Row = tuple[str, int, int, str, float, float]
_MOST_POINTS = 60
"""The most rounds of a run whose epsilons are composed: a picture shows no more."""


def spent(runs: Sequence[ArmRun], arms: Mapping[str, tuple[Algorithm, Plan]]) -> pd.DataFrame:
    """The least and the largest epsilon of all data holders against each party, after each round.

    Columns: arm, seed, round, party, least, most. Runs of many rounds have 60 of them, the first and the last
    one included. The largest one of a round is the figure of its record: both are the ledger's.
    """
    import pandas as pd

    rows = [row for run in runs for row in _rows(run, arms[run.arm.name][1])]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _rows(run: ArmRun, plan: Plan) -> list[_Row]:
    charges = defaultdict[int, list[tuple[str, tuple[str, str]]]](list)
    for number, holder, name, charge in run.charges:
        charges[number].append((holder, (name, charge)))
    counts = GroupedCounts(map(client_name, range(run.world.problem.clients)))
    budget = Budget(counts, plan.terms())
    shown = set(np.linspace(0, len(run.records) - 1, _MOST_POINTS).round().astype(int))
    rows = []
    for place, record in enumerate(run.records):
        for holder, item in charges[record["round"]]:
            counts.add(holder, item)
        if place not in shown:
            continue
        for party in PARTIES:
            # holders with the same releases spent the same
            found = [budget.epsilon(next(iter(holders)), party) for _, holders in counts.groups()]
            rows.append((run.arm.name, run.world.seed, record["round"], party, min(found), max(found)))
    return rows
