"""The section [sweep]: which keys are swept over which values, and how figures are divided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final

from securefl.core.errors import ConfigError
from securefl.core.reading import convert, near
from securefl.dp.choice import Trials

EPSILON: Final = "privacy.epsilon"
MOST_CELLS: Final = 2000
_KNOWN: Final = ("grid", "list", "panels", "choice")


@dataclass(frozen=True, kw_only=True)
class Section:
    """grid: lists whose product is taken. entries: the grid is taken for each of them.

    panels: swept keys whose values have figures of their own, side by side by the first key.
    choice: how many trials a private selection draws; None if all cells are run and published.
    """

    grid: Mapping[str, Sequence[Any]]
    entries: Sequence[Mapping[str, Any]]
    panels: tuple[str, ...] = ()
    choice: Trials | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """What is swept, in the order of the file."""
        return tuple(dict.fromkeys([*(key for entry in self.entries for key in entry), *self.grid]))

    def points(self) -> list[dict[str, Any]]:
        """The overrides of every cell. Raises ConfigError for more than MOST_CELLS."""
        count = len(self.entries) * prod(len(values) for values in self.grid.values())
        if count > MOST_CELLS:
            raise ConfigError(f"Expected at most {MOST_CELLS:,} cells, got {count:,}; sweep over less.")
        return [
            {**entry, **dict(zip(self.grid, values, strict=True))}
            for entry, values in product(self.entries, product(*self.grid.values()))
        ]


def section_of(section: Any) -> Section:
    """The section as TOML has it, by default with one empty entry. Raises ConfigError for an invalid one."""
    if not isinstance(section, dict):
        raise ConfigError(f"Expected a table [sweep], got {section!r}.")
    for key in section:
        if key not in _KNOWN:
            raise ConfigError(f"[sweep] Unknown key `{key}`{near(key, _KNOWN)}; known: {', '.join(_KNOWN)}.")
    grid, entries = section.get("grid", {}), section.get("list", [{}])
    if not {"grid", "list"} & {*section} or not isinstance(grid, dict) or not isinstance(entries, list):
        raise ConfigError("Expected a table [sweep.grid] or tables [[sweep.list]], got others.")
    if not entries:
        raise ConfigError("Expected a table [sweep.grid] or tables [[sweep.list]], got others.")
    for key, values in grid.items():
        _dotted(key, values, "[sweep.grid]")
        if not isinstance(values, list) or not values:
            raise ConfigError(f"[sweep.grid] Expected a list of values of `{key}`, got {values!r}.")
    for entry in entries:
        _require_entry(entry, grid)
    found = Section(grid=grid, entries=entries)
    choice = convert(Trials, section["choice"], "sweep.choice") if "choice" in section else None
    panels = _panels(section.get("panels", []), found.keys)
    return Section(grid=grid, entries=entries, panels=panels, choice=choice)


def _require_entry(entry: Any, grid: Mapping[str, Any]) -> None:
    if not isinstance(entry, dict):
        raise ConfigError(f"[[sweep.list]] Expected tables, got {entry!r}.")
    for key, value in entry.items():
        _dotted(key, value, "[[sweep.list]]")
        if key in grid:
            raise ConfigError(
                f"Expected `{key}` in [sweep.grid] or in [[sweep.list]], got it in both. Keep one of them."
            )


def _panels(panels: Any, keys: Iterable[str]) -> tuple[str, ...]:
    able = [key for key in keys if key != EPSILON and not key.startswith("arm.")]
    if not isinstance(panels, list) or any(key not in able for key in panels):
        raise ConfigError(
            f"[sweep] Expected panels as a list of swept keys (of {', '.join(able) or 'none here'}), got "
            f"{panels!r}. The epsilon is the axis of each panel, and arms are its lines."
        )
    if len(set(panels)) < len(panels):
        raise ConfigError(f"[sweep] Expected each key once in panels, got {panels!r}.")
    return tuple(panels)


def _dotted(key: str, value: Any, where: str) -> None:
    if "." in key:
        return
    # Without quotes TOML reads a path as nested tables, so the key came cut at its first dot.
    inner = next(iter(value), "epsilon") if isinstance(value, dict) else "epsilon"
    section = key if isinstance(value, dict) else "privacy"
    raise ConfigError(
        f'{where} Expected a path in quotes, such as "{section}.{inner}" = ..., got the key `{key}`.'
    )
