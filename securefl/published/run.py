"""Runs the studies of a published table one after the other, each with its arms and seeds in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from securefl.core.errors import DataError
from securefl.core.logs import to_stderr
from securefl.core.memory import free_cycles
from securefl.published.catalogue import data_of, missing
from securefl.published.reproduction_status import home, require_own
from securefl.published.table import Part, Table
from securefl.storage.folder_lock import alone
from securefl.study.config import Arm
from securefl.study.interruption import Interruption, Stop
from securefl.study.results import Results
from securefl.study.session import run_study

Tell = Callable[[Part, Arm, int, Mapping[str, Any]], None]


def run_table(
    table: Table,
    folder: Path,
    tell: Tell,
    *,
    workers: int | None = None,
    stop: Stop | None = None,
    say: Callable[[str], None] = to_stderr,
) -> dict[str, Results]:
    """Run or resume all parts of a table in `folder`. Returns their results, by the part's name.

    tell: called with (part, arm, seed, record) for every finished round, those of an earlier run included.
    workers: processes that share a part's arms and seeds, by default one for each processor.
    stop, say: as for `session.run_study`.
    Each part has a run folder of its own, with a report.
    Raises DataError, before anything runs, if a data file of any part is missing, and ConfigError if the
    folder has runs of another version of the table.
    """
    stop = stop or Interruption()
    for why in missing(data_of(table)).values():
        raise DataError(why)
    require_own(table, folder)
    found = {}
    with alone(folder, say):
        for part in table.parts:
            study = part.study
            if workers is not None:
                study = replace(study, runtime=replace(study.runtime, workers=workers))
            found[part.name], _ = run_study(
                study, home(folder, part), _of(tell, part), stop=stop, say=say, baselines=False
            )
            free_cycles()
            stop.check()
    return found


def _of(tell: Tell, part: Part) -> Callable[[Arm, int, Mapping[str, Any]], None]:
    return lambda arm, seed, record: tell(part, arm, seed, record)
