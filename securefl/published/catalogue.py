"""Finds the published tables in installed packages (entry-point group `securefl.tables`), and their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from securefl.core.errors import ConfigError, DataError
from securefl.core.installed import entry_points
from securefl.core.reading import near
from securefl.data import NAMES, require_files
from securefl.published.table import Table
from securefl.storage.texts import toml


def tables() -> Mapping[str, Table]:
    """All tables whose protocols are installed, by name."""
    return {name: table for name, table in sorted(_known().items()) if not _lacking(table)}


def table_named(name: str) -> Table:
    """The table of that name.

    Raises ConfigError if the name is unknown (the error has the nearest one), or its protocols are missing.
    """
    known = _known()
    if name not in known:
        listed = ", ".join(tables()) or "none"
        raise ConfigError(f"Expected one of the tables {listed}, got {name!r}{near(name, known)}.")
    if lacking := _lacking(known[name]):
        raise ConfigError(
            f"Expected the protocols of table {name} to be installed, got none called {', '.join(lacking)}. "
            "Install the package that brings them."
        )
    return known[name]


def _known() -> dict[str, Table]:
    return {point.name: point.load() for point in entry_points(group="securefl.tables")}


def _lacking(table: Table) -> list[str]:
    """The protocols that the table names, but that no installed package has."""
    known = {point.name for point in entry_points(group="securefl.protocols")}
    named = {arm["protocol"] for part in table.parts for arm in toml(part.text)["arm"]}
    return sorted(named - known)


def data_of(table: Table) -> tuple[str, ...]:
    """The data sets that the table reads from files, by name."""
    studies = [part.study for part in table.parts]
    found = [name for study in studies for name in (study.data.source, study.corruption.irrelevant_source)]
    return tuple(name for name in dict.fromkeys(found) if name in NAMES)


def missing(names: Sequence[str]) -> dict[str, str]:
    """The data sets that cannot be read here, each with a reason: the missing file, and how to fetch it."""
    found = {}
    for name in names:
        try:
            require_files(name)
        except DataError as error:
            found[name] = str(error)
    return found
