"""The status of a table's reproduction in its folder, and the check that the folder has this version."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from securefl.core.errors import ConfigError
from securefl.published.table import Part, Table
from securefl.storage.private_folder import CONFIG
from securefl.storage.texts import read_text
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import rounds_in
from securefl.study.config import slug


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The status of a table: `done` of `of` cells, each an arm under a seed. begun: whether a round ran."""

    done: int
    of: int
    begun: bool

    def __str__(self) -> str:
        if self.done == self.of:
            return "done"
        return f"{self.done} of {self.of} cells" if self.begun else "not begun"


def home(folder: Path, part: Part) -> Path:
    """The run folder of a part, in the table's folder."""
    return folder / slug(part.name)


def standing(table: Table, folder: Path) -> Standing:
    """The table's status. Only reads, also while the table is running.

    Raises ConfigError if the folder has another version of the table, and DataError if a run is damaged.
    """
    require_own(table, folder)
    played = []
    for part in table.parts:
        study = part.study
        for arm in study.arms:
            for seed in study.study.seeds:
                path = checkpoint_file(arm_folder(home(folder, part), arm, seed))
                played.append((rounds_in(path) if path.is_file() else 0, study.study.rounds))
    return Standing(
        done=sum(rounds >= whole for rounds, whole in played),
        of=len(played),
        begun=any(rounds for rounds, _ in played),
    )


def require_own(table: Table, folder: Path) -> None:
    """Raises ConfigError if the folder holds runs of another version of the table."""
    for part in table.parts:
        config = home(folder, part) / CONFIG
        found = read_text(config) if config.is_file() else part.text
        if found == part.text:
            continue
        lines = zip_longest(part.text.splitlines(), found.splitlines(), fillvalue="nothing")
        expected, came = next((pair for pair in lines if pair[0] != pair[1]), ("", "other line ends"))
        raise ConfigError(
            f"Expected runs of this version of the table in {folder}, got those of another: {part.name} has "
            f"{came!r} in place of {expected!r}. Move the folder away, or choose another with --out."
        )
