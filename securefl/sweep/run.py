"""Runs the cells of a sweep in worker processes. Cells can be resumed, and a failed cell stops no other."""

from __future__ import annotations

import hashlib
import itertools
import json
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from securefl.accounting.figures import plain
from securefl.core.errors import DataError, SecureFLError, WorkerDied
from securefl.core.memory import free_cycles
from securefl.storage.files import folder_at, write
from securefl.storage.own_code import Namer
from securefl.storage.private_folder import CONFIG, NOTICE, PRIVATE, json_text, private_folder
from securefl.storage.processes import Ended, Line, Supervisor, for_workers
from securefl.study import split_key
from securefl.study.config import Arm, Study, parse
from securefl.study.folder import require_no_more
from securefl.study.interruption import Interrupted, Interruption, Stop, Told
from securefl.study.session import run_study
from securefl.sweep.cells import Cell, Sweep
from securefl.training import single_thread

METRICS = f"{PRIVATE}/metrics.csv"
FACTS = f"{PRIVATE}/cell.json"
"""The file that marks a finished cell, written last, with the facts that its tables do not have."""
_TOLD = ("card", "infinite_reason", "alarms", "kind", "outside")
_KILLED = "its worker process was ended from outside; if memory ran out, take fewer --workers"
_NO_PROCESS = (
    "The system refused to start a process for a cell. Finished rounds are kept: run the same command again."
)
Facts = Sequence[tuple[Cell, Mapping[str, Any]]]
"""Finished cells, each with its facts (see `facts`)."""


class Watch(Protocol):
    """An object that is notified of a sweep's progress.

    place: the worker's number, from 0. error: why the cell failed, or None.
    """

    def begun(self, cell: Cell, place: int) -> None: ...

    def round(self, place: int, done: int) -> None: ...

    def ended(self, cell: Cell, place: int, error: str | None) -> None: ...


def finished(folder: Path) -> bool:
    """Whether the cell in this folder is finished."""
    return (folder / FACTS).is_file()


def facts(folder: Path, cell: Cell) -> Mapping[str, Any]:
    """The facts of a finished cell: `card`, `infinite_reason`, `alarms`, `kind`, `outside` and `metrics`.

    card: the rows of its privacy card. infinite_reason: for each arm, the reason why epsilon is infinite, or
    an empty text. alarms: its warnings, each with `arm`, `text` and `learnt`. kind: the learning task.
    outside: sentences on data that no epsilon covers. metrics: the bytes of its table.
    Raises DataError if the folder is another cell's, or is damaged.
    """
    again = f"Remove {folder / FACTS} and run the sweep again: the cell goes on from its checkpoints."
    try:
        found: dict[str, Any] = json.loads((folder / FACTS).read_bytes())
        metrics = (folder / METRICS).read_bytes()
        study, table, *own = (found[key] for key in ("study", "metrics", *_TOLD))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{folder} is damaged ({type(error).__name__}: {error}). {again}") from None
    if study != cell.study.digest:
        raise DataError(
            f"Expected the cell {cell.name} in {folder}, got another cell: it was copied or swapped. Put it "
            "back, or remove it, and run the sweep again."
        )
    if table != _digest(metrics):
        raise DataError(f"{folder / METRICS} is not as it was written. {again}")
    return {**dict(zip(_TOLD, own, strict=True)), "metrics": metrics}


def facts_of(sweep: Sweep, out: Path) -> Facts:
    """The finished cells, each with its facts."""
    homes = ((cell, sweep.home(out, cell)) for cell in sweep.cells)
    return [(cell, facts(folder, cell)) for cell, folder in homes if finished(folder)]


def finish(folder: Path, study: Study, told: Mapping[str, Any]) -> None:
    """Mark the cell of this study as finished, after its table is written. told: its `facts` of `_TOLD`."""
    noted = {"study": study.digest, "metrics": _digest((folder / METRICS).read_bytes()), **told}
    write(folder / FACTS, json_text(noted))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def run_cells(
    sweep: Sweep,
    out: Path,
    *,
    workers: int,
    watch: Watch,
    stop: Interruption | None = None,
) -> None:
    """Run every unfinished cell.

    After a first request to `stop` every worker finishes its round, and Interrupted is raised. Any other
    interruption ends the workers at once. The next call resumes each cell after its last finished round.
    Raises WorkerDied if the system starts no worker process.
    """
    stop = stop or Interruption()
    waiting = deque(cell for cell in sweep.cells if not finished(sweep.home(out, cell)))
    if not waiting:
        return
    places, running = deque(range(min(workers, len(waiting)))), dict[int, Cell]()
    # Every round is durable, so workers can be killed at any point.
    with stop.finishing("this round"), Supervisor[int]("spawn") as crew:
        while running or (waiting and not stop.asked):
            if stop.asked:
                crew.stop()
            while waiting and places and not stop.asked:
                place = places.popleft()
                if place not in crew.running and not _started(crew, place):
                    continue
                cell = waiting.popleft()
                folder, study = sweep.home(out, cell), cell.study
                share_key(sweep, out, study, folder)
                crew.order(place, {"folder": str(folder), "text": study.text, **place_of(study)})
                running[place] = cell
                watch.begun(cell, place)
            for place, news in crew.hear():
                if isinstance(news, Ended):
                    if place not in running:  # it had nothing to do
                        continue
                    news = {"error": _KILLED}
                if "done" in news:
                    watch.round(place, news["done"])
                    continue
                cell = running.pop(place)
                if "stopped" in news:
                    # The worker's place is not freed: a stop was asked for, so no new cell begins.
                    waiting.append(cell)
                    continue
                places.append(place)
                watch.ended(cell, place, news["error"])
    stop.check()


def _started(crew: Supervisor[int], place: int) -> bool:
    """Start a worker. If the system starts none, the others go on. WorkerDied if there are no others."""
    with for_workers():
        if crew.start(place, _work):
            return True
    if not crew.running:
        raise WorkerDied(_NO_PROCESS)
    return False


def _work(line: Line) -> None:
    """The loop of a worker process: run one cell after the other."""
    single_thread()
    for order in line.orders():
        folder, text = Path(order.pop("folder")), order.pop("text")
        try:
            told = Told(line.stopping)
            study = partial(ordered, text, order)
            error = error_of_cell(folder, study, lambda done: line.tell({"done": done}), told)
        except Interrupted:
            line.tell({"stopped": True})
        else:
            line.tell({"error": error})
        free_cycles()


def place_of(study: Study) -> Mapping[str, Any]:
    """The place of a study's own files, and the paths of --trust-code, for another process."""
    # Absolute, because the other process may have another working folder.
    home = None if study.home is None else str(study.home.absolute())
    return {"home": home, "trusted": [str(path.absolute()) for path in study.namer.trusted]}


def ordered(text: str, place: Mapping[str, Any]) -> Study:
    """The study of a cell in a worker. place: as `place_of` makes it."""
    home, trusted = place["home"], tuple(map(Path, place["trusted"]))
    study = parse(text, home=None if home is None else Path(home), namer=Namer(trusted=trusted))
    # A sweep's workers run one cell each, so a cell starts no workers of its own.
    return replace(study, runtime=study.runtime.here)


def error_of_cell(
    folder: Path,
    study: Callable[[], Study],
    count: Callable[[int], None],
    stop: Stop,
    *,
    reserved: bool = False,
) -> str | None:
    """Run a cell. Returns the error, or None. See `run_cell`."""
    trace = folder / PRIVATE / "error.txt"
    trace.unlink(missing_ok=True)
    try:
        run_cell(study(), folder, count, stop, reserved=reserved)
    except SecureFLError as error:
        return str(error)
    except Exception as error:  # a defect in this code or in a study's own fails one cell, not the sweep
        private_folder(folder_at(folder))
        write(trace, f"{NOTICE}\n\n{traceback.format_exc()}")
        where = trace.relative_to(folder)
        return f"{type(error).__name__}: {error} (the traceback is in {where} of its folder)"
    return None


def share_key(sweep: Sweep, out: Path, study: Study, folder: Path) -> None:
    """Write the key that splits the records in all runs of the sweep in `out` into a new cell or trial."""
    if not (folder / CONFIG).exists() and any(cell.study.claims for cell in sweep.cells):
        split_key.share(out, study, folder, begun=any(folder.parent.glob(f"*/{CONFIG}")))


def run_cell(
    study: Study, folder: Path, count: Callable[[int], None], stop: Stop, *, reserved: bool = False
) -> None:
    """Run one cell, and mark it as finished. count: called with the number of finished rounds.

    reserved: see `run_study`.
    """
    done = itertools.count(1)

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        count(next(done))

    require_no_more(study, folder)
    # Silent, since the sweep itself reports that a dead process left locks.
    found, _ = run_study(
        study, folder, tell, stop=stop, say=lambda line: None, baselines=False, reserved=reserved
    )
    summary = json.loads((folder / "summary.json").read_bytes())
    told = {
        "card": summary["privacy_card"],
        "infinite_reason": found.infinite_reason,
        "alarms": plain(found.alarms),
        "kind": found.kind,
        "outside": summary["outside"],
    }
    finish(folder, study, told)
