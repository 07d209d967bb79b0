"""One query to named clients, and its ledger: in a temporary or a lasting file, with the file of their names.

A ledger knows clients by number. The file of names keeps a client's number the same in all calls. Without it
one client's releases would be charged to another if a second call had other names or another order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery, Value, ValueSpec
from securefl.api.arguments import path_of
from securefl.core.errors import DataError
from securefl.core.linear import LinearBounds
from securefl.core.messages import client_name
from securefl.core.release import PARTIES
from securefl.core.text_safety import require_distinct
from securefl.engine.aggregator import SecureAggregator
from securefl.engine.party.computing import Records
from securefl.engine.privacy_card import learns
from securefl.storage.database import Damaged, Database, Kind, check, seal

KIND: Final = Kind(
    name="roster",
    tables=(
        "CREATE TABLE clients (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, seal BLOB NOT NULL) "
        "STRICT",
        "CREATE TABLE ledger (identity TEXT PRIMARY KEY, seal BLOB NOT NULL) STRICT",
    ),
    lost="Without it the ledger's entries have no owners: restore it, or begin a new ledger in another file, "
    "which does not count the releases under this one.",
    anew="begin a new ledger in another file, which does not count the releases under this one",
)
RECORDS: Final[Records] = (np.zeros((1, 1)), np.zeros(1))
"""The records of a client that sends the caller's value. A client without records would abstain."""


def ask(
    plan: Plan,
    spec: ValueSpec,
    names: Sequence[str],
    compute: Callable[[str], Value],
    ledger: Path | str | None,
    *,
    bounds: LinearBounds | None = None,
    parameters: str = "strong",
    **asked: Any,
) -> tuple[Answers, dict[str, int], dict[str, Any], bool]:
    """Put one query to these clients, in this process, and charge its ledger.

    Args:
        plan, spec: of the query, and of its value.
        names: of the clients, in the caller's order.
        compute: makes the value of a client, by its name.
        ledger: see `ledger_of`.
        bounds, parameters: of a score.
        asked: `sums` or `per_client` of the query.

    Returns:
        The answers; the number of each client that has one; the reason why each other one is `absent`, what
        each party `learns` and the `epsilon` against it; and whether a budget did not bear it.
    """
    with ledger_of(ledger, plan, names) as (path, numbers):
        named = {number: name for name, number in numbers.items()}
        query = CohortQuery(cohort=tuple(sorted(named)), broadcast=np.zeros(0, np.float32), **asked)
        function = ClientFunction(spec, lambda context: compute(named[context.client]), bounds)
        records = [RECORDS] * (1 + max(named))
        with SecureAggregator(plan, [function], records, ledger=path, parameters=parameters) as aggregator:
            answers = aggregator.query(query)
            there = answers.per_client.get(spec.name, answers.survivors)
            reasons = {name: aggregator.log.abstained.get(client_name(numbers[name]), "") for name in names}
            told = {
                "absent": {name: why for name, why in reasons.items() if numbers[name] not in there},
                "learns": {party: learns(plan, [spec], party) for party in PARTIES},
                "epsilon": {party: aggregator.ledger.worst(party) for party in PARTIES},
            }
            found = {name: numbers[name] for name in names if numbers[name] in there}
            return answers, found, told, bool({*map(client_name, named)} & {*aggregator.log.refused})


@contextmanager
def ledger_of(
    path: Path | str | None, plan: Plan, names: Sequence[str]
) -> Iterator[tuple[Path, Mapping[str, int]]]:
    """The ledger's file, and each client's number in it.

    Without a path, the file is temporary and lasts as long as the context. Raises DataError if the ledger or
    the file of names beside it was lost, damaged or swapped, and ConfigError if the ledger has other terms.
    """
    if path is not None:
        file = path_of("ledger", path, "a file")
        yield file, _numbers(file, plan, names)
        return
    with tempfile.TemporaryDirectory() as private:
        yield Path(private) / "ledger.sqlite", {name: number for number, name in enumerate(names)}


def _numbers(path: Path, plan: Plan, names: Sequence[str]) -> Mapping[str, int]:
    with Ledger(path, plan.terms()) as ledger, Roster.beside(path) as roster:
        ends = {row[0].rpartition("-")[2] for row in ledger.rows()}
        if not all(end.isdecimal() and end.isascii() for end in ends):
            raise DataError(
                f"Expected a ledger of numbered clients at {path}, got one of other holders, such as of "
                "`securefl reveal`. Name another file."
            )
        entries = 1 + max(map(int, ends), default=-1)
        found = roster.numbers(names, ledger.identity, entries)
    return {name: found[name] for name in names}


class Roster:
    """The names of a ledger's clients, in the order of their first call."""

    def __init__(self, path: Path) -> None:
        self._db = Database(path, KIND)

    @classmethod
    @contextmanager
    def beside(cls, ledger: Path) -> Iterator[Roster]:
        """Open the names of a ledger, in `<ledger>.clients`."""
        found = cls(ledger.with_name(ledger.name + ".clients"))
        try:
            yield found
        finally:
            found._db.close()

    def numbers(self, names: Iterable[str], identity: str, entries: int) -> dict[str, int]:
        """The number of each name; a new name takes the next number, durably.

        Args:
            identity: of the ledger.
            entries: the least number of clients with entries in it.

        Raises DataError if the names are another ledger's, lost or older than the ledger. Raises ConfigError
        if a new name differs only by case from a known one: its client would have a second budget.
        """
        names = tuple(names)
        # In one transaction, so that two processes that start at once give no number to two names.
        with self._db.explaining(), self._db.transaction():
            known = self._known()
            self._bind(identity, new=not known and not entries)
            if entries > len(known):
                raise Damaged(f"the ledger has entries of {entries} clients, and it names {len(known)}")
            require_distinct((*known, *names), "clients' names in one ledger")
            for name in names:
                if name not in known:
                    number = known[name] = len(known)
                    self._db.run("INSERT INTO clients VALUES (?, ?, ?)", (number, name, seal(number, name)))
            return known

    def _known(self) -> dict[str, int]:
        rows = self._db.rows("SELECT number, name, seal FROM clients ORDER BY number")
        for place, (number, name, sealed) in enumerate(rows):
            check(sealed, number, name)
            if number != place:
                raise Damaged("clients are missing")
        return {name: number for number, name, _ in rows}

    def _bind(self, identity: str, *, new: bool) -> None:
        row = self._db.row("SELECT identity, seal FROM ledger")
        if row is None and new:
            self._db.run("INSERT INTO ledger VALUES (?, ?)", (identity, seal(identity)))
        elif row is None:
            raise Damaged("it no longer says whose ledger it belongs to")
        else:
            check(row[1], row[0])
            if row[0] != identity:
                raise DataError(
                    f"{self._db.path} belongs to another ledger. Put back the one that does, or begin anew."
                )
