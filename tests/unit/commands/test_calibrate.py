"""The figures of `securefl calibrate` and `securefl ledger epsilon`."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.every import every

from securefl.commands.main import cli
from securefl.core.errors import SecureFLError


def call(*words: object) -> dict[str, float]:
    result = CliRunner().invoke(cli, [*map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_calibrate_prints_what_scripts_read() -> None:
    sensitivity = sqrt(85)  # of FedLog's 85 features, clipped to 1
    found = call(
        "calibrate", "--epsilon", 1, "--delta", 1e-5, "--releases", 100, "--sensitivity", sensitivity
    )
    assert set(found) == {"sigma", "noise_multiplier", "epsilon_if_paper"}
    assert found["sigma"] == pytest.approx(343.947242, abs=5e-7)
    assert found["epsilon_if_paper"] == pytest.approx(0.356277, abs=5e-7)
    assert found["sigma"] == pytest.approx(sensitivity * found["noise_multiplier"])


def test_calibrate_goes_both_ways() -> None:
    schedule = ("--delta", 1e-5, "--batch", 50, "--records", 1000, "--epochs", 1, "--rounds", 20)
    there = call("calibrate", "--epsilon", 2, *schedule)
    assert (there["sampling_rate"], there["steps"], there["rounds"]) == (0.05, 20, 20)
    assert 0.98 * 2 <= there["epsilon"] <= 2
    back = call(
        "calibrate",
        "--noise-multiplier",
        there["noise_multiplier"],
        "--delta",
        1e-5,
        "--sampling-rate",
        0.05,
        "--steps",
        400,
    )
    assert back["epsilon"] == pytest.approx(there["epsilon"], abs=1e-9)
    plain = call("calibrate", "--noise-multiplier", 2, "--delta", 1e-5, "--releases", 4)
    assert plain["epsilon"] == pytest.approx(4.3772, abs=1e-4)


MISSING = (
    ("--delta 1e-5 --sampling-rate 0.1 --steps 5", "neither"),
    ("--epsilon 1 --noise-multiplier 1 --delta 1e-5 --sampling-rate 0.1 --steps 5", "both"),
    ("--epsilon 1 --delta 1e-5 --sampling-rate 0.1", "schedule"),
    ("--epsilon 1 --delta 1e-5 --sampling-rate 0.1 --steps 5 --epochs 1", "both"),
    ("--epsilon 1 --delta 1e-5 --rounds 5 --steps 3", "--sampling-rate, or"),
    ("--epsilon 1 --delta 1e-5 --batch 50 --steps 3", "--records of"),
    ("--epsilon 1 --delta 1e-5 --sampling-rate 0.1 --steps 5 --releases 3", "no --releases"),
)


def test_calibrate_explains_what_is_missing() -> None:
    wrong = []
    for words, said in MISSING:
        result = CliRunner().invoke(cli, ["calibrate", *words.split()])
        if result.exit_code != 2 or said not in result.output or "Traceback" in result.output:
            wrong.append((words, result.output))
    assert wrong == []


@every("of", ["--epsilon", "--noise-multiplier"])
@every("sensitivity", ["0", "-1", "nan", "inf"])
def test_a_sensitivity_that_is_none_is_refused(sensitivity: str, of: str) -> None:
    words = ["calibrate", of, "1", "--delta", "1e-5", "--sensitivity", sensitivity]
    assert CliRunner().invoke(cli, words).exit_code == 2


def test_ledger_epsilon_reads_nested_events(tmp_path: Path) -> None:
    events = [
        {"repeat": 100, "events": [
            {"event": "poisson_gaussian", "sampling_probability": 0.02, "noise_multiplier": 1.1, "count": 50},
            {"event": "gaussian", "noise_multiplier": 10, "count": 1}]},
    ]  # fmt: skip
    path = tmp_path / "events.json"
    path.write_text(json.dumps(events))
    found = call("ledger", "epsilon", "--events", path, "--delta", 1e-5)
    assert found == {
        "epsilon": pytest.approx(9.4756, abs=6e-5),
        "rdp_epsilon": pytest.approx(10.2194, abs=6e-5),
    }
    path.write_text('[{"event": "non_private"}]')
    assert call("ledger", "epsilon", "--events", path, "--delta", 1e-5) == {
        "epsilon": "inf",
        "rdp_epsilon": "inf",
    }


BAD_EVENTS = (
    "",
    "{}",
    "[1]",
    '[{"event": "laplace"}]',
    '[{"event": "gaussian", "noise_multiplier": -1}]',
    '[{"event": "gaussian", "noise_multiplier": 1, "count": 1.5}]',
    '[{"event": "gaussian", "noise_multiplier": 1, "count": true}]',
    '[{"event": "gaussian", "noise_multiplier": 1, "count": 1000000001}]',
    '[{"repeat": -1, "events": []}]',
    '[{"repeat": true, "events": []}]',
    '[{"repeat": 1000000001, "events": []}]',
    '[{"event": "poisson_gaussian", "sampling_probability": 2, "noise_multiplier": 1}]',
    "[" * 50_000,
)


@every("text", BAD_EVENTS)
def test_events_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_text(text)
    result = CliRunner().invoke(cli, ["ledger", "epsilon", "--events", str(path), "--delta", "1e-5"])
    assert isinstance(result.exception, SecureFLError)
