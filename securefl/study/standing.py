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


@dataclass(frozen=True)
class Stands:
    """The figures of a round's record with which a run goes on."""

    number: int
    head: Head
    epsilon: Mapping[str, float]
    culprits: frozenset[int]
    retired: frozenset[int]
    spare: int
    charged: tuple[Asked, ...]
    ended: bool


def stands_of(record: Mapping[str, Any], clients: int) -> Stands:
    """Read a round's record. Raises any error for a record that cannot be one."""
    culprits, retired = (frozenset(map(int, record[name])) for name in ("culprits", "retired"))
    if not culprits | retired <= set(range(clients)) or set(record["epsilon"]) != set(PARTIES):
        raise ValueError("a record names clients or parties that there are not")
    for name in ("accuracy", "loss", "bytes_up", "bytes_down", "seconds", "watt_hours", "wall_seconds"):
        # Not kept. Tables are made of these at the end, and must not fail then.
        float(record[name])
    if not len(record["selected"]) == len(record["answered"]) == clients:
        raise ValueError("a record is not of all clients")
    return Stands(
        number=int(record["round"]),
        head=Head(int(record["ledger"]["count"]), bytes.fromhex(record["ledger"]["head"])),
        epsilon={party: float(spent) for party, spent in record["epsilon"].items()},
        culprits=culprits,
        retired=retired,
        spare=int(record["spare"]),
        charged=tuple((str(n), bool(i), tuple(map(int, own))) for n, i, own in record["charged"]),
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
    if (plan.hidden or plan.noise != "none") and known < charged:
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
