"""Reads a sweep from TOML: one study, and the overrides that make its cells. Every cell is a whole study.

    [sweep.grid]                                  # the product of all lists
    "privacy.epsilon" = [0.5, 1.0, 2.0, inf]
    [[sweep.list]]                                # the grid is taken for each of these
    "privacy.noise" = "central"
    [[sweep.list]]
    "privacy.noise" = "local"

A key is a dotted path into the study's table, in quotes. `arm.<option>` is that option of every arm.
With `choice = { trials = "poisson", mean = 10 }` under [sweep], the best cell is chosen privately (`choice`).
With `panels = ["data.records"]` under [sweep], each value of that key has its own panel in the figures.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from itertools import product
from math import inf, prod
from pathlib import Path
from typing import Any, Final

import tomli_w

from securefl.algorithm.plan import NO_NOISE
from securefl.core.errors import ConfigError
from securefl.core.reading import convert
from securefl.dp.choice import Trials
from securefl.mechanisms.registry import OURS
from securefl.storage.files import folder_at, write
from securefl.storage.own_code import CALLER, Namer
from securefl.storage.private_folder import PRIVATE, SWEEP, note_format, private_folder, require_format
from securefl.storage.texts import read_text, show, toml
from securefl.study.config import (
    Arm,
    ArmSection,
    Brought,
    Study,
    note_brought,
    note_home,
    parse,
    place_of,
    slug,
)
from securefl.training.reached_code import code_digest

CONFIG = "sweep.toml"
_CELLS: Final = "cells"
_CODE: Final = "code.txt"
"""The file in a sweep's private folder with the digest of the code that its caller handed over in Python."""
_LONGEST = 100
"""The longest name of a cell's folder, in characters. File systems allow 255 bytes."""
EPSILON: Final = "privacy.epsilon"
MOST_CELLS: Final = 2000
_SHOWN: Final = 10
"""The most mistakes that one message lists."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """The section [sweep].

    grid: lists of values by key. Their product gives the cells. list: overrides; each entry has the whole
    grid. panels: swept keys whose values have panels of their own.
    choice: the number of trials that a private selection draws; None if all cells are run and published.
    """

    grid: dict[str, Any] = field(default_factory=dict)
    list: tuple[dict[str, Any], ...] = ({},)
    panels: tuple[str, ...] = ()
    choice: Trials | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The swept keys, in the order of the file."""
        return tuple(dict.fromkeys([*(key for entry in self.list for key in entry), *self.grid]))

    def points(self) -> Sequence[dict[str, Any]]:
        """The overrides of every cell. Raises ConfigError for more than MOST_CELLS."""
        count = len(self.list) * prod(len(values) for values in self.grid.values())
        if count > MOST_CELLS:
            raise ConfigError(f"Expected at most {MOST_CELLS:,} cells, got {count:,}; sweep over less.")
        return [
            {**entry, **dict(zip(self.grid, values, strict=True))}
            for entry, values in product(self.list, product(*self.grid.values()))
        ]


def section_of(section: Any) -> Section:
    """The section as TOML has it, by default with one empty entry. Raises ConfigError for an invalid one."""
    found = convert(Section, section, "sweep")
    if not {"grid", "list"} & {*section} or not found.list:
        raise ConfigError(
            "Expected a table [sweep.grid] or tables [[sweep.list]], got neither. Add [sweep.grid], with a "
            "list of values for each key that is varied."
        )
    for key, values in found.grid.items():
        _dotted(key, values, "[sweep.grid]")
        if not isinstance(values, list) or not values:
            raise ConfigError(f"[sweep.grid] Expected a list of values of `{key}`, got {values!r}.")
    for key, value in (pair for entry in found.list for pair in entry.items()):
        _dotted(key, value, "[[sweep.list]]")
        if key in found.grid:
            raise ConfigError(
                f"Expected `{key}` in [sweep.grid] or in [[sweep.list]], got it in both. Keep one of them."
            )
    able = [key for key in found.keys if key != EPSILON and not key.startswith("arm.")]
    if not {*found.panels} <= {*able} or len({*found.panels}) < len(found.panels):
        raise ConfigError(
            f"[sweep] Expected each key once in panels, of those swept ({', '.join(able) or 'none here'}), "
            f"got {[*found.panels]}. The epsilon is the axis of each panel, and arms are its lines."
        )
    return found


def _dotted(key: str, value: Any, where: str) -> None:
    if "." in key:
        return
    # Without quotes TOML reads a path as nested tables, so the key ends at its first dot.
    inner = next(iter(value), "epsilon") if isinstance(value, dict) else "epsilon"
    section = key if isinstance(value, dict) else "privacy"
    raise ConfigError(
        f'{where} Expected a path in quotes, such as "{section}.{inner}" = ..., got the key `{key}`.'
    )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a sweep: a study, and the overrides that make it.

    name: the overrides in which cells differ. folder: the same as the name of a folder below `cells/`.
    """

    overrides: Mapping[str, Any]
    name: str
    folder: str
    study: Study


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep with all its cells.

    keys: the swept keys, in the order of the file. panels: those keys whose values have panels of their own.
    text: the TOML that it was read from. file: its file's name in errors; empty for a text without a file.
    choice: the trials of a private selection, None to run all cells.
    """

    name: str
    keys: tuple[str, ...]
    cells: tuple[Cell, ...]
    text: str
    file: str = ""
    panels: tuple[str, ...] = ()
    choice: Trials | None = None

    def home(self, out: Path, cell: Cell) -> Path:
        return out / _CELLS / cell.folder


def has_sweep(text: str) -> bool:
    """Whether a text has the section [sweep]. False if it is not TOML."""
    try:
        return "sweep" in toml(text)
    except ConfigError:
        return False


def parse_sweep(
    text: str, *, home: Path | None = None, brought: Brought | None = None, namer: Namer = CALLER
) -> Sweep:
    """A sweep from a TOML text, each cell parsed as a study. home, brought, namer: see `Study`.

    Raises ConfigError if cells are no valid studies (a line for each mistake names its cells), if two cells
    are equal, or if the section [sweep] is invalid.
    """
    table = toml(text)
    if "sweep" not in table:
        raise ConfigError("Expected a study with a section [sweep], got none; run it with: securefl run")
    section = section_of(table.pop("sweep"))
    keys, points = section.keys, section.points()
    names = _names(points, keys)
    cells, refused = dict[str, Cell](), list[str]()
    for overrides, name in zip(points, names, strict=True):
        folder = _free(name, {cell.folder for cell in cells.values()})
        try:
            if _as_text(overrides) in cells:
                raise ConfigError(f"Expected each cell once, got {name} twice. Leave one out.")
            study = _study(table, overrides, home=home, brought=brought, namer=namer)
            cells[_as_text(overrides)] = Cell(overrides=overrides, name=name, folder=folder, study=study)
            refused.append("")
        except ConfigError as error:
            refused.append(str(error))
    require_none(list(zip(names, points, strict=True)), refused)
    return Sweep(
        name=next(iter(cells.values())).study.study.name,
        keys=keys,
        panels=section.panels,
        choice=section.choice,
        cells=tuple(cells.values()),
        text=text,
    )


def require_own(out: Path, sweep: Sweep) -> None:
    """Raises ConfigError if a folder is another sweep's. It writes nothing."""
    config = out / CONFIG
    if (out / _CELLS).exists():
        require_format(out, SWEEP)
    # Compared as text, not by meaning: the folder's file must be the one from which its cells were made.
    if config.exists() and read_text(config) != sweep.text:
        raise ConfigError(
            f"Expected a free folder or this sweep's own, but {out} holds a sweep of another configuration; "
            "choose another folder with --out (for more seeds too: `securefl table` joins the folders), or "
            f"resume that one with: securefl sweep {config} --out {out}"
        )
    if (noted := out / PRIVATE / _CODE).exists() and read_text(noted) != _code(sweep):
        raise ConfigError(
            f"Expected the model and protocol from Python with which the sweep in {out} began, got others: "
            "its finished cells, which are not run again, would be of other code. Call securefl.run_sweep "
            "with those, or choose another `out`."
        )


def claim(out: Path, sweep: Sweep) -> None:
    """Claim a folder for this sweep. Raises ConfigError if the folder is another sweep's."""
    require_own(out, sweep)
    note_format(folder_at(out), SWEEP)
    note_home(out, sweep.cells[0].study.home)
    note_brought(out, sweep.cells[0].study.brought)
    if not (out / CONFIG).exists():
        if code := _code(sweep):
            write(private_folder(out) / _CODE, code)
        write(out / CONFIG, sweep.text)


def _code(sweep: Sweep) -> str:
    """The line of `_CODE`; empty without code from Python."""
    brought = sweep.cells[0].study.brought
    code = [own for own in (brought.model, brought.protocol) if own is not None]
    return f"{code_digest(*code)}\n" if code else ""


def in_force(cell: Cell, key: str, arm: Arm) -> Any:
    """A cell's value at a key for an arm, defaults included, or None if its study has no such key."""
    return cell.overrides[key] if key in cell.overrides else value_at(cell.study, key, arm)


def value_at(study: Study, key: str, arm: Arm) -> Any:
    """A study's value at a dotted key for an arm, defaults included, or None if it has no such key."""
    at, _ = _option(study, key, arm)
    return asdict(at) if is_dataclass(at) and not isinstance(at, type) else at


def _option(study: Study, key: str, arm: Arm) -> tuple[Any, Callable[[Any], str | None] | None]:
    """A study's value at a dotted key for an arm, and the function of its option's words, or None."""
    section, *path = key.split(".")
    at: Any = getattr(study, section, None)
    if section == "arm":
        at = arm if path[0] in ArmSection.__dataclass_fields__ else arm.options
    words = None
    for part in path:
        option = getattr(type(at), "__dataclass_fields__", {}).get(part)
        words = option and option.metadata.get("words")
        at = getattr(at, part, None)
    return at, words


def setting_in_words(cell: Cell, key: str, arm: Arm, short: str) -> str:
    """A legend's text for a cell's value at a key for an arm: the option's words, or `short` and the value.

    An option has words if its field's metadata has `words`, a function of its value, or if its value has a
    method `in_words`.
    """
    at, words = _option(cell.study, key, arm)
    if hasattr(at, "in_words"):
        return str(at.in_words())
    return (words and words(at)) or f"{short.replace('_', ' ')} = {show(in_force(cell, key, arm))}"


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """The last part of each dotted key, or the whole key if another one has the same last part."""
    last = {key: key.rpartition(".")[2] for key in keys}
    ends = list(last.values())
    return {key: name if ends.count(name) == 1 else key for key, name in last.items()}


def _names(points: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """The name of each cell: its values at the keys in which cells differ."""
    told = [
        key for key in keys if len({_as_text([point[key]] if key in point else []) for point in points}) > 1
    ]
    short = short_names(keys)
    return [
        ", ".join(f"{short[key]} = {show(point[key])}" for key in told or keys if key in point)
        or "as it stands"
        for point in points
    ]


def _study(table: Mapping[str, Any], overrides: Mapping[str, Any], **read_with: Any) -> Study:
    # A deep copy: otherwise cells would share the tables and lists that they do not override.
    own = copy.deepcopy(dict(table))
    for key, value in overrides.items():
        put(own, key, copy.deepcopy(value))
    # Through TOML again, so that a cell is read and checked like any other study.
    study = parse(tomli_w.dumps(_without_noise(own)), **read_with)
    _require_own_axes(study, overrides)
    study.privacy.plan(study.study.rounds)  # raises the error about an epsilon that no noise reaches
    return study


def _require_own_axes(study: Study, overrides: Mapping[str, Any]) -> None:
    """Raises ConfigError for a swept key of [local] that an arm has otherwise: its label would be wrong."""
    for name in (key.removeprefix("local.") for key in overrides if key.startswith("local.")):
        for arm in study.arms:
            if arm.local is not None and getattr(arm.local, name) != getattr(study.local, name):
                raise ConfigError(
                    f"{place_of(arm)} Expected no `{name}` in its own `local`, since the sweep sets that of "
                    f"[local], got {getattr(arm.local, name)}. Leave it out of the arm, or sweep other keys."
                )


def require_none(cells: Sequence[tuple[str, Mapping[str, Any]]], refused: Sequence[str]) -> None:
    """Raises ConfigError with each reason why cells cannot run, once, and the cells that it stops.

    cells: the name and overrides of each. refused: the reasons of each, in lines; empty if it can run.
    """
    stopped: dict[str, list[int]] = {}
    for at, reasons in enumerate(refused):
        for reason in filter(None, reasons.split("\n")):
            stopped.setdefault(reason, []).append(at)
    told = [f"In {_those(cells, at)}: {reason}" for reason, at in stopped.items()]
    if len(told) > _SHOWN:
        told = [*told[:_SHOWN], f"And {len(told) - _SHOWN} more mistakes: mend these first."]
    if told:
        raise ConfigError("\n".join(told))


def _those(cells: Sequence[tuple[str, Mapping[str, Any]]], at: Sequence[int]) -> str:
    """Some of the cells in words: by the value that they share with no other one, or by name."""
    if len(at) == 1:
        return f"the cell {cells[at[0]][0]}"
    if len(at) == len(cells):
        return f"all {len(cells)} cells"
    for key, value in cells[at[0]][1].items():
        if [place for place, (_, own) in enumerate(cells) if _as_text(own.get(key)) == _as_text(value)] == [
            *at
        ]:
            return f"the {len(at)} cells with {short_names([key])[key]} = {show(value)}"
    more = f" and {len(at) - 2} more" if len(at) > 2 else ""
    return f"the cells {'; '.join(cells[place][0] for place in at[:2])}{more}"


def _without_noise(table: dict[str, Any]) -> dict[str, Any]:
    """The table of a cell, as the run without noise if its epsilon is infinite."""
    privacy, training = table.get("privacy"), table.get("dpsgd")
    if not isinstance(privacy, dict):
        return table
    if not isinstance(training, dict) or "noise_multiplier" in training:
        training = {"epsilon": None}
    if training.get("epsilon", privacy.get("epsilon")) == inf:
        table = {name: own for name, own in table.items() if name != "dpsgd"}
        # With noise of no size: so the test records are those of the other cells.
        noise = privacy.get("noise")
        if noise == NO_NOISE:
            noise = next(word for word, kind in OURS.items() if kind.total_by is None and not kind.mutual)
        privacy = {**privacy, "noise": noise, "epsilon": inf}
    if privacy.get("epsilon") == inf and "ledger" not in privacy:
        privacy = {**privacy, "budget": inf}
    return {**table, "privacy": privacy}


def _as_text(value: Any) -> str:
    # Compared as JSON: `==` makes 1, 1.0 and true equal, and nan unequal to itself.
    return json.dumps(value, sort_keys=True, default=str)


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a study's table of TOML; below `arm`, in every arm."""
    section, *path = key.split(".")
    arms = table.get("arm") if section == "arm" else None
    for own in arms if isinstance(arms, list) else [table]:
        at, (*above, last) = own, path if own is not table else [section, *path]
        for part in above:
            at = at.setdefault(part, {}) if isinstance(at, dict) else None
        if not isinstance(at, dict):
            raise ConfigError(f"Expected tables along the path `{key}`, got another value. Mend the key.")
        at[last] = value


def _free(name: str, taken: set[str]) -> str:
    """A free folder name for a cell."""
    # Values that differ by a sign alone have the same slug, so their folders get numbers.
    base = slug(name)[:_LONGEST]
    numbered = (f"{base}-{number}" for number in range(2, len(taken) + 3))
    return next(folder for folder in (base, *numbered) if folder not in taken)
