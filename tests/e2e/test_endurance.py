"""Kills, flipped bits, full disks and second processes, by the trials of `tests/e2e/trials`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import endurance
import numpy as np
import pandas as pd
import pytest
from flatness import MARKS, flatness
from support.every import every

TESTS = Path(__file__).parents[1]
GOOD = ("same", "refused")


def endured(*words: str) -> list[dict[str, Any]]:
    """What each trial found; none may have found anything wrong."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "e2e.trials.play", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert [one for one in found if one.get("wrong") or one.get("verdict", "same") not in GOOD] == []
    return found


def struck(found: list[dict[str, Any]]) -> list[str]:
    return [kill for one in found for kill in one["kills"]]


@pytest.mark.slow  # test_kill.py kills runs in the fast suite
@pytest.mark.timeout(900)  # longer than a victim may take, so that one that hangs is told
def test_killed_runs_end_as_uninterrupted_ones() -> None:
    assert len(struck(endured("kills", "2", "masked"))) >= 2


@pytest.mark.slow  # lost and damaged files are tried one by one in the fast suite
def test_flipped_bits_are_refused_or_harmless() -> None:
    assert len(endured("flips", "5", "masked")) == 5


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_sixty_killed_processes_lose_nothing() -> None:
    found = endured("kills", "60")
    kills = struck(found)
    assert {one["case"] for one in found} == {"faults", "masked", "ckks", "scores", "central", "sweep"}
    assert 10 <= sum(kill.startswith("statement") for kill in kills) <= len(kills) - 10
    assert len(kills) >= 60


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_full_and_read_only_disks_are_told_and_survived() -> None:
    with tempfile.TemporaryDirectory() as place:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip("this process may not mount a disk; run it as root")
        subprocess.run(["umount", place], check=True)
    assert len(endured("disk")) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_of_two_processes_is_sent_away() -> None:
    assert [one["case"] for one in endured("pairs", "8")].count("sweep") == 1


# A federation over many rounds ---------------------------------------------------------------------


def marks(**changes: Any) -> pd.DataFrame:
    """The marks of a session in which nothing grows but the files, by 400 bytes a round."""
    rounds = np.arange(1, MARKS + 1) * 40.0
    flat: dict[str, Any] = {"session": 1, "round": rounds, "seconds": 0.2, "client-0000 kB": 0.4 * rounds}
    for name in ("client-0005", "coordinator"):
        flat |= {f"{name} MB": 200.0, f"{name} CPU s": 0.03 * rounds}
    return pd.DataFrame(flat | {name: change(rounds) for name, change in changes.items()})


def steep(found: pd.DataFrame) -> list[str]:
    table = flatness(found, "sockets")
    return [str(figure) for figure in table.loc[~(table["quarter_4"] <= table["most"]), "figure"]]


def test_flat_marks_are_flat() -> None:
    assert steep(marks()) == []


@every(
    ("column", "change", "figure"),
    [
        ("seconds", lambda rounds: rounds / 40, "s a round"),
        ("coordinator MB", lambda rounds: 200 + 0.03 * rounds, "MB of coordinator"),
        ("client-0005 CPU s", lambda rounds: rounds**2 / 1e3, "CPU ms a round of client-0005"),
        ("client-0000 kB", lambda rounds: rounds**2 / 1e3, "bytes a round of client-0000's files"),
        ("coordinator MB", lambda rounds: rounds + np.nan, "MB of coordinator"),
    ],
)
def test_what_grows_is_named(column: str, change: Any, figure: str) -> None:
    assert steep(marks(**{column: change})) == [figure]


def test_what_a_round_is_recorded_in_may_grow() -> None:
    assert steep(marks(**{"coordinator MB": lambda rounds: 200 + 0.02 * rounds})) == []


@every("session", [1, 2, 3])
def test_what_grows_in_any_session_is_named(session: int) -> None:
    """The last one alone was compared, and CPU rose in the one before."""
    found = pd.concat(
        marks(**({"seconds": lambda rounds: rounds / 40} if number == session else {})).assign(session=number)
        for number in (1, 2, 3)
    ).reset_index(drop=True)
    assert steep(found) == ["s a round"]
    table = flatness(found, "sockets").set_index("figure")
    assert table.loc["s a round", "session"] == session
    assert table.index.is_unique


def test_a_process_that_ran_through_both_quarters_is_tested_and_one_that_started_again_is_not() -> None:
    """A client over Flower climbed from 442 to 460 MB, and the table had a client beside it alone."""
    growing: dict[str, Any] = {"client-0004 MB": lambda rounds: 200 + rounds / 10}
    cpu: dict[str, Any] = {"through": lambda rounds: rounds, "early": lambda rounds: (rounds - 120) % 640}
    for name in cpu:
        assert steep(marks(**growing, **{"client-0004 CPU s": cpu[name]})) == ["MB of client-0004"], name
    for again in (lambda rounds: rounds % 400, lambda rounds: np.where(rounds == 560, np.nan, rounds)):
        assert steep(marks(**growing, **{"client-0004 CPU s": again})) == []


def test_a_mark_after_the_servers_log_was_folded_in_is_left_out() -> None:
    sizes = 0.4 * np.arange(1, MARKS + 1) * 40
    table = flatness(marks(**{"server kB": lambda _: np.append(sizes[:-1], 1.0)}), "sockets")
    (after,) = table.loc[table["figure"] == "bytes a round of server's files", "quarter_4"]
    assert after == pytest.approx(400)
    grows = np.append(sizes[:-2], [2000.0, 1.0])
    assert steep(marks(**{"server kB": lambda _: grows})) == ["bytes a round of server's files"]


def test_the_help_says_what_is_played_and_what_each_option_does() -> None:
    words = [sys.executable, endurance.__file__, "--help"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "loses its folder" in said
    for option in ("--rounds", "--carrier", "--seed", "--write"):
        assert re.search(rf"^  {option}.*(  |\n {{20,}})\w", said, re.M), option


@every(
    ("carrier", "rounds", "early"),
    [
        ("sockets", 667, {"coordinator"}),
        ("flower", 667, {"coordinator", "superlink"}),
        ("flower", 67, {"coordinator", "superlink"}),
        ("flower", 16, {"coordinator", "superlink"}),
    ],
)
def test_the_carrier_is_killed_early_and_nodes_and_clients_at_any_time(
    carrier: str, rounds: int, early: set[str]
) -> None:
    found = endurance.kills(rounds, carrier, np.random.default_rng(0))
    assert {name for _, name in found if name in {"coordinator", "superlink"}} == early
    assert all(number <= rounds / 4 for number, name in found if name in early)
    last = endurance.STEADY[carrier]
    assert not {last, f"node of {last}"} & {name for _, name in found}
    assert any(name.startswith("node of") for _, name in found) == (carrier == "flower")


def test_a_node_that_ended_a_while_ago_is_started_again_and_one_that_runs_is_not(tmp_path: Path) -> None:
    """One that ends at its start was started 90 times in ten seconds."""
    ends, runs = endurance.NODES[:2]
    with endurance.federation(tmp_path) as own:
        own.start(ends, "true")
        own.start(runs, "sleep", "600")
        before = dict(own.processes)
        before[ends].wait()
        endurance.tend(own)
        assert own.processes == before
        os.utime(own.log(ends), (0, 0))
        endurance.tend(own)
        assert own.processes[ends] is not before[ends]
        assert own.processes[runs] is before[runs]


# Its processes have limits of their own, which say who is missing: 900 seconds to begin, 600 for a round.
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_federation_through_kills_a_rotation_and_a_lost_disk_loses_no_charge(tmp_path: Path) -> None:
    with endurance.federation(tmp_path) as own:
        found = endurance.endured(own, "sockets", 96, np.random.default_rng(1))
        counted = endurance.charges(own, "sockets")
    assert found.groupby("session")["round"].max().tolist() == [32, 32, 32]
    assert (counted["answered"] <= counted["charged"]).all()
    assert (counted["charged"] <= counted["ordered"]).all()
    assert counted["answered"].iloc[-1] > 80, "the client that is never killed"
