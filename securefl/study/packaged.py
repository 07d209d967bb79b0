"""Finds the TOML text of a study, by its path or by the name of a study in an installed package."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

from securefl.core.errors import ConfigError
from securefl.storage.texts import read_text


def packaged() -> Mapping[str, str]:
    """The studies in installed packages (entry-point group `securefl.studies`): name to TOML."""
    found = {}
    for point in entry_points(group="securefl.studies"):
        for file in files(point.value).iterdir():
            if file.name.endswith(".toml"):
                found[file.name.removesuffix(".toml")] = file.read_text(encoding="utf-8")
    return dict(sorted(found.items()))


def text_of(study: str) -> str:
    """The TOML of a study, by path or by a packaged study's name. Raises ConfigError if there is neither."""
    if Path(study).is_file():
        return read_text(Path(study))
    if study in packaged():
        return packaged()[study]
    raise ConfigError(
        f"Expected a file or a packaged study, got {study!r}; packaged are {', '.join(packaged()) or 'none'}."
    )
