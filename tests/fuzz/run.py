"""Hostile bytes against every decoder; run as a program, in a process of its own.

    python tests/fuzz/run.py SEED INPUTS                  mutations of valid messages, and known attacks
    python tests/fuzz/run.py --guided SECONDS FOLDER      coverage-guided, where atheris is installed

`tests` must be on the path, for what tests share. Any exception but the package's own ends a run. The first
prints inputs, how many were refused and how many passed, and the growth of memory in KiB over the last four
fifths; then, a line each, the functions of the package that valid messages enter. The second divides the
seconds among the targets and the cores, writes the figures of each target to FOLDER/fuzz.csv, and keeps the
bytes of a finding, the log and the traceback beside it. Its figures are of CPU time, which other work on the
machine does not change much.
"""

from __future__ import annotations

import csv
import os
import random
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
LONGEST = 4096
"""Longer messages are guided over their first bytes alone."""
PATIENCE = 30
"""The most CPU seconds of one input."""
COLUMNS = ("target", "CPU seconds", "executions", "a CPU second", "edges", "findings")


def targets() -> Iterator[tuple[str, Any]]:
    """Each target, with the name of its room in front."""
    # Imported here, so that atheris can instrument what they import.
    for module in ("parties", "files", "matching"):
        for room, doors in import_module(f"fuzz.{module}").DOORS.items():
            yield from ((f"{room}: {target.name}", target) for target in doors())


# Without guidance ---------------------------------------------------------------------------------


def mutated(raw: bytes, rng: random.Random, known: list[bytes]) -> bytes:
    at = rng.randrange(len(raw))
    match rng.randrange(12):
        case 0:
            return rng.randbytes(rng.randrange(min(2 * len(raw), 4096)))
        case 1:
            return raw[:at]
        case 2:
            return raw + rng.randbytes(rng.randrange(1, 100))
        case 3:
            return raw[:16] + rng.randbytes(len(raw[16:]))
        case 4:
            return raw[:16] + bytes(len(raw[16:]))
        case 5:
            return raw[:16] + b"\xff" * len(raw[16:])
        case 6:
            return rng.choice(known)
        case 7:
            return raw[:at] + rng.choice(known)[: len(raw) - at]
        case 8:
            return raw[:at] + raw[at + rng.randrange(1, 9) :]
        case 9:
            piece = rng.randbytes(min(64, len(raw) - at))
            return raw[:at] + piece + raw[at + len(piece) :]
        case _:
            return raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]


def random_inputs(seed: int, inputs: int) -> None:
    found = dict(targets())
    rng, known = random.Random(seed), import_module("fuzz.matching").attacks()
    refused = before = 0
    entered = reached(found)
    for name, target in found.items():
        assert not target.refuses(target.valid), f"{name} refuses what is valid"
    chosen = rng.choices(list(found), [target.weight for target in found.values()], k=inputs)
    for turn, name in enumerate(chosen):
        target = found[name]
        raw = mutated(rng.choice((target.valid, *target.more)), rng, known)
        try:
            refused += target.refuses_damaged(raw)
        except BaseException:
            print(f"{name} fails on {len(raw)} bytes: {raw[:2000].hex()}", file=sys.stderr)
            raise
        if turn == inputs // 5:
            before = peak()
    print(inputs, refused, inputs - refused, peak() - before)
    for code in entered:
        print(Path(code.co_filename).relative_to(ROOT), code.co_qualname)


def reached(found: Mapping[str, Any]) -> set[CodeType]:
    """The functions of the package that valid messages enter."""
    seen = set[CodeType]()

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    for name, target in found.items():
        for valid in (target.valid, *target.more):
            sys.setprofile(watch)  # anew: Python drops it at an error in it, once seen on a loaded machine
            target.refuses_damaged(valid)
            if sys.getprofile() is not watch:
                print(f"{name}: what it enters was not watched to its end", file=sys.stderr)
    sys.setprofile(None)
    return {code for code in seen if code.co_filename.startswith(f"{ROOT / 'securefl'}")}


def peak() -> int:
    """The largest memory of this process, in KiB. Where getrusage gives it, it begins at the parent's."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    own = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if own is None else own


# Guided by coverage -------------------------------------------------------------------------------


def guided_inputs(seconds: int, folder: Path) -> int:
    """Fuzz each target in a process of its own, as many at once as there are cores. Returns the findings."""
    import atheris

    with atheris.instrument_imports(include=["securefl"]):
        found = dict(targets())
    cores = len(os.sched_getaffinity(0))
    each = max(1, seconds * cores // len(found))
    waiting, running, rows = list(found), dict[int, str](), dict[str, tuple[str, ...]]()
    while waiting or running:
        if waiting and len(running) < cores:
            name = waiting.pop(0)
            if child := os.fork():
                running[child] = name
                continue
            fuzz(found[name], each, place(folder, name))
        child, status, used = os.wait4(-1, 0)
        if name := running.pop(child, ""):
            rows[name] = figures(name, place(folder, name), status, used.ru_utime + used.ru_stime)
            # After each target: a run that is interrupted leaves the figures of those that ended.
            with (folder / "fuzz.csv").open("w", newline="") as file:
                file.write(f"# python tests/fuzz/run.py --guided {seconds} FOLDER\n")
                ended = [rows[name] for name in found if name in rows]
                csv.writer(file, lineterminator="\n").writerows([COLUMNS, *ended])
    return sum(int(row[-1]) for row in rows.values())


def place(folder: Path, name: str) -> Path:
    return folder / re.sub(r"\W+", "-", name)


def fuzz(target: Any, seconds: int, folder: Path) -> None:
    """Fuzz a target in this process, and end it."""
    import atheris

    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    for old in found_in(folder):  # of a run before; this one tries them again
        old.rename(folder / "corpus" / old.name)
    for number, valid in enumerate((target.valid, *target.more)):
        (folder / "corpus" / f"{number}").write_bytes(valid[:LONGEST])
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    rest = target.valid[LONGEST:]
    signal.signal(signal.SIGPROF, _too_long)

    def one(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)
        target.refuses_damaged(data + target.valid[len(data) :] if rest else data)

    # libFuzzer limits the peak that getrusage gives, which begins at the parent's.
    limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 + 1024
    options = [f"-max_total_time={seconds}", f"-rss_limit_mb={limit}", f"-max_len={LONGEST}"]
    options += [f"-artifact_prefix={folder}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(folder / "corpus")], one)
    atheris.Fuzz()
    os._exit(0)


class TooLongError(BaseException):
    """An input took PATIENCE. No decoder catches it. Outside of Python libFuzzer's own limit ends a loop."""


def _too_long(*_: object) -> None:
    raise TooLongError


def found_in(folder: Path) -> list[Path]:
    """The bytes of findings in a target's folder."""
    return [file for file in folder.iterdir() if file.name.startswith(("crash-", "timeout-", "oom-"))]


def figures(name: str, folder: Path, status: int, seconds: float) -> tuple[str, ...]:
    """The row of a target, from its log, and its process's exit status and CPU time."""
    log = (folder / "log").read_text(errors="replace")

    def newest(pattern: str) -> str:
        return (re.findall(pattern, log) or ["0"])[-1]

    done, findings = newest(r"executed_units: (\d+)"), len(found_in(folder)) or int(status != 0)
    return name, f"{seconds:.1f}", done, f"{int(done) / seconds:.0f}", newest(r"cov: (\d+)"), f"{findings}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--guided", seconds, folder]:
            sys.exit(guided_inputs(int(seconds), Path(folder)) > 0)
        case [seed, inputs]:
            random_inputs(int(seed), int(inputs))
