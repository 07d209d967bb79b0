"""The ledger of a single call: the caller's own, which lasts, or one for as long as the call."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.api.arguments import path_of
from securefl.api.roster import Roster
from securefl.engines.party.computing import Records
from securefl.plan import Plan

RECORDS: Final[Records] = (np.zeros((1, 1)), np.zeros(1))
"""Of a client that sends what its caller gives. One without any record would abstain."""


@contextmanager
def ledger_of(
    path: Path | str | None, plan: Plan, names: Sequence[str]
) -> Iterator[tuple[Path, Mapping[str, int]]]:
    """The ledger's file, and the number in it of each client.

    Without a path there is a file for as long as the context. Raises DataError for a ledger, or a roster
    beside it, that was lost, damaged or swapped, and ConfigError for a ledger with other terms.
    """
    if path is not None:
        file = path_of("ledger", path, "a file")
        yield file, _numbers(file, plan, names)
        return
    with tempfile.TemporaryDirectory() as private:
        yield Path(private) / "ledger.sqlite", {name: number for number, name in enumerate(names)}


def _numbers(path: Path, plan: Plan, names: Sequence[str]) -> Mapping[str, int]:
    with Ledger(path, plan.terms()) as ledger, Roster.beside(path) as roster:
        holders = {row[0] for row in ledger.rows()}
        entries = 1 + max((int(holder.rpartition("-")[2]) for holder in holders), default=-1)
        found = roster.numbers(names, ledger.identity, entries)
    return {name: found[name] for name in names}
