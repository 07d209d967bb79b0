"""Why parts of clients are missing: the reasons noted at this machine, which never travelled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pandas as pd

from securefl.core.release import KEY_HOLDER, SERVER
from securefl.messages import client_name
from securefl.study.run import ArmRun

COLUMNS = ("arm", "who", "what", "reason", "clients", "rounds", "times", "told")
_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
_UNKNOWN = "no reason is on record: it was lost on the way, or is part of a sum that came to nothing"
_Key = tuple[str, str, str, str]


@dataclass
class _Count:
    """One reason. shown: its first wording; others may differ in numbers."""

    shown: str
    parties: set[tuple[int, str]] = field(default_factory=set)
    rounds: set[tuple[int, int]] = field(default_factory=set)
    times: int = 0
    told: str = ""


def abstentions(runs: Sequence[ArmRun]) -> pd.DataFrame:
    """Arm, who, what, reason, clients, rounds, times, told: a row for each reason of each arm, over seeds.

    who: "clients", "server" or "key-holder". what: "abstained" (it said why, here alone), "refused" (others
    could not use what it sent), "silent" (selected, without an answer or a reason) or "blank" (it answered as
    a client without records, since its silence would have told why). reason: as it was first
    noted; reasons that differ in numbers alone are one. clients, rounds: how many, each seed's apart. times:
    in how many rounds of how many clients. told: what a client's silence follows from, by the classes of
    `core.abstaining`; empty for others, and for records of earlier versions.
    """
    counts: dict[_Key, _Count] = {}
    for run in runs:
        for number, party, what, reason, told in _noted(run):
            who = party if party in (SERVER, KEY_HOLDER) else "clients"
            key = (run.arm.name, who, what, _NUMBER.sub("#", reason))
            count = counts.setdefault(key, _Count(reason, told=told))
            count.parties.add((run.world.seed, party))
            count.rounds.add((run.world.seed, number))
            count.times += 1
    ranked = sorted(counts.items(), key=lambda item: -item[1].times)
    names = list(dict.fromkeys(run.arm.name for run in runs))
    rows = [
        (
            *(arm, who, what, own.shown, len(own.parties) if who == "clients" else 0),
            *(len(own.rounds), own.times, own.told),
        )
        for name in names
        for (arm, who, what, _), own in ranked
        if arm == name
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _noted(run: ArmRun) -> Iterator[tuple[int, str, str, str, str]]:
    """Round, party, what, reason and its class of every part that is missing, blank, or was refused."""
    for record in run.records:
        number, abstained, blamed = record["round"], record["abstained"], record["blamed"]
        classes = record.get("reasons", {})  # earlier versions noted none, and nothing blank
        for party, reason in abstained.items():
            yield number, party, "abstained", reason, classes.get(party, "")
        for what, noted in (("refused", blamed), ("blank", record.get("blank", {}))):
            for party, reason in noted.items():
                yield number, party, what, reason, ""
        for client in sorted(set(record["selected"]) - set(record["answered"])):
            if (name := client_name(client)) not in abstained and name not in blamed:
                yield number, name, "silent", _UNKNOWN, ""
