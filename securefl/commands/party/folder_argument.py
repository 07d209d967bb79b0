"""The argument FOLDER of a party's commands, with errors that say what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., None])


def _checked(context: click.Context, parameter: click.Parameter, folder: Path) -> Path:
    """The folder, if this user may use it. Not by click, which knows no remedy and exits with 2."""
    from securefl.core.errors import ConfigError
    from securefl.storage.inputs import kind_word, shown

    expected = f"Expected a party's folder, got {shown(folder)}"
    make = "Name the folder that `securefl party init` made, or make one with it."
    try:
        mode, owner = folder.stat().st_mode, folder.stat().st_uid
    except PermissionError:
        raise ConfigError(
            f"{expected}, in a folder that user {os.getuid()} may not enter. Run the command as the party's "
            "owner."
        ) from None
    except OSError as error:
        raise ConfigError(f"{expected}: {error.strerror}. {make}") from None
    if not folder.is_dir():
        found = "a file" if folder.is_file() else kind_word(mode)
        raise ConfigError(f"{expected}, which is {found}. {make}")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(
            f"{expected} of user {owner}, which user {os.getuid()} may not read. Run the command as the "
            "party's owner."
        )
    return folder


def party_folder(command: F) -> F:
    """Add the argument FOLDER to a command. It raises ConfigError unless it is a folder to use."""
    return click.argument("folder", type=click.Path(path_type=Path, readable=False), callback=_checked)(
        command
    )
