"""The folder that a study's own files and modules are looked for in.

It is that of the study's file. A run folder keeps a copy of the file, and notes where it came from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from securefl.core.errors import ConfigError
from securefl.storage.files import write
from securefl.storage.texts import read_text

NOTE: Final = "home.txt"


def home_of(file: Path) -> Path:
    """The folder for the paths of the study or sweep in this file."""
    noted = file.parent / NOTE
    if not noted.is_file():
        return file.parent
    home = Path(read_text(noted).strip())
    if not home.is_absolute():
        raise ConfigError(
            f"{noted}: expected a whole path, that of the study's own folder, got {str(home)!r}."
        )
    return home


def note_home(folder: Path, home: Path | None) -> None:
    """Note in a run folder where its study's files are. Without a home there is nothing to note."""
    if home is None or home.resolve() == folder.resolve():
        return
    found = f"{home.resolve()}\n"
    if not (folder / NOTE).is_file() or read_text(folder / NOTE) != found:
        write(folder / NOTE, found)
