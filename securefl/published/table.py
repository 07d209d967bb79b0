"""Published tables: printed figures, the studies that measure them, and their differences from the papers.

`tables` finds them in installed packages (entry-point group `securefl.tables`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import inf
from typing import Any, Final

from securefl.core.errors import ConfigError, DataError
from securefl.core.installed import entry_points
from securefl.core.reading import near
from securefl.data import NAMES, require_files
from securefl.storage.texts import show, toml
from securefl.study.config import Study, parse, slug
from securefl.sweep.cells import value_at


class Measure(StrEnum):
    """A column of a table. All but accuracies and shares count until a run first reaches a target.

    The best accuracy is that of the best round, which test records choose; the last one is chosen by nothing.
    Megabytes are of both directions, all clients together. Megabits are of what clients send alone.
    Global accuracy is that of the last global model, also where clients have models of their own. Local
    accuracy is the mean over clients, each with its own held-out records and the model that it would use, at
    the end. The shares are of parameters that a client sends, and of multiplications, in the whole model's:
    the mean over clients, at the end. A system without such a figure has 1. Rounds to a stated accuracy are
    those of the global model.

    Raises ValueError for a value that is no column.

    >>> from securefl.published import Measure
    >>> Measure("rounds") is Measure.ROUNDS
    True
    """

    BEST = "best accuracy"
    LAST = "last accuracy"
    ROUNDS = "rounds"
    SECONDS = "seconds"
    MINUTES = "minutes"
    WATT_HOURS = "Wh"
    MEGABYTES = "MB"
    MEGABITS_UP = "Mb sent"
    GLOBAL = "global accuracy"
    LOCAL = "local accuracy"
    PARAMETERS = "parameters (share)"
    MACS = "MACs (share)"
    ROUNDS_45 = "rounds to 0.45"
    ROUNDS_50 = "rounds to 0.5"

    @property
    def digits(self) -> int:
        """Decimal places in print."""
        if not self.counts:
            return 3
        return 2 if self in (Measure.WATT_HOURS, Measure.MEGABYTES, Measure.MEGABITS_UP) else 1

    @property
    def counts(self) -> bool:
        """Whether it grows from round to round until a target is reached: neither accuracy nor share."""
        return not self.higher_is_better and self not in (Measure.PARAMETERS, Measure.MACS)

    @property
    def higher_is_better(self) -> bool:
        """Whether it is an accuracy."""
        return self in (Measure.BEST, Measure.LAST, Measure.GLOBAL, Measure.LOCAL)

    @property
    def target(self) -> float | None:
        """The accuracy of the global model that its name states, or None."""
        return float(self.rpartition(" to ")[2]) if " to " in self else None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A published mean over runs, and its standard deviation if the paper prints one.

    mean: None if the paper says that some runs never reached the target ("N/A").

    Raises nothing.

    >>> from securefl.published import Figure
    >>> Figure(mean=94.8, deviation=18.4).mean
    94.8
    """

    mean: float | None
    deviation: float | None = None


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A setting of a system that tuning chooses, and the values that it tries.

    key: of the system's [[arm]], dotted. values: three or more, from the lowest. below, above: the values
    that follow if the best one is the lowest, or the highest; empty at the end of its range.

    Raises ValueError for fewer values, of which the best one is always at an edge, and for another order.

    >>> from securefl.published import Axis
    >>> Axis(key="momentum", values=(0.0, 0.5, 0.9), above=(0.95, 0.99)).below
    ()
    """

    key: str
    values: tuple[float, ...]
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        whole = [*self.below, *self.values, *self.above]
        if len(self.values) < 3 or sorted({*whole}) != whole:
            raise ValueError(
                f"Expected three or more values of {self.key} in rising order, each once, got {whole}: of "
                "fewer, the best one is at an edge. Add values."
            )


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a published table.

    label: the paper's name of the system. arm: the name of the arm that runs it. figures: as printed.
    options: the paper's values of the system's options, by their names here. tunes: the option, if any, that
    tuning chooses beside the learning rate. fastest: the largest factor on the study's learning rate that
    the system takes. sends: those values that it sends
    of the study's `non_private`; by default all.

    Raises nothing.

    >>> from securefl.published import Figure, Measure, Row
    >>> Row(label="FedCor", arm="ours", figures={Measure.ROUNDS: Figure(mean=94.8)}).arm
    'ours'
    """

    label: str
    arm: str
    figures: Mapping[Measure, Figure] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tunes: Axis | None = None
    fastest: float = inf
    sends: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """A group of a table whose rows are compared with each other.

    text: the study, as TOML. ours: the arm that all others are compared with. setting: the paper's values, by
    dotted keys of the study; reports list those that differ from the study's. seeds: the paper's number of
    runs, None if the paper does not say.

    Raises ValueError if `ours` or a row names no arm of the study.

    >>> from securefl.published import Part, Row
    >>> text = '[[arm]]\\nname = "ours"\\nprotocol = "fedcor"'
    >>> Part(name="2SPC", text=text, rows=(Row(label="FedCor", arm="ours"),), ours="ours").name
    '2SPC'
    """

    name: str
    text: str
    rows: tuple[Row, ...]
    ours: str
    setting: Mapping[str, Any] = field(default_factory=dict)
    seeds: int | None = None

    def __post_init__(self) -> None:
        for name in (self.ours, *(row.arm for row in self.rows)):
            if name not in self.arms:
                raise ValueError(f"Expected an arm among {', '.join(self.arms)}, got {name!r}. Mend the row.")

    @property
    def arms(self) -> dict[str, dict[str, Any]]:
        """The study's arms as tables, by name. Their protocols may be in a package that is not installed."""
        return {arm["name"]: arm for arm in toml(self.text)["arm"]}

    @cached_property
    def study(self) -> Study:
        """The part's study. Raises ConfigError if one of its protocols is not installed."""
        return parse(self.text)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A published table.

    source: paper and table. minutes: the time to run it on two cores, rounded up. differences: sentences on
    differences that no key of a study shows. twin_of: the name of the larger table of which this is a smaller
    version; None if it is none.

    Raises ValueError for parts that would share a folder.

    >>> from securefl.published import Measure, Part, Table
    >>> part = Part(name="2SPC", text='[[arm]]\\nname = "ours"', rows=(), ours="ours")
    >>> Table(title="FedCor", source="Tang 2022, Table 1", parts=(part,), measures=(Measure.ROUNDS,),
    ...       minutes=90).minutes
    90
    """

    title: str
    source: str
    parts: tuple[Part, ...]
    measures: tuple[Measure, ...]
    minutes: int
    differences: tuple[str, ...] = ()
    twin_of: str | None = None

    def __post_init__(self) -> None:
        folders = [slug(part.name) for part in self.parts]
        if not folders or len(set(folders)) < len(folders):
            raise ValueError(
                "Expected one or more parts whose names give different folders, got "
                f"{[part.name for part in self.parts]}. Rename one."
            )

    @property
    def version(self) -> str:
        """Twelve hex digits of SHA-256 over the studies. Figures of two versions are not comparable."""
        whole = hashlib.sha256()
        for part in self.parts:
            whole.update(f"{part.name}\0{part.text}\0".encode())
        return whole.hexdigest()[:12]

    @property
    def data(self) -> tuple[str, ...]:
        """The packaged data sets that the table reads, by name."""
        studies = [part.study for part in self.parts]
        found = [name for one in studies for name in (one.data.source, one.corruption.irrelevant_source)]
        return tuple(name for name in dict.fromkeys(found) if name in NAMES)

    @property
    def lacking(self) -> list[str]:
        """The protocols that the table names, but that no installed package has."""
        known = {point.name for point in entry_points(group="securefl.protocols")}
        return sorted({arm["protocol"] for part in self.parts for arm in part.arms.values()} - known)


# Installed tables --------------------------------------------------------------------------------------


def tables() -> Mapping[str, Table]:
    """All tables whose protocols are installed, by name."""
    return {name: table for name, table in sorted(_known().items()) if not table.lacking}


def table_named(name: str) -> Table:
    """The table of that name.

    Raises ConfigError if the name is unknown (the error has the nearest one), or its protocols are missing.
    """
    known = _known()
    if name not in known:
        listed = ", ".join(tables()) or "none"
        raise ConfigError(f"Expected one of the tables {listed}, got {name!r}{near(name, known)}.")
    if lacking := known[name].lacking:
        raise ConfigError(
            f"Expected the protocols of table {name} to be installed, got none called {', '.join(lacking)}. "
            "Install the package that brings them."
        )
    return known[name]


def _known() -> dict[str, Table]:
    return {point.name: point.load() for point in entry_points(group="securefl.tables")}


def missing(names: Sequence[str]) -> dict[str, str]:
    """The data sets that cannot be read here, each with a reason: the missing file, and how to fetch it."""
    found = {}
    for name in names:
        try:
            require_files(name)
        except DataError as error:
            found[name] = str(error)
    return found


# Differences from the paper -------------------------------------------------------------------------------


def differences(table: Table) -> tuple[str, ...]:
    """How a table's studies differ from its paper: as found in the studies, and as noted in the table.

    A sentence for each difference of data, scale or method. Parts with the same difference share one.
    """
    found: dict[str, list[str]] = {}
    for part in table.parts:
        for sentence in _of_part(part):
            found.setdefault(sentence, []).append(part.name)
    everywhere = [part.name for part in table.parts]
    derived = [said if own == everywhere else f"{', '.join(own)}: {said}" for said, own in found.items()]
    return (*derived, *table.differences)


_SAME_TASK: Final = {
    "model.kind": "{}",
    "model.width": "width {}",
    "data.source": "{}",
    "data.clients": "{} clients",
    "data.records": "{} records",
    "local.epochs": "{} epochs",
    "local.steps": "{} steps",
    "study.rounds": "{} rounds",
    "study.target": "to {}",
}
"""What must be the same if two figures are of one task, and its words in a heading."""


def tasks(table: Table) -> tuple[str, str] | None:
    """The published task and the one that was run, in words such as "lenet5, to 0.9", or None if it is one.

    Each has what differs. Where parts differ in it, each value has the part's first word behind it.
    """
    found: tuple[dict[str, dict[str, str]], ...] = ({}, {})
    for part in table.parts:
        for key in _SAME_TASK.keys() & part.setting.keys():
            both = show(part.setting[key]), show(value_at(part.study, key, part.study.arms[0]))
            if both[0] != both[1]:
                for own, value in zip(found, both, strict=True):
                    own.setdefault(key, {}).setdefault(value, part.name.split()[0])
    if not found[0]:
        return None
    published, here = (
        ", ".join(_of_task(words, own[key]) for key, words in _SAME_TASK.items() if key in own)
        for own in found
    )
    return published, here


def _of_task(words: str, values: Mapping[str, str]) -> str:
    """values: each with the first word of the first part that has it."""
    apart = len(values) > 1
    return ", ".join(
        # One of many is singular.
        re.sub(r"^(1 \w+)s$", r"\1", words.format(value)) + (f" ({part})" if apart else "")
        for value, part in values.items()
    )


def _of_part(part: Part) -> Iterator[str]:
    study = part.study
    arms = {arm.name: arm for arm in study.arms}

    def told(label: str, key: str, published: object, here: object) -> Iterator[str]:
        if show(here) != show(published):
            yield f"{label}{key} = {show(here)}; published is {show(published)}."

    for key, published in part.setting.items():
        yield from told("", key, published, value_at(study, key, study.arms[0]))
    seeds = len(study.study.seeds)
    if part.seeds is None:
        yield f"Seeds: {seeds}; the paper does not say how many it ran."
    elif seeds != part.seeds:
        yield f"Seeds: {seeds}; published are {part.seeds}."
    for row in part.rows:
        for key, published in row.options.items():
            yield from told(f"{row.label}: ", key, published, value_at(study, f"arm.{key}", arms[row.arm]))
