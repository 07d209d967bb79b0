"""Where a run stands after a round, and whether what lies beside the checkpoint is as new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from securefl.accounting.composition import falls_short
from securefl.accounting.ledger import Head, Ledger
from securefl.core.errors import DataError
from securefl.core.release import PARTIES
from securefl.engines.account import Asked
from securefl.plan import Plan
from securefl.storage.journal import Journal

Figures = Mapping[str, tuple[tuple[int, ...], tuple[float, ...]]]
"""By name, the clients whose figure changed in a round, and the figures."""


@dataclass(frozen=True)
class Stands:
    """The figures of a round's record with which a run goes on.

    culprits, retired, figures: what this round added to those of the rounds before.
    """

    number: int
    head: Head
    epsilon: Mapping[str, float]
    culprits: frozenset[int]
    retired: frozenset[int]
    spare: int
    charged: tuple[Asked, ...]
    figures: Figures
    ended: bool


def stands_of(record: Mapping[str, Any], clients: int) -> Stands:
    """Read a round's record. Raises any error for a record that cannot be one."""
    named = {n: tuple(map(int, record[n])) for n in ("culprits", "retired", "selected", "answered")}
    figures = {str(n): (tuple(map(int, k)), tuple(map(float, v))) for n, (k, v) in record["figures"].items()}
    if any(len(k) != len(values) for k, values in figures.values()):
        raise ValueError("a record has figures of nobody")
    for own in (*named.values(), *(k for k, _ in figures.values())):
        if own and not 0 <= min(own) <= max(own) < clients:
            raise ValueError("a record names clients that there are not")
    if set(record["epsilon"]) != set(PARTIES):
        raise ValueError("a record names parties that there are not")
    # Not kept. Tables are made of these at the end, and must not fail then.
    for name in ("bytes_up", "bytes_down", "seconds", "watt_hours", "wall_seconds"):
        float(record[name])
    for name in ("blamed", "abstained"):
        if not all(isinstance(why, str) for why in record[name].values()):
            raise ValueError("a record has a reason that is no text")
    if (record["accuracy"], record["loss"]) != (None, None):  # of a round that was not evaluated
        float(record["accuracy"]), float(record["loss"])
    return Stands(
        number=int(record["round"]),
        head=Head(int(record["ledger"]["count"]), bytes.fromhex(record["ledger"]["head"])),
        epsilon={party: float(spent) for party, spent in record["epsilon"].items()},
        culprits=frozenset(named["culprits"]),
        retired=frozenset(named["retired"]),
        spare=int(record["spare"]),
        charged=tuple((str(n), bool(i), tuple(map(int, own))) for n, i, own in record["charged"]),
        figures=figures,
        ended=bool(record["ended"]),
    )


def require_all(ledger: Ledger, stands: Stands) -> None:
    """Raises DataError if the ledger holds less than it did when this round ended."""
    # Its chain shows a loss. Its epsilons show one even if somebody made the chain anew.
    ledger.require(stands.head)
    for party, spent in stands.epsilon.items():
        found = ledger.worst(party)
        if falls_short(found, spent):
            raise DataError(
                f"The ledger says epsilon {found:.4g} against the {party}, and round {stands.number} ended "
                f"with {spent:.4g}: releases are missing. Restore the run folder from one backup, or begin a "
                "new run in another folder."
            )


def require_new(plan: Plan, session: bytes, ledger: Ledger, journal: Journal, finished: int) -> None:
    """Raises DataError if journal or checkpoint are older than the files beside them, or begun anew."""
    if {*journal.sessions(), *ledger.sessions()} - {session}:
        raise DataError(
            "The checkpoint of this run is lost: the ledger or the journal beside it has another "
            "session, whose rounds would be played and charged a second time. Restore it, or begin a new "
            "run elsewhere."
        )
    known, charged = journal.newest(session), ledger.newest(session)
    if (plan.hidden or plan.noisy) and known < charged:
        raise DataError(
            "The journal beside this run's ledger is an older copy: it does not know the round that the "
            "ledger has releases of, and another sum of it could be opened. Restore it, or begin a new "
            "run elsewhere."
        )
    if max(known, charged) > finished + 1:
        raise DataError(
            f"The checkpoint of this run is an older copy: it ends with round {finished}, and clients "
            f"have been in round {max(known, charged)}. Restore it, or begin a new run elsewhere."
        )
