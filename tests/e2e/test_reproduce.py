"""The command `reproduce`: what it lists, what a table ends in, exit codes, advice in errors."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from support.command_line import securefl
from support.tiny_table import TABLE, install

from securefl.commands import reproduce as command
from securefl.published import Measure, Table, comparison, runs
from securefl.study.interruption import Interrupted


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, digits="TABLE", elsewhere="ELSEWHERE", lacking="LACKING")


def listed(capfd: pytest.CaptureFixture[str], out: Path) -> dict[str, dict[str, Any]]:
    code, printed, _ = securefl(capfd, "reproduce", "--out", out, "--json")
    assert code == 0
    return {row["name"]: row for row in json.loads(printed)}


def test_a_table_from_the_list_to_its_csv(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECUREFL_DATA", str(tmp_path / "nothing"))
    before = listed(capfd, tmp_path)
    assert set(before) == {"digits", "elsewhere"}
    assert [row["state"] for row in before.values()] == ["not begun"] * 2
    assert (before["digits"]["minutes"], before["digits"]["missing"]) == (1, {})
    assert "securefl data fetch mnist" in before["elsewhere"]["missing"]["mnist"]

    code, printed, err = securefl(capfd, "reproduce", "digits", "--out", tmp_path, "--workers", 1)
    assert code == 0
    assert "4/4 cells  one: FedProf #2" in err
    assert "Ours  published  0.600 " in printed
    assert "- study.rounds = 2; published is 500." in printed
    path = tmp_path / "digits" / "table.csv"
    traces = tmp_path / "digits" / "traces-rounds.png"
    assert printed.endswith(f"Table: {path}\nTraces: {traces}\n")
    assert traces.is_file()
    assert len(comparison.read(path, TABLE)) == 8

    assert listed(capfd, tmp_path)["digits"]["state"] == "done"
    code, printed, _ = securefl(capfd, "reproduce", "digits", "--out", tmp_path, "--json")
    told = json.loads(printed)
    assert code == 0
    assert (told["version"], len(told["figures"]), told["csv"]) == (TABLE.version, 4, str(path))
    assert told["traces"] == [str(traces)]
    code, printed, _ = securefl(capfd, "reproduce", "--out", tmp_path)
    assert code == 0
    assert "digits        1 min  done            Digits (Nobody, Table 1)" in printed
    assert "Fetch it with `securefl data fetch mnist`" in printed


def test_a_table_of_another_size_has_a_folder_and_a_command_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, printed, _ = securefl(
        capfd, "reproduce", "digits", "--seeds", 1, "--rounds", 1, "--out", tmp_path, "--workers", 1
    )
    assert code in (0, 4)  # one round may learn nothing
    path = tmp_path / "digits-seeds-1-rounds-1" / "table.csv"
    assert f"Table: {path}" in printed
    assert "no p, which 6 seeds could make significant, beside Avg" in printed
    assert path.read_text().startswith("# securefl reproduce digits --seeds 1 --rounds 1\n")
    assert listed(capfd, tmp_path)["digits"]["state"] == "not begun"


def test_systems_are_chosen_by_the_accuracy_that_the_table_measures(tmp_path: Path) -> None:
    """Systems with personal models were chosen by these, and measured by their global ones."""

    def run(asked: Table, home: Path) -> dict[str, Any]:
        """The later a candidate, the worse its personal model, and the better the global one."""
        (part,) = asked.parts
        cells = [(k, row.arm, seed) for k, row in enumerate(part.rows) for seed in part.study.study.seeds]
        rounds = [{"arm": arm, "seed": seed, "round": 1} for _, arm, seed in cells]
        metrics = pd.DataFrame(rounds).assign(
            accuracy=[0.9 - k / 100 for k, _, _ in cells], models="personal"
        )
        own = pd.DataFrame(rounds).assign(client=0, figure="global accuracy")
        own["value"] = [0.1 + k / 100 for k, _, _ in cells]
        return {part.name: SimpleNamespace(metrics=metrics, figures=own)}

    whole = replace(TABLE, measures=(Measure.GLOBAL,))
    found, _ = command._run_tuned(whole, tmp_path, run, Console(quiet=True))
    chosen = [one for one in found.differences if ": chosen " in one]
    assert len(chosen) == len(whole.parts[0].rows)
    assert all(float(re.findall(r"rate ([0-9.]+)", one)[0]) > 0.1 for one in chosen)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # some thirty runs, on a busy machine
@pytest.mark.usefixtures("forked_cells")
def test_a_tuned_table_from_its_choice_to_its_csv(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MANY", (0.5, 1.0, 2.0))  # the best one is likely at an edge
    monkeypatch.setattr(runs, "SIZE", 3)
    code, printed, err = securefl(
        capfd, "reproduce", "digits", "--tuned", "--out", tmp_path, "--workers", 1, "--json"
    )
    assert code in (0, 4)  # two rounds at a quarter of the rate may learn nothing
    told = json.loads(printed)
    assert told["csv"] == str(tmp_path / "digits-tuned" / "table.csv")
    assert {row["measure"] for row in told["figures"]} == {"last accuracy", "best accuracy", "rounds"}
    assert any("chosen local learning rate" in line for line in told["differences"])
    assert len(told["claims"]) == 3
    assert err == ""
    # A second call reads what is there.
    first = Path(told["csv"]).read_bytes()
    again, _, err = securefl(capfd, "reproduce", "digits", "--tuned", "--out", tmp_path, "--workers", 1)
    assert (again, Path(told["csv"]).read_bytes()) == (code, first)
    assert err.index("candidates a system") < err.index("Avg: chosen local learning rate")
    assert listed(capfd, tmp_path)["digits"]["tuned"] == "done"
    (tmp_path / "digits-tuned" / "table.csv").unlink()
    assert listed(capfd, tmp_path)["digits"]["tuned"] == "chosen, measuring"
    rmtree(next((tmp_path / "digits-tuned" / "choosing").glob("one/private/arms/*")))
    _, printed, _ = securefl(capfd, "reproduce", "--out", tmp_path)
    assert "with --tuned: choosing, 10 of 12 cells" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("digts",), 1, "did you mean `digits`?"),
        (("lacking",), 1, "got none called fedcorr"),
        (("elsewhere",), 1, "securefl data fetch mnist"),
        (("digits", "more"), 2, "Usage: securefl reproduce"),
        (("--tuned",), 2, "Expected a TABLE with --tuned"),
        (("--seeds", "3"), 2, "Expected a TABLE with --seeds 3"),
        (("digits", "--seeds", "0"), 2, "--seeds"),
        (("digits", "--rounds", "0"), 2, "--rounds"),
    ],
)
def test_what_it_refuses(
    arguments: tuple[str, ...],
    code: int,
    part: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECUREFL_DATA", str(tmp_path / "nothing"))
    found, out, err = securefl(capfd, "reproduce", *arguments, "--out", tmp_path / "out")
    assert (found, out) == (code, "")
    assert part in err
    assert not (tmp_path / "out").exists()


def test_a_stopped_table_says_how_to_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr("securefl.published.runs.run_table", stopped)
    code, out, err = securefl(capfd, "reproduce", "digits", "--out", tmp_path)
    assert (code, out) == (143, "")
    assert err.endswith(f"Go on with: securefl reproduce digits --out {tmp_path}\n")


def test_a_folder_of_another_version_hides_no_other_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "digits" / "one" / "study.toml"
    config.parent.mkdir(parents=True)
    config.write_text(TABLE.parts[0].text.replace("rounds = 2", "rounds = 9"))
    assert "those of another: one has 'rounds = 9'" in listed(capfd, tmp_path)["digits"]["state"]
    code, _, err = securefl(capfd, "reproduce", "digits", "--out", tmp_path)
    assert code == 1
    assert "Move the folder away" in err
