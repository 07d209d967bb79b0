"""Finds the TOML text of a study, by its path or by the name of a study in an installed package."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from securefl.core.errors import ConfigError
from securefl.core.installed import entry_points
from securefl.core.reading import near
from securefl.storage.texts import read_text

LISTED: Final = "List the packaged ones with: securefl studies"


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
    if Path(study).is_dir():
        inside = sorted(path.name for path in Path(study).glob("*.toml"))
        what = f"Name one in it: {', '.join(inside)}." if inside else LISTED
        raise ConfigError(f"Expected a file or a packaged study, got the folder {study}. {what}")
    raise ConfigError(f"Expected a file or a packaged study, got {study!r}{_near(study)}. {LISTED}")


def require_packaged(name: str) -> str:
    """The TOML of a packaged study. Raises ConfigError if there is none of this name."""
    if name not in packaged():
        raise ConfigError(f"Expected a packaged study, got {name!r}{near(name, packaged())}. {LISTED}")
    return packaged()[name]


def _near(study: str) -> str:
    """A hint at the nearest packaged study, or at the nearest file beside the named one."""
    path = Path(study)
    files = {} if not path.parent.is_dir() else {str(file): file for file in path.parent.glob("*.toml")}
    return near(study, [*packaged(), *files])
