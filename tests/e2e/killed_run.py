"""A run that kills itself between two lines: `python killed_run.py STUDY SEED-LINE-FOLDER...`.

Each further argument is LINE:FOLDER. For each, a fork of this process (which has paid for the imports)
runs the study's first arm in FOLDER, counts the lines it executes in the files that move releases,
and sends itself SIGKILL before line LINE; 0 kills nobody. In FOLDER/made.jsonl stand the keys of all
releases whose bytes were made, and the hash of the message that carried them, each on disk before anything
else happens. In FOLDER/told.jsonl stand those of rounds whose record was told, from when on they have left
the process. Prints, for each, a JSON list:
LINE, the wait status, how many releases were told that the ledger on disk had not committed when the process
had ended, how many lines were counted, which of them are at the ledger's door, where charges are committed
and bytes are made, and which write the journal of an aggregation (a killed run counts no lines).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import securefl
from securefl.accounting import ledger
from securefl.core.release import Release
from securefl.storage.read_only import read as read_only
from securefl.study import world
from securefl.study.arm import arm_folder
from securefl.study.config import Study, read
from securefl.study.folder import claim
from securefl.study.run import run_arm
from securefl.training import single_thread

ROOT = Path(securefl.__file__).parent
WATCHED = tuple(
    str(ROOT / part)
    for part in ("engine", "accounting", "study", "secagg", "algorithm/clients.py", "storage/journal.py")
)
DOOR = str(ROOT / "accounting" / "ledger.py")
JOURNAL = str(ROOT / "storage" / "journal.py")
assert all(Path(part).exists() for part in (*WATCHED, DOOR, JOURNAL)), "a file that is watched has moved"


def watched(file: str) -> bool:
    return file.startswith(WATCHED)


class Lines:
    def __init__(self, fatal: int) -> None:
        self.fatal, self.count = fatal, 0
        self.aggregator: list[int] = []
        self.journal: list[int] = []

    def call(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        return self.line if watched(frame.f_code.co_filename) else None

    def line(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "line":
            self.count += 1
            name, file = frame.f_code.co_name, frame.f_code.co_filename
            if name in ("send", "_commit", "<listcomp>") and file == DOOR:
                self.aggregator.append(self.count)
            if name == "record" and file == JOURNAL:
                self.journal.append(self.count)
            if self.count == self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line


def remember_what_is_made(folder: Path) -> Callable[[Mapping[str, Any]], None]:
    """Write every release's key, synced, as soon as its bytes exist. Returns a function to tell records to:
    it writes the keys of a round's releases again, once the round is told."""
    encode = ledger.encode
    file, told = (
        os.open(folder / name, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        for name in ("made.jsonl", "told.jsonl")
    )
    rows: list[str] = []

    def remembering(header: Any, body: Any, permit: Any) -> bytes:
        data = encode(header, body, permit)
        for release in Release.all_in(body):
            key = release.key
            place = [key.holder, key.session.hex(), key.round, key.stage, key.attempt, key.name]
            row = [*place, hashlib.sha256(data).hexdigest()]
            rows.append(json.dumps(row) + "\n")
            os.write(file, rows[-1].encode())
        os.fsync(file)
        return data

    def tell(record: Mapping[str, Any]) -> None:
        os.write(told, "".join(rows).encode())
        os.fsync(told)
        rows.clear()

    ledger.encode = remembering
    return tell


def uncounted(study: Study, folder: Path) -> int:
    """How many releases were told that the ledger on disk has not committed."""
    query = "SELECT holder, lower(hex(session)), round, stage, attempt, name FROM releases WHERE committed"
    told, path = folder / "told.jsonl", arm_folder(folder, study.arms[0], study.study.seeds[0])
    rows = {tuple(json.loads(row)[:6]) for row in told.read_text().splitlines()} if told.exists() else set()
    if not rows:
        return 0

    def committed(db: sqlite3.Connection) -> set[tuple[Any, ...]]:
        return set(db.execute(query))

    return len(rows - read_only(path / "ledger.sqlite", committed))


def child(study: Study, here: world.World, fatal: int, folder: Path, answer: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tell = remember_what_is_made(folder)
    lines = Lines(fatal)
    sys.settrace(lines.call)
    claim(folder, study)
    run_arm(study, study.arms[0], here, folder, tell)
    sys.settrace(None)
    os.write(answer, json.dumps([lines.count, lines.aggregator, lines.journal]).encode())


def main() -> None:
    study = read(Path(sys.argv[1]))
    single_thread()
    here = world.build(study, study.study.seeds[0])
    for argument in sys.argv[2:]:
        fatal, _, folder = argument.partition(":")
        receive, answer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                child(study, here, int(fatal), Path(folder), answer)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        os.close(answer)
        with open(receive, encoding="utf-8") as pipe:
            counted = json.loads(pipe.read() or "[0, [], []]")
        status = os.waitpid(pid, 0)[1]
        print(json.dumps([int(fatal), status, uncounted(study, Path(folder)), *counted]), flush=True)


if __name__ == "__main__":
    main()
