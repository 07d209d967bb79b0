"""What a run asked of each client's ledger, beside what the server counts for it.

The server counts the charge of every order that it sends, whether it arrives or not. A client's ledger counts
only orders that reached it. So the client has spent at most what the server counts, and at least the charges
of the orders to which it replied. Both are accounts (`engine.account`): one of all orders in the records of
the rounds, one of those with a reply. They are of this run alone; a client's ledger also has its other
sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import pandas as pd

from securefl.accounting.figures import plain, short
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.messages import client_name
from securefl.core.text_safety import some
from securefl.engine.account import Account
from securefl.engine.attendance import Absence
from securefl.report.tables import write_table
from securefl.storage.private_folder import NOTICE, PRIVATE, private_folder

SPENDING: Final = "spending.csv"
"""The private table of a run folder with what the run asked of each client's ledger."""
_UNREACHED = (Absence.SILENT.value, Absence.REFUSED.value)
"""Reasons of clients that may not have got an order."""


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
    counted, spent = (Account(plan, specs, clients) for _ in range(2))
    asked, answered = Counter[int](), Counter[int]()
    for record in records:
        absent: Mapping[str, str] = record["seen"]["absent"]
        # Who replies without a value has reserved its charges first.
        replied = {
            k
            for k in range(clients)
            if client_name(k) in record["seen"]["asked"] and absent.get(client_name(k)) not in _UNREACHED
        }
        orders = [(str(name), bool(initial), tuple(cohort)) for name, initial, cohort in record["charged"]]
        counted.restore([orders])
        spent.restore([[(name, initial, tuple(replied & set(own))) for name, initial, own in orders]])
        here = {k for _, _, own in orders for k in own}
        asked.update(here)
        answered.update(k for k in here & replied if client_name(k) not in absent)
    return [
        Spent(
            client=k,
            asked=asked[k],
            answered=answered[k],
            counted=counted.epsilon(k),
            spent=spent.epsilon(k),
        )
        for k in range(clients)
    ]


def sentences(found: Sequence[Spent]) -> list[str]:
    """A sentence for all clients with the same figures."""
    alike: dict[tuple[int, int, float, float], list[str]] = {}
    for one in found:
        key = (one.asked, one.answered, one.counted, one.spent)
        alike.setdefault(key, []).append(client_name(one.client))
    lines = []
    for (asked, answered, counted, spent), names in alike.items():
        who = some(names)
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
