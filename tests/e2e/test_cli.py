"""The command line: exit codes, what stands on which stream, advice in errors."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import securefl
from support.started import Started
from support.tiny_study import FEDAVG, FEDPROF, text

from securefl.study.packaged import packaged


def error_line(err: str) -> str:
    assert err.startswith("securefl: ")
    assert err.count("\n") == 1
    return err


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, float | int):
        yield float(value)


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(text(FEDAVG, FEDPROF))
    return path


# Run --------------------------------------------------------------------------------------------


def test_run_resume_report(toml: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """JSON alone on stdout; the same command again goes on at once with the same numbers."""
    out_folder = tmp_path / "out [1]"
    code, out, err = securefl(capfd, "run", toml, "--out", out_folder, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out, parse_constant=refuse)
    assert set(found) == {
        *("arms", "answer", "privacy_cost", "accuracy", "tested", "measures", "accounting", "ledgers"),
        *("private", "report"),
    }
    assert [arm["name"] for arm in found["arms"]] == ["FedAvg", "FedProf"]
    assert all(math.isfinite(number) for number in numbers(found))
    assert Path(found["report"]).is_file()
    ledgers = {path: path.read_bytes() for path in out_folder.rglob("ledger.sqlite")}
    assert len(ledgers) == 2
    assert securefl(capfd, "run", toml, "--out", out_folder, "--json") == (0, out, "")
    assert {path: path.read_bytes() for path in ledgers} == ledgers

    code, out, err = securefl(capfd, "run", toml, "--out", out_folder)
    assert code == 0
    said, head, *table = out.splitlines()
    assert said == found["answer"]
    assert head.split()[:2] == ["arm", "accuracy"]
    assert [line.split("  ")[0] for line in table[:5]] == [
        *("FedAvg", "FedProf", "all records in one place", "each client alone", "one constant answer")
    ]
    assert table[-3].startswith("Accounted alone")
    assert table[-2].startswith("Report: ")
    assert f"Going on with the run in {out_folder}." in err.splitlines()

    code, out, err = securefl(capfd, "report", out_folder)
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == [
        f"Report: {out_folder / 'report.html'}",
        f"With all figures, not for publication: {out_folder / 'private' / 'report.html'}",
    ]

    other = tmp_path / "other.toml"
    other.write_text(text(FEDAVG, rounds=3))
    code, out, err = securefl(capfd, "run", other, "--out", out_folder)
    assert (code, out) == (1, "")
    assert "holds a run of another configuration; choose another folder with --out" in err.splitlines()[-1]
    assert (out_folder / "study.toml").read_text() == toml.read_text()


def test_names_of_arms_are_not_markup(toml: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    toml.write_text(text(FEDAVG.replace('"FedAvg"', '"C [/b] [red]"')))
    code, _, err = securefl(capfd, "run", toml, "--out", tmp_path / "out")
    assert code == 0
    assert "C [/b] [red]" in err


# Bad input --------------------------------------------------------------------------------------


def test_a_missing_file_names_file_folder_and_command(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("SECUREFL_DATA", str(empty))
    toml.write_text(text().replace('"digits"', '"mnist"'))
    code, out, err = securefl(capfd, "run", toml, "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    line = error_line(err)
    for part in ("mnist/train-images", str(empty), "securefl data fetch mnist", "SECUREFL_DATA"):
        assert part in line
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_is_not_parsed(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from securefl.data.digests import PINNED

    monkeypatch.setenv("SECUREFL_DATA", str(tmp_path))
    for file in PINNED["mnist"]:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(b"not what was published")
    toml.write_text(text().replace('"digits"', '"mnist"'))
    code, _, err = securefl(capfd, "run", toml, "--out", tmp_path / "out")
    assert code == 1
    line = error_line(err)
    assert "Expected the published file" in line
    assert "securefl data fetch mnist" in line


# Lists ------------------------------------------------------------------------------------------


def test_studies(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = securefl(capfd, "studies")
    assert code == 0
    names = json.loads(securefl(capfd, "studies", "--json")[1])
    assert names == list(packaged())
    lines = out.splitlines()
    assert sorted(line.split()[0] for line in lines if line.startswith("  ")) == names
    assert lines.index("FedProf") < lines.index("  gas_turbine                   GasTurbine (FedProf v2)")
    assert max(map(len, lines)) <= 100
    assert securefl(capfd, "studies", "demo") == (0, packaged()["demo"], "")


def test_data_list(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("SECUREFL_DATA", str(tmp_path))
    code, out, err = securefl(capfd, "data", "list", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["folder"] == str(tmp_path)
    assert {"digits", "mnist", "gas_turbine"} <= set(found["names"])
    code, out, err = securefl(capfd, "data", "list")
    assert out.splitlines() == found["names"]
    assert err == f"folder: {tmp_path}\n"


# Interruption -----------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [pytest.param(False, marks=pytest.mark.slow), True])
def test_ctrl_c_ends_with_130_and_says_how_to_go_on(tmp_path: Path, as_json: bool) -> None:
    toml, out = tmp_path / "long.toml", tmp_path / "out"
    toml.write_text(text(FEDAVG, rounds=100_000))
    checkpoint = out / "private" / "arms" / "fedavg" / "seed-3" / "ledger.sqlite"
    words = ["-m", "securefl", "run", toml, "--out", out, *(["--json"] if as_json else [])]
    running = Started(*words, env={"COLUMNS": "40"})
    try:
        while not checkpoint.exists():
            assert running.poll() is None, running.stderr
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    finally:
        running.kill()
    assert running.stdout == ""
    assert "Traceback" not in running.stderr
    advice = f"Go on with: securefl run {out / 'study.toml'} --out {out}"
    assert advice in running.stderr.strip().splitlines()[-1]


def test_a_deleted_working_folder_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, err = securefl(capfd, "run", "demo")
    assert (code, err) == (
        1,
        "securefl: Expected a working folder, got one that was deleted. Change to another one: cd ~\n",
    )
