"""The figures and the picture of `securefl ledger curve`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.accounting import Charge, Ledger, Terms, steps_event
from securefl.accounting.curve import Curve
from securefl.accounting.shared import SharedLedger
from securefl.commands.main import cli
from securefl.core.errors import ConfigError, DataError
from securefl.core.release import ReleaseKey

LOUD, STEPS = GaussianDpEvent(4.0), steps_event(0.1, 2.0, 3)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("curve") / "ledger.sqlite"
    waves: tuple[dict[str, DpEvent], ...] = ({"a": LOUD, "b": STEPS, "c": LOUD}, {"b": LOUD})
    with Ledger(path, Terms(unit="record", adjacency="add-remove", delta=1e-6)) as own:
        for number, wave in enumerate(waves, start=1):
            wants = [
                (
                    ReleaseKey(holder, b"s" * 32, number, 0, 0, "update"),
                    Charge(server=event, key_holder=NoOpDpEvent(), others=NonPrivateDpEvent()),
                )
                for holder, event in wave.items()
            ]
            assert not own.reserve(wants)
    return path


def typed(*words: object) -> Result:
    return CliRunner().invoke(cli, ["ledger", "curve", *map(str, words)])


def test_each_holder_and_party_has_its_figures(ledger: Path) -> None:
    lines = typed(ledger).output.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("b  ")] == [["b", "server"]]
    (loud,) = [line.split() for line in lines if "and 1 more" in line and " server " in line]
    own = Curve.of({LOUD: 1})
    epsilons = [f"{own.epsilon(delta):.3g}" for delta in (1e-3, 1e-5, 1e-6, 1e-7)]
    assert loud == ["a", "and", "1", "more", "server", "0.25", "0.0312", *epsilons, "98.1%", "91.8%"]
    (others,) = [line.split() for line in lines if "others" in line]
    assert others[:4] == ["a", "and", "2", "more"]
    assert others[5:] == ["infinite"] * 6 + ["0.0%", "0.0%"]


def test_scripts_read_points_of_the_curves(ledger: Path) -> None:
    found = json.loads(typed(ledger, "--json").output)
    assert found["delta"] == 1e-6
    by = {(*one["holders"], one["party"]): one for one in found["curves"]}
    assert set(by) == {
        ("a", "c", "server"),
        ("b", "server"),
        *(("a", "b", "c", one) for one in ("key-holder", "others")),
    }
    own, steps = Curve.of({STEPS: 1, LOUD: 1}), by["b", "server"]
    assert (steps["mu"], steps["rho"]) == (own.mu, own.rho)
    assert steps["delta"] == pytest.approx(own.delta(steps["epsilon"]))
    assert steps["miss"] == pytest.approx(own.miss(steps["false_alarm"]))
    assert by["a", "b", "c", "others"]["mu"] == "inf"
    (only, *_), names = json.loads(typed(ledger, "--json", "--holder", "b").output)["curves"], ["b"]
    assert only["holders"] == names
    with pytest.raises(ConfigError, match="such as a or b or c, got nobody"):
        raise typed(ledger, "--holder", "nobody").exception or AssertionError


def test_a_picture_is_drawn_of_who_spent_most(ledger: Path, tmp_path: Path) -> None:
    out = tmp_path / "curve.svg"
    assert f"Figure: {out}" in typed(ledger, "-o", out).output
    assert "against the server" in out.read_text()
    other = tmp_path / "b.svg"
    typed(ledger, "--holder", "b", "-o", other)
    assert other.read_bytes() == out.read_bytes()
    typed(ledger, "--holder", "a", "-o", other)
    assert other.read_bytes() != out.read_bytes()


def test_what_has_no_curve_is_refused_with_a_remedy(ledger: Path, tmp_path: Path) -> None:
    refused = typed(ledger, "-o", tmp_path / "curve.doc").exception
    assert isinstance(refused, ConfigError)
    assert ".svg" in str(refused)
    shared = tmp_path / "people.ledger"
    SharedLedger(
        shared, Terms(unit="record", adjacency="add-remove", delta=1e-6, budget=2.0), "0" * 64
    ).close()
    refused = typed(shared).exception
    assert isinstance(refused, DataError)
    assert f"securefl ledger runs {shared}" in str(refused)
    assert CliRunner().invoke(cli, ["ledger", "runs", str(shared)]).exit_code == 0


@pytest.mark.parametrize("command", ["show", "curve"])
def test_a_holder_without_releases_is_no_empty_ledger(command: str, ledger: Path) -> None:
    """It said "No releases.", with the code of success, of a holder whose name was mistyped."""
    said = CliRunner().invoke(cli, ["ledger", command, str(ledger), "--holder", "client b"])
    assert isinstance(said.exception, ConfigError)
    assert "such as a or b or c, got client b." in str(said.exception)
    assert CliRunner().invoke(cli, ["ledger", command, str(ledger), "--holder", "b"]).exit_code == 0
