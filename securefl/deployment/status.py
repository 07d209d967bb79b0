"""A summary of a party's folder for its owner. It can be read while the party runs, and is never sent."""

from __future__ import annotations

from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

from securefl.accounting.figures import plain
from securefl.accounting.store import Terms
from securefl.core.errors import SecureFLError
from securefl.core.release import KEY_HOLDER, PARTIES
from securefl.deployment import keys, plan_file
from securefl.deployment.pinning import newest_keys
from securefl.deployment.roster import fingerprint
from securefl.deployment.session_cap import advice, by_command, by_keyword
from securefl.deployment.session_store import (
    ACTS,
    BLANK,
    CUT,
    LEDGER,
    NO_VALUE,
    SessionStore,
    require_file,
    there,
)
from securefl.storage.counter import Counter

_SHOWN = 10


def status(folder: Path) -> dict[str, Any]:
    """A party's state as a value for JSON.

    name                    the party
    fingerprint             of its keys
    arm, seed               of its study
    roster                  digest of the pinned roster; empty for none
    terms                   of its ledger; for a client
    epsilon                 spent against each party, in all studies; "inf" is infinity; for a client
    releases                how many it ever committed, and how many `reserved` ones were never sent
    records                 digests of the records that it had, with a reason and time for each
    sessions                how many, and the last ten with study and time; `bare`, for a client: how many
                            sessions without noise were `used`, how many are `allowed`, and what to do `next`
    missing                 the last ten reasons why a value of it is missing: `what` says if it "sent no
                            value" or "answered as without records"; `why` has the remedy; `at`; `times`
    cut                     the last ten reasons why a value of it was cut to a bound before it was sent
    refusals                the last ten, with reason, time, and how often each came
    counter                 its folder, and in `wrong` why it or the folder cannot be used; empty if they can

    A party of an app of one's own (`UpdateParty`) has keys, roster and counter elsewhere. Its state has name,
    terms, epsilon, releases, sessions, missing, cut and refusals.

    Raises ConfigError if the folder is not a party's, and DataError if a file is missing or damaged.
    """
    if (found := there(folder)) and not (folder / plan_file.NAME).exists():
        return _of_app(found[0])
    content = plan_file.read(folder)
    own = keys.read(folder, content.name).member()
    said: dict[str, Any] = {
        "name": content.name,
        "fingerprint": fingerprint(own),
        "arm": content.arm,
        "seed": content.seed,
        "roster": content.roster,
        "counter": {"folder": content.counter, "wrong": _wrong(folder, content)},
    }
    allowed, path = 0, folder / ACTS
    if content.client is not None:
        allowed, path = content.sessions, folder / LEDGER
    noted = _noted(path, allowed, by_command(folder, allowed))
    if content.client is not None:
        said |= _spent(path, content.name, content.terms.ledger())
    del noted["party"]  # the plan file says it
    return said | noted


def _of_app(path: Path) -> dict[str, Any]:
    """The state of a party of somebody's own app, which has no plan file."""
    from securefl.accounting.statements import terms_of

    noted = _noted(path)
    said: dict[str, Any] = {"name": noted.pop("party") or path.resolve().parent.name}
    if path.name == LEDGER:
        said |= _spent(path, said["name"], terms_of(path))
    return said | {name: noted[name] for name in ("sessions", "missing", "cut", "refusals")}


def _noted(path: Path, allowed: int | None = None, how: str = "") -> dict[str, Any]:
    """What the diary has. allowed: sessions without noise, 0 for no client; None for the diary's own note."""
    with closing(SessionStore(require_file(path))) as diary:
        if allowed is None:
            allowed = 0 if diary.bound_to("party") == KEY_HOLDER else diary.allowed()
            how = by_keyword(allowed)
        used = len(diary.bare())
        bare = {"used": used, "allowed": allowed, "next": advice(allowed, how) if used >= allowed else ""}
        entered = diary.sessions()
        notes: dict[str, list[dict[str, Any]]] = {"missing": [], "cut": [], "refusals": []}
        for one in diary.refusals():
            what, _, why = one.text.partition(": ")
            kind = {NO_VALUE: "missing", BLANK: "missing", CUT: "cut"}.get(what, "refusals")
            said = {"why": one.text} if kind == "refusals" else {"what": what, "why": why}
            notes[kind].append({**said, "at": one.at, "times": one.times})
        return {
            "party": diary.bound_to("party"),
            "records": [{"digest": digest, "why": e.text, "at": e.at} for digest, e in diary.records()],
            "sessions": {
                "count": len(entered),
                "last": [
                    {"session": session.hex(), "study": entry.text, "at": entry.at}
                    for session, entry in reversed(entered[-_SHOWN:])
                ],
                **({"bare": bare} if allowed else {}),
            },
            **{kind: rows[:_SHOWN] for kind, rows in notes.items()},
        }


def _wrong(folder: Path, content: plan_file.PlanFile) -> str:
    try:
        Counter(Path(content.counter)).place()
        newest_keys(folder, content)
    except SecureFLError as error:
        return str(error)
    return ""


def _spent(path: Path, name: str, terms: Terms) -> dict[str, Any]:
    # The accountant takes seconds to load, and a party without a ledger does not need it.
    from securefl.accounting.curve import against
    from securefl.accounting.statements import states_of

    counts = states_of(path, name)
    return {
        "terms": {
            **{name: getattr(terms, name) for name in ("unit", "adjacency", "delta")},
            "budget": plain(inf if terms.budget is None else terms.budget),
            "adversaries": list(terms.adversaries),
        },
        "epsilon": {party: plain(round(against(party, counts).epsilon(terms.delta), 6)) for party in PARTIES},
        "releases": {
            state: sum(number for (own, _), number in counts.items() if own == state)
            for state in ("committed", "reserved")
        },
    }
