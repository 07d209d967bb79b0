"""Runs the cells of a sweep on a Ray cluster: a cell is one task, which returns the cell's folder as bytes.

A task gets the cell's folder as it is here, runs the rest of the cell in a copy, and returns the copy. Its
files replace those here. Nothing of a task reaches anybody before, so Ray begins the task of a lost worker
again from the same bytes. A shared ledger stays here: before the first try, the cell's runs are reserved in
it under the identities of their own ledgers, which every try is given.

Ray's workers read each other's objects by pickle, and whoever reaches a cluster's ports can run code on it. A
cluster is one person's, and no message of another party is ever given to it. Only this module imports ray.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from securefl.core.errors import ConfigError, DataError, SecureFLError, WorkerDied
from securefl.core.installed import needing, versions
from securefl.storage.database import writable
from securefl.storage.files import subfolder, write
from securefl.storage.folder_lock import LOCK, locked
from securefl.storage.private_folder import PRIVATE, private_folder
from securefl.storage.processes import SIGNALS, processors
from securefl.study.config import HOME, note_home
from securefl.study.interruption import Stop, Told
from securefl.study.session import reserve_here
from securefl.sweep.cells import Cell, Sweep
from securefl.sweep.run import FACTS, Watch, error_of_cell, finished, ordered, place_of, share_key
from securefl.training import single_thread

_RETRIES: Final = 3
"""Ray runs a task again so often if its worker or node is lost. After that its cell has failed."""
_BEAT: Final = 1.0
"""Seconds between two looks at the cluster's nodes."""
_STAY: Final = (LOCK, HOME)
"""Files that hold for one folder alone: its lock, and the note of the study's folder."""
_MOST_FILES: Final = 10_000
_MOST_BYTES: Final = 2**32
"""Of a cell's folder."""
Files = Mapping[str, bytes]
"""The files of a folder, by their relative paths."""


def run_on_ray(sweep: Sweep, out: Path, *, watch: Watch, stop: Stop) -> None:
    """Run every unfinished cell on a Ray cluster: that of RAY_ADDRESS, or one of this machine for the call.

    Args:
        sweep: the sweep, without a `choice`.
        out: its folder, which the caller has locked and claimed.
        watch: told of the end of each cell, with its error if it failed, which stops no other cell.
        stop: a request to it ends all tasks at once. Finished cells are kept.

    Raises:
        ConfigError: ray is not installed, or the cluster cannot be reached.
        Interrupted: a request to stop came.
        WorkerDied: the cluster has no processor left. Finished cells are kept.
    """
    with _connected() as ray, ExitStack() as locks:
        task, stamp = ray.remote(num_cpus=1, max_retries=_RETRIES)(_task), _stamp()
        running: dict[Any, Cell] = {}
        for cell in sweep.cells:
            folder, study = sweep.home(out, cell), cell.study
            if finished(folder):
                continue
            try:
                locks.enter_context(locked(folder, lambda line: None))
                share_key(sweep, out, study, folder)
                reserve_here(study, folder)
                note_home(folder, study.home)
                running[task.remote(study.text, place_of(study), packed(folder), stamp)] = cell
            except SecureFLError as error:
                watch.ended(cell, 0, str(error))
        while running:
            try:
                ready, _ = ray.wait(list(running), timeout=_BEAT)
            except KeyboardInterrupt:  # Ray's own, in place of what the handler of the signal raised
                stop.check()
                raise
            alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
            if not ready and not alive:
                raise WorkerDied(
                    "The Ray cluster has no node with a processor left. Finished cells are kept: run the "
                    "same command again when it has."
                )
            for task_of in ready:
                cell = running.pop(task_of)
                watch.ended(cell, 0, _taken(ray, task_of, sweep.home(out, cell)))


def _taken(ray: Any, task: Any, folder: Path) -> str | None:
    """Put the files of an ended task into the cell's folder. Returns the cell's error, or None."""
    try:
        error, files = ray.get(task)
        put(files, folder)
        if error is None and not finished(folder):
            return "its task on the Ray cluster returned no finished cell. Run the same command again."
    except ray.exceptions.RayError as lost:
        return f"its task on the Ray cluster ended {_RETRIES + 1} times, or could not begin: {_line(lost)}"
    # ValueError, TypeError and AttributeError: of another shape than `_task` returns.
    except (SecureFLError, OSError, ValueError, TypeError, AttributeError) as wrong:
        return f"its files from the Ray cluster cannot be taken: {wrong}"
    return None if error is None else str(error)


def _task(
    text: str, home: Mapping[str, Any], files: Files, expected: Mapping[str, str]
) -> tuple[str | None, Files]:
    """Run a cell on a node. Returns its error, or None, and its folder's files.

    text, home: of its study (`place_of`).
    """
    found = _stamp()
    if differ := [f"{name} {found.get(name)}" for name, own in expected.items() if found.get(name) != own]:
        return f"Expected the versions of the sweep's machine on a node, got {', '.join(differ)}.", {}
    single_thread()
    with tempfile.TemporaryDirectory(prefix="securefl-") as place:
        folder = Path(place) / "cell"
        put(files, folder)
        error = error_of_cell(
            folder, partial(ordered, text, home), lambda done: None, Told(lambda: False), reserved=True
        )
        return error, packed(folder)


def packed(folder: Path) -> dict[str, bytes]:
    """The files of a cell's folder, in which no process runs. Raises DataError if they are too many."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name in _STAY or path.name.endswith(("-wal", "-shm")) or path.is_symlink() or path.is_dir():
            continue
        if path.suffix == ".sqlite":
            with suppress(sqlite3.Error):  # the cell's run says what is damaged
                writable(path).close()  # which takes over what a killed process left in the log
        found[path.relative_to(folder).as_posix()] = path.read_bytes()
    _require_bounded(found)
    return found


def put(files: Files, folder: Path) -> None:
    """Write files that came from the cluster into a cell's folder, each durably and whole.

    Databases come first and the mark of a finished cell comes last. If this process is killed in between, a
    run is as it was, or finished, and the same command goes on.

    Raises:
        DataError: a path leads outside of the folder, or the files are too many. Nothing is written then.
    """
    if type(files) is not dict:
        raise DataError(f"Expected the files of a cell as a dict, got {type(files).__name__}.")
    _require_bounded(files)
    for name, content in files.items():
        if type(name) is not str or type(content) is not bytes or not _inside(name):
            raise DataError(f"Expected the files of a cell, each by a path in its folder, got {name!r:.99}.")
    private_folder(subfolder(folder))
    for name in sorted(files, key=lambda one: (one == FACTS, not one.endswith(".sqlite"), one)):
        for parent in [*PurePosixPath(name).parents][-2::-1]:
            subfolder(folder / parent)
        write(folder / name, files[name], secret=name.startswith(f"{PRIVATE}/"))


def _inside(name: str) -> bool:
    """Whether a relative path leads into a folder, to a file that travels."""
    parts = name.split("/")
    return "\0" not in name and not {"", ".", ".."} & {*parts} and parts[-1] not in _STAY


def _require_bounded(files: Files) -> None:
    if len(files) > _MOST_FILES or sum(map(len, files.values())) > _MOST_BYTES:
        raise DataError(
            f"Expected a cell's folder of at most {_MOST_FILES:,} files and {_MOST_BYTES:,} bytes, got more. "
            "Run the sweep without --ray."
        )


def _stamp() -> dict[str, str]:
    """The versions that results depend on, and a digest of this package: two checkouts have one number."""
    home, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(home.rglob("*.py")):
        digest.update(str(path.relative_to(home)).encode() + b"\0" + path.read_bytes())
    return {**versions(), "source": digest.hexdigest()[:12]}


@contextmanager
def _connected() -> Iterator[Any]:
    """The package ray, connected to a cluster. At the end nothing of this process runs there."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before its import; else it reports to its makers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with needing("ray", "for --ray"):
        import ray
    address = os.environ.get("RAY_ADDRESS", "local")
    own: dict[str, Any] = {"num_cpus": processors(), "include_dashboard": False} if address == "local" else {}
    with _own_handlers(), _in_root():
        try:
            ray.init(
                address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR, **own
            )
        # ConnectionError, RuntimeError for another version of Ray, ValueError for a text that is no address,
        # and errors that only Ray's own modules name.
        except Exception as error:
            raise ConfigError(
                f"Expected a Ray cluster at {address!r}, got {_line(error)} Start one with `ray start "
                "--head`, or unset RAY_ADDRESS to use this machine alone."
            ) from None
    try:
        yield ray
    finally:
        with _own_handlers():
            ray.shutdown()


@contextmanager
def _in_root() -> Iterator[None]:
    """Connect from `/`, where root alone makes files.

    Ray puts the working folder of who connects first on the path of its workers. That folder may be another
    user's, such as /tmp, and so may what is in it.
    """
    if data := os.environ.get("SECUREFL_DATA"):
        # The workers of a cluster of this machine inherit working folder and environment.
        os.environ["SECUREFL_DATA"] = os.path.abspath(data)
    try:
        with chdir("/"):
            yield
    finally:
        if data:
            os.environ["SECUREFL_DATA"] = data


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep this process's signal handlers: Ray sets its own when it connects."""
    here = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in SIGNALS} if here else {}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None:
                signal.signal(number, handler)


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
