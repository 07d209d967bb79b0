"""kill -9 between any two lines of a round: what was told is in the ledger, and the run goes on."""

from __future__ import annotations

import json
import signal
import sqlite3
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from support.started import Started
from support.tiny_study import FEDAVG, FEDPROF, plain, run, text, with_privacy

from securefl.study.arm import arm_folder
from securefl.study.config import read

CLEAR = text(FEDPROF, clients=4)
MASKED = with_privacy(
    text(FEDAVG.replace("fraction = 0.5", 'fraction = 1.0\naggregation = "partial"'), clients=4),
    {"sum": '"masked"', "dropout": "0.25", "corrupt": "0.0"},
)
"""An aggregation is the first thing in its rounds: when all begin, the ledger knows nothing of them yet."""
RELEASES = {CLEAR: 4 + 2 * 2 * 2, MASKED: 2 * 4}
"""Of an uninterrupted run: in each of 2 rounds an update and a profile of 2, after a profile of 4; or an
update of 4."""
SCRIPT = Path(__file__).with_name("killed_run.py")


def killed(toml: Path, *runs: tuple[int, Path]) -> list[list[Any]]:
    """Of each run: its line, wait status, number of releases that were told and not counted, lines counted,
    those at the ledger's door and those in the journal."""
    arguments = [f"{line}:{folder}" for line, folder in runs]
    done = Started(SCRIPT, toml, *arguments)
    assert (done.wait(250), done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def made(folder: Path, name: str = "made") -> list[tuple[Any, ...]]:
    path = folder / f"{name}.jsonl"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def committed(folder: Path) -> set[tuple[Any, ...]]:
    path = arm_folder(folder, read(folder.parent / "tiny.toml").arms[0], 3) / "ledger.sqlite"
    if not path.exists():
        return set()
    db = sqlite3.connect(path)
    query = "SELECT holder, lower(hex(session)), round, stage, attempt, name FROM releases WHERE committed"
    try:
        return set(db.execute(query))
    except sqlite3.OperationalError:  # killed before the table was made
        return set()
    finally:
        db.close()


def dry(folder: Path, written: str) -> tuple[int, list[int], list[int]]:
    """How many lines an uninterrupted run executes, which are at the ledger's door, and in the journal."""
    toml = folder / "tiny.toml"
    toml.write_text(written)
    [(_, status, _, count, aggregator, journal)] = killed(toml, (0, folder / "run"))
    assert status == 0
    assert count > 1000
    assert len(aggregator) > 50
    assert bool(journal) == (written == MASKED)
    assert len(made(folder / "run")) == RELEASES[written]
    return count, aggregator, journal


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[int], list[int]]:
    return dry(tmp_path_factory.mktemp("dry"), CLEAR)


@pytest.fixture(scope="module")
def under_masks(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[int], list[int]]:
    return dry(tmp_path_factory.mktemp("dry"), MASKED)


@pytest.fixture
def lines(counted: tuple[int, list[int], list[int]]) -> int:
    return counted[0]


@cache
def uninterrupted(written: str) -> list[dict[str, Any]]:
    """The records of a run that nobody kills, which several tests compare with."""
    with TemporaryDirectory() as folder:
        toml = Path(folder) / "tiny.toml"
        toml.write_text(written)
        return plain(run(read(toml), Path(folder) / "run").records)


def check_kills(folder: Path, at: list[list[int]], written: str = CLEAR, *, scores: str = "clear") -> int:
    """Kill at these lines, several in a row in one folder, then resume; returns how many made bytes twice."""
    toml = folder / "tiny.toml"
    toml.write_text(written.replace('scores = "clear"', f'scores = "{scores}"'))
    of = read(toml)
    folders = [folder / f"kill-{place}" for place, _ in enumerate(at)]
    runs = [(line, home) for own, home in zip(at, folders, strict=True) for line in (*own, 0)]
    for line, status, uncounted, *_ in killed(toml, *runs):
        assert status == (signal.SIGKILL if line else 0), f"line {line}"
        assert uncounted == 0, f"told without a charge, killed at line {line}"
    for home in folders:
        every = made(home, "told")
        assert {tuple(row[:6]) for row in made(home)} <= committed(home), (
            f"a release was not made again in {home}"
        )
        if scores == "clear":  # a ciphertext of the same profile is another one each time
            keys = {tuple(row[:6]) for row in every}
            assert len(set(every)) == len(keys), f"two versions of one release in {home}"
        ended = run(of, home)
        assert [record["round"] for record in ended.records] == [1, 2]
        if scores == "clear":
            assert plain(ended.records) == uninterrupted(written)
    return sum(len(made(home)) > RELEASES[written] for home in folders)


def spread(lines: int, kills: int, seed: int) -> list[int]:
    """One random line of each of `kills` equal parts of the run."""
    rng = np.random.default_rng(seed)
    return [int(rng.integers(int(a), int(b))) for a, b in pairwise(np.linspace(1, lines, kills + 1))]


MANY = pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])


@MANY
def test_killed_anywhere_nothing_is_uncounted_and_the_run_goes_on(
    many: bool, tmp_path: Path, lines: int
) -> None:
    kills = spread(lines, 6, seed=1)
    assert check_kills(tmp_path, [[line] for line in (kills if many else kills[1::3])]) >= (2 if many else 1)


@MANY
def test_killed_between_charge_and_bytes(
    many: bool, tmp_path: Path, counted: tuple[int, list[int], list[int]]
) -> None:
    """About eight lines at the door, evenly from a random one on; or three of them."""
    rng = np.random.default_rng(5)
    _, aggregator, _ = counted
    at = aggregator[int(rng.integers(8)) :: max(8, len(aggregator) // 8)]
    assert check_kills(tmp_path, [[line] for line in (at if many else at[1::3])]) >= (2 if many else 1)


@pytest.mark.slow
def test_killed_three_times_in_a_row(tmp_path: Path, lines: int) -> None:
    assert check_kills(tmp_path, [[line, line // 4, 700] for line in spread(lines, 3, seed=2)]) >= 1


@pytest.mark.slow  # the same acts as in the clear, and `test_replayed_rounds` cuts them in one process
def test_killed_under_encryption(tmp_path: Path, lines: int) -> None:
    assert check_kills(tmp_path, [[line] for line in spread(lines, 4, seed=3)], scores="ckks") >= 1


@MANY
def test_killed_under_masks_before_and_after_every_act(
    many: bool, tmp_path: Path, under_masks: tuple[int, list[int], list[int]]
) -> None:
    """In each of 2 rounds everybody begins, deals, masks and signs: after each act is on record."""
    _, _, journal = under_masks
    # Each wave is two runs of lines: up to its acts, and its commit, behind which it is on record.
    written = [line for line, after in pairwise([*journal, 10**9]) if after > line + 100][1::2]
    assert len(written) == 2 * 4
    at = [*(line + 1 for line in written[:4]), written[4]]
    kills = [[line] for line in (at if many else at[2:4])]
    assert check_kills(tmp_path, kills, MASKED) == 1, "after sign alone is it made again"


@pytest.mark.slow  # the lines around every act are tried in the fast suite
def test_killed_under_masks_anywhere(tmp_path: Path, under_masks: tuple[int, list[int], list[int]]) -> None:
    assert check_kills(tmp_path, [[line] for line in spread(under_masks[0], 8, seed=6)], MASKED) >= 1


@pytest.mark.slow
def test_killed_at_many_lines(tmp_path: Path, lines: int) -> None:
    assert check_kills(tmp_path, [[line] for line in spread(lines, 60, seed=4)]) >= 20


@pytest.mark.slow
def test_killed_under_masks_at_many_lines(
    tmp_path: Path, under_masks: tuple[int, list[int], list[int]]
) -> None:
    count, aggregator, journal = under_masks
    at = [*spread(count, 40, seed=7), *journal[::3], *aggregator[::10]]
    assert check_kills(tmp_path, [[line] for line in at], MASKED) >= 20
