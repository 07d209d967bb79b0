"""A summary of a party's folder for its owner. It can be read while the party runs, and is never sent."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from securefl.accounting.figures import plain
from securefl.core.errors import DataError, SecureFLError
from securefl.core.release import PARTIES
from securefl.deployment import keys, plan_file
from securefl.deployment.roster import fingerprint
from securefl.deployment.session_store import DIARY, SessionStore
from securefl.storage.counter import Counter

_SHOWN = 10


def status(folder: Path) -> dict[str, Any]:
    """A party's state as a value for JSON.

    name, fingerprint       the party, and the fingerprint of its keys
    arm, seed               of its study
    roster                  digest of the pinned roster; empty for none
    terms                   of its ledger; for a client
    epsilon                 spent against each party, in all studies; "inf" is infinity; for a client
    releases                how many it ever committed, and how many `reserved` ones were never sent
    records                 digests of the records that it had, with a reason and time for each
    sessions                how many, and the last ten with study and time
    refusals                the last ten, with reason, time, and how often each came
    counter                 its folder, and in `wrong` why it cannot be used; empty if it can
    Raises ConfigError if the folder is not a party's, and DataError if a file is missing or damaged.
    """
    content = plan_file.read(folder)
    own = keys.read(folder, content.name).member()
    found: dict[str, Any] = {
        "name": content.name,
        "fingerprint": fingerprint(own),
        "arm": content.arm,
        "seed": content.seed,
        "roster": content.roster,
        "counter": {"folder": content.counter, "wrong": _wrong(content)},
    }
    if content.client is not None:
        found |= _spent(folder, content)
    if not (folder / DIARY).is_file():  # opening it would create a new one
        raise DataError(f"Expected the party's diary at {folder / DIARY}, got none. Put the newest one back.")
    with ExitStack() as stack:
        diary = SessionStore(folder / DIARY)
        stack.callback(diary.close)
        entered, refusals = diary.sessions(), diary.refusals()
        found |= {
            "records": [{"digest": digest, "why": e.text, "at": e.at} for digest, e in diary.records()],
            "sessions": {
                "count": len(entered),
                "last": [
                    {"session": session.hex(), "study": entry.text, "at": entry.at}
                    for session, entry in reversed(entered[-_SHOWN:])
                ],
            },
            "refusals": [{"why": e.text, "at": e.at, "times": e.times} for e in refusals[:_SHOWN]],
        }
    return found


def _wrong(content: plan_file.PlanFile) -> str:
    try:
        Counter(Path(content.counter)).place()
    except SecureFLError as error:
        return str(error)
    return ""


def _spent(folder: Path, content: plan_file.PlanFile) -> dict[str, Any]:
    # The accountant takes seconds to load, and a party without a ledger does not need it.
    from securefl.accounting.statements import statement
    from securefl.deployment.files import LEDGER

    if not (folder / LEDGER).is_file():
        raise DataError(
            f"Expected the party's ledger at {folder / LEDGER}, got none. Put the newest one back."
        )
    said = {party: statement(folder / LEDGER, party=party, holder=content.name) for party in PARTIES}
    rows = said[PARTIES[0]].releases
    terms = content.terms
    return {
        "terms": {
            "unit": terms.unit,
            "adjacency": terms.adjacency,
            "delta": terms.delta,
            "budget": plain(terms.budget),
            "against": list(terms.adversaries),
        },
        "epsilon": {party: own.releases[-1]["epsilon"] if rows else 0.0 for party, own in said.items()},
        "releases": {
            "committed": sum(row["state"] == "committed" for row in rows),
            "reserved": sum(row["state"] == "reserved" for row in rows),
        },
    }
