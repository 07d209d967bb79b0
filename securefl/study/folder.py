"""The run folder: the study that it belongs to, the device that its run is on, and a private copy of it.

The device is chosen when the run begins, noted in its folder, and kept when the run is resumed. An
interrupted round is run again with the same masks and noise. On another device a value would have other last
bits under the same noise, and the two values together would reveal more than either. So `hardware_of` refuses
to resume a run on another device.

There is one exception: if the GPU's memory runs out, the run continues on the CPU, and the note changes. The
value whose computation failed was never sent. Values that the interrupted round made before are computed
again, on the CPU.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from securefl.accounting.figures import counted
from securefl.core.errors import ConfigError, DataError, SecureFLError
from securefl.storage.files import folder_at, write
from securefl.storage.folder_lock import require_idle
from securefl.storage.private_folder import ARMS, CONFIG, RUN, note_format, require_format, run_config
from securefl.storage.texts import read_text
from securefl.study.config import Brought, Study, note_brought, note_home, of_folder
from securefl.study.split_key import Keeper
from securefl.training.devices import Gpu, Hardware, chosen

DEVICE_NOTE: Final = "device.txt"
"""The file with the devices of a run, a line each. A run that was never on a GPU has none."""
ROUNDS_NOTE: Final = "rounds.txt"
"""The file with the numbers of rounds of a run, first to last. A run that got no more has none."""


def require_own(folder: Path, study: Study) -> None:
    """Raises ConfigError if a folder is another study's. It writes nothing."""
    config = folder / CONFIG
    # What an older release began would begin anew, and forget what it released.
    if (folder / ARMS).exists() or (folder / ARMS.name).exists():
        require_format(folder, RUN)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"Expected a folder or nothing at {folder}, got a file. Choose another with --out.")
    if config.exists() and read_text(config) != study.text:
        raise ConfigError(
            f"{folder} holds a run of another configuration; choose another folder with --out "
            "(for more seeds too: `securefl table` joins the folders), "
            f"or resume that run with: securefl run {config} --out {folder}"
        )


def claim(folder: Path, study: Study, keeper: Keeper | None = None) -> None:
    """Claim a run folder for a study. Raises ConfigError if the folder is another study's.

    keeper: holds the key that splits the records. The folder keeps the key.
    """
    require_own(folder, study)
    folder_at(folder)
    note_format(folder, RUN)
    config = folder / CONFIG
    note_home(folder, study.home)
    note_brought(folder, study.brought)
    if keeper is not None:
        # Before the study's file: if a folder has a study and no key, its key is lost.
        keeper.keep(folder)
    if not config.exists():
        write(config, study.text)


def study_of(folder: Path, brought: Brought | None = None, trusted: Sequence[Path] = ()) -> Study:
    """The study of a run folder, with a caller's objects from Python. Raises ConfigError if it is none.

    trusted: the paths of --trust-code.
    """
    return taken_on(of_folder(run_config(folder), trusted, brought), folder)


def taken_on(study: Study, folder: Path) -> Study:
    """The study with as many rounds as its run was asked for last. Its text stays: the run is bound to it."""
    return with_rounds(study, rounds_of(study, folder)[-1])


def with_rounds(study: Study, rounds: int) -> Study:
    """The study with this number of rounds. Raises ConfigError for one that no study can have."""
    try:
        return replace(study, study=replace(study.study, rounds=rounds))
    except ValueError as error:
        raise ConfigError(f"[study] {error}") from None


def rounds_of(study: Study, folder: Path) -> list[int]:
    """The numbers of rounds of the folder's run, first to last. Raises DataError for a damaged note."""
    path = folder / ROUNDS_NOTE
    if not path.exists():
        return [study.study.rounds]
    lines = read_text(path).split()
    if not lines or not all(line.isdecimal() for line in lines):
        raise DataError(f"Expected numbers of rounds in {path}, got {lines!r:.60}. Restore it from a copy.")
    return [*map(int, lines)]


def require_no_more(study: Study, folder: Path) -> None:
    """Raises ConfigError if the folder's run got more rounds than its study says.

    A cell of a sweep, a trial and a part of a table stand for their studies in tables.
    """
    first, *more = rounds_of(study, folder)
    if more:
        raise ConfigError(
            f"Expected a run of {counted(first, 'round')} in {folder}, as its study says, got one that was "
            f"taken on to {more[-1]}: under this setting it would stand for another. Move the folder "
            "elsewhere, and give the same command again, which begins this run anew."
        )


def note_rounds(study: Study, folder: Path, rounds: int) -> None:
    """Note that the folder's run goes on to this number of rounds."""
    write(folder / ROUNDS_NOTE, "".join(f"{one}\n" for one in [*rounds_of(study, folder), rounds]))


def hardware_of(
    study: Study, folder: Path, began: bool, say: Callable[[str], None], gpu: Gpu | None = None
) -> Hardware:
    """The device for the run of this folder. `gpu`: as for `chosen`.

    began: whether there is a run in the folder. Raises ConfigError if that run was on another device.
    """
    wanted, last = study.runtime.device, devices(folder)[-1]
    if began and last == "cpu" and wanted != "cuda":
        return Hardware()
    hardware = chosen(wanted, say, gpu)
    if began and hardware.words != last:
        raise ConfigError(
            f"Expected the run in {folder} to go on on the device that it was on ({last}), got "
            f"{hardware.words}: an interrupted round would be computed with the same noise and other last "
            "bits. Resume it on that device, or begin a new run in another folder."
        )
    return hardware


def note_device(folder: Path, hardware: Hardware) -> None:
    """Note a GPU in the run folder, and have the hardware note the CPU if it leaves the GPU later."""
    if hardware.gpu is not None and not (folder / DEVICE_NOTE).exists():
        write(folder / DEVICE_NOTE, hardware.words + "\n")
    hardware.left = lambda: write(folder / DEVICE_NOTE, "\n".join([*devices(folder), "cpu"]) + "\n")


def devices(folder: Path) -> list[str]:
    """The devices of the folder's run, first to last."""
    path = folder / DEVICE_NOTE
    return (read_text(path).splitlines() if path.exists() else []) or ["cpu"]


@contextmanager
def private_copy(folder: Path, part: Path) -> Iterator[Path]:
    """A temporary folder with copies of all databases in `part` of a run folder, of their logs, and of the
    note of its rounds, from which the sessions of the run follow.

    Raises ConfigError if a process runs in the folder, or starts there during the copy.
    """
    require_idle(folder)
    with tempfile.TemporaryDirectory() as private:
        _copy(folder, part, Path(private))
        try:
            yield Path(private)
        except SecureFLError as error:  # whose file is gone before a person reads of it
            error.args = (str(error).replace(private, str(folder)), *error.args[1:])
            raise


def _copy(folder: Path, part: Path, private: Path) -> None:
    # SQLite rebuilds the indices of logs (`-shm`).
    found = [*(folder / part).rglob("*"), folder / ROUNDS_NOTE]
    files = [path for path in found if path.is_file() and path.name[-4:] != "-shm"]
    before = [_stamp(path) for path in files]
    for path in files:
        target = private / path.relative_to(folder)
        folder_at(target.parent)
        shutil.copyfile(path, target)
    # `require_idle` holds no lock: if a process began meanwhile, the copies would not fit together.
    if [_stamp(path) for path in files] != before:
        raise ConfigError(
            f"Expected {folder} not to change while it is read, got a change. Try again when its run has "
            "ended."
        )


def _stamp(path: Path) -> tuple[int, int] | None:
    return (path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None
