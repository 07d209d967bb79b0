"""A party's plan file, `party.toml`: what its owner agreed to. A party joins no session that differs from it.

version                     of the format
name = "client-0000"        the party
arm, seed                   of the study beside it, `study.toml`
roster                      digest of the pinned roster; empty before one is pinned
counter                     the folder of the ledger's counter, outside this folder
records                     a file of own records (.npz with x and y); empty for those of the study
sessions                    how many sessions without noise the owner agreed to, over all studies
[files]                     digests of the initial weights and of the study's own code, by name
[terms]                     `unit`, `adjacency`, `delta`, `budget`, `adversaries` of the party's one ledger
[plan]                      all parameters of the session's privacy guarantee, from the study
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final, Literal

import tomli_w

from securefl.accounting.store import Terms
from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError
from securefl.core.formats import VERSION, require_version
from securefl.core.reading import convert
from securefl.core.release import KEY_HOLDER, SERVER, Adjacency, Unit
from securefl.storage.files import write as write_file
from securefl.storage.texts import kept, read_text, toml

NAME = "party.toml"
_ANEW: Final = (
    "make the party a new folder with securefl party init, and count what its old ledger spent as spent"
)
USUAL_SESSIONS = 1
"""The number of sessions without noise to which an owner agrees who says nothing (see `session_cap`)."""

_MOST_SESSIONS = 10**9


def require_sessions(number: object) -> None:
    """Raise ConfigError unless this is a number of sessions without noise that an owner can agree to."""
    if type(number) is not int or not 1 <= number <= _MOST_SESSIONS:
        raise ConfigError(
            f"Expected sessions as a whole number of at least 1 and at most {_MOST_SESSIONS:,}, the sessions "
            f"without noise that a party may enter over all studies, got {number!r}. To contribute to no sum "
            "without noise, agree to a study with noise only: one whose [privacy] has a `noise`, and nothing "
            "in `non_private`."
        )


@dataclass(frozen=True, kw_only=True)
class HolderTerms:
    """The terms of a data holder's epsilon, in all studies. budget: `inf` for none."""

    unit: Unit
    adjacency: Adjacency
    delta: float
    budget: float
    adversaries: tuple[Literal["server", "key-holder", "others"], ...]

    @classmethod
    def of(cls, plan: Plan) -> HolderTerms:
        """The terms of a plan."""
        return cls(
            unit=plan.unit,
            adjacency=plan.adjacency,
            delta=plan.delta,
            budget=inf if plan.budget is None else plan.budget,
            adversaries=plan.adversaries,  # type: ignore[arg-type]
        )

    def words(self) -> dict[str, Any]:
        """Every field by its key in the plan file."""
        return dict(vars(self))

    def ledger(self) -> Terms:
        """The terms of the holder's one ledger. They limit no number of rounds: all studies share it."""
        return Terms(
            unit=self.unit,
            adjacency=self.adjacency,
            delta=self.delta,
            budget=None if self.budget == inf else self.budget,
            adversaries=self.adversaries,
        )

    def differing(self, stated: Mapping[str, Any]) -> list[str]:
        """Each of the stated terms that differs here, in words."""
        own = self.words()
        return [
            f"{name} = {own[name]} in place of {value}"
            for name, value in stated.items()
            if own[name] != value
        ]

    def require(self, plan: Plan, whose: str) -> None:
        """Raises ConfigError if the plan's terms differ. The error lists each field that does."""
        if other := HolderTerms.of(plan).differing(self.words()):
            raise ConfigError(
                f"Expected a study in the terms of {whose}, got {'; '.join(other)}. Epsilons in other terms "
                "cannot be added to those of the ledger: ask for a study in these terms."
            )


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """The contents of a plan file (see the module)."""

    name: str
    arm: str
    seed: int
    counter: str
    terms: HolderTerms
    plan: Plan
    clients: int
    roster: str = ""
    records: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    sessions: int = USUAL_SESSIONS

    def __post_init__(self) -> None:
        if self.name not in (SERVER, KEY_HOLDER) and not re.fullmatch(r"client-[0-9]{4,9}", self.name):
            raise ValueError(
                f"Expected name = {SERVER!r}, {KEY_HOLDER!r} or a client's, such as 'client-0000', got "
                f"{self.name!r}."
            )
        require_sessions(self.sessions)
        # Imported here, so that commands on keys and rosters do not wait for the accountant.
        from securefl.mechanisms.registry import require_mechanism

        require_mechanism(self.plan)
        for what, digest in {"a roster": self.roster, **self.files}.items():
            if digest and not re.fullmatch(r"[0-9a-f]{64}", digest):
                raise ValueError(f"Expected a digest of {what}, 64 hexadecimal digits, got {digest[:80]!r}.")

    def words(self) -> dict[str, Any]:
        """Every field by its key in the file."""
        own = {"terms": self.terms.words(), "plan": self.plan.words()}
        return {"version": VERSION, **vars(self), **own}

    @property
    def client(self) -> int | None:
        """The client's number; None for the server and the key holder."""
        return None if self.name in (SERVER, KEY_HOLDER) else int(self.name.removeprefix("client-"))


def read(folder: Path) -> PlanFile:
    """The plan file of a party's folder.

    Raises ConfigError if it is missing, unreadable or damaged.
    """
    path = folder / NAME
    if not path.is_file():
        raise ConfigError(
            f"Expected a party's folder, got {folder}, which has no {NAME}. Make one: securefl party init."
        )
    if not os.access(path, os.R_OK):
        raise ConfigError(
            f"Expected to run as user {path.stat().st_uid}, the owner of the party in {folder}, got user "
            f"{os.getuid()}, which may not read {NAME}. Run the command as the owner."
        )
    table = toml(read_text(path))
    require_version(table.pop("version", None), f"a party's plan file {path}", _ANEW)
    with kept(path):
        return convert(PlanFile, table, "party")


def write(folder: Path, content: PlanFile) -> None:
    """Write the plan file atomically, readable by its owner alone."""
    write_file(folder / NAME, tomli_w.dumps(_without_none(content.words())), secret=True)


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table without its None entries, which TOML cannot hold. They are a plan's defaults."""
    return {
        name: _without_none(value) if isinstance(value, Mapping) else value
        for name, value in table.items()
        if value is not None
    }
