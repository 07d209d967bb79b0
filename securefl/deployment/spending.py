"""What a run asked of each client's ledger, beside what the server counts for it.

The server counts the charge of every order that it sends, whether it arrives or not. A client's ledger counts
only orders that reached it. So the client has spent at most what the server counts, and at least the charges
of the orders to which it replied. Both figures follow from public charges and from who took part. They are
of this run alone; a client's ledger also has its other sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import pandas as pd

from securefl.accounting.composition import epsilon
from securefl.accounting.events import History
from securefl.accounting.figures import plain, short
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.messages import client_name
from securefl.engine.attendance import Absence
from securefl.mechanisms.charges import Protection
from securefl.report.tables import write_table
from securefl.storage.private_folder import NOTICE, PRIVATE, private_folder

SPENDING: Final = "spending.csv"
"""The private table of a run folder with what the run asked of each client's ledger."""
_UNREACHED = (Absence.SILENT.value, Absence.REFUSED.value)
"""Reasons of clients that may not have got an order."""
_NAMED = 6
"""The number of clients of one sentence that are named."""
Asked = Counter[tuple[str, bool]]
"""How often a client was asked for a value, by the value's name and whether the query was an initial one."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """One client's spending in a run. Raises nothing.

    Attributes:
        client: its number.
        asked, answered: the number of rounds in which it was asked, and in which it took part.
        counted: epsilon of all orders to it, as the server counts: the largest against any adversary of the
            plan.
        spent: epsilon of the orders of those rounds in which it replied, with a value or without.
    """

    client: int
    asked: int
    answered: int
    counted: float
    spent: float

    def words(self) -> dict[str, Any]:
        """Every field by its word in JSON, with infinity as the text "inf"."""
        return {**vars(self), "counted": plain(self.counted), "spent": plain(self.spent)}


def write(folder: Path, found: Sequence[Spent]) -> None:
    """Write the private table of a run folder."""
    table = pd.DataFrame([vars(one) for one in found], columns=[one.name for one in fields(Spent)])
    write_table(private_folder(folder) / SPENDING, table, NOTICE)


def read(folder: Path) -> list[Spent]:
    """The table of a run folder."""
    table = pd.read_csv(folder / PRIVATE / SPENDING, comment="#")
    return [Spent(**{str(name): value for name, value in row.items()}) for row in table.to_dict("records")]


def spending(
    plan: Plan, specs: Mapping[str, ValueSpec], records: Sequence[Mapping[str, Any]], clients: int
) -> list[Spent]:
    """Each client's spending, from the records of a run's rounds."""
    counted, spent = [Asked() for _ in range(clients)], [Asked() for _ in range(clients)]
    asked, answered = Counter[int](), Counter[int]()
    for record in records:
        absent: Mapping[str, str] = record["seen"]["absent"]
        here: set[int] = set()
        for name, initial, cohort in record["charged"]:
            for k in dict.fromkeys(cohort):
                counted[k][name, initial] += 1
                here.add(k)
                # Who replies without a value has reserved its charges first.
                if absent.get(client_name(k)) not in _UNREACHED:
                    spent[k][name, initial] += 1
        asked.update(here)
        answered.update(k for k in here if client_name(k) not in absent)
    known: dict[frozenset[Any], float] = {}

    def composed(one: Asked) -> float:
        key = frozenset(one.items())
        if key not in known:
            known[key] = max((_epsilon(plan, specs, one, party) for party in plan.adversaries), default=0.0)
        return known[key]

    return [
        Spent(
            client=k,
            asked=asked[k],
            answered=answered[k],
            counted=composed(counted[k]),
            spent=composed(spent[k]),
        )
        for k in range(clients)
    ]


def _epsilon(plan: Plan, specs: Mapping[str, ValueSpec], asked: Asked, party: str) -> float:
    events = Counter[Any]()
    for (name, initial), times in asked.items():
        events[Protection(plan, specs[name]).charge(trained=not initial).by_party()[party]] += times
    return epsilon(History.of(events), plan.delta)


def sentences(found: Sequence[Spent]) -> list[str]:
    """A sentence for all clients with the same figures."""
    alike: dict[tuple[int, int, float, float], list[str]] = {}
    for one in found:
        key = (one.asked, one.answered, one.counted, one.spent)
        alike.setdefault(key, []).append(client_name(one.client))
    lines = []
    for (asked, answered, counted, spent), names in alike.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        who = ", ".join(names[:_NAMED]) + more
        if not asked:
            lines.append(f"{who}: never asked; the ledger is asked for nothing.")
        elif counted == spent:
            lines.append(
                f"{who}: took part in {answered} of {asked} rounds; the ledger is asked for epsilon "
                f"{short(spent)}, as the server counts."
            )
        else:
            lines.append(
                f"{who}: took part in {answered} of {asked} rounds; the ledger is asked for epsilon "
                f"{short(spent)} by the orders that it replied to, and the server counts {short(counted)}."
            )
    return lines
