"""`securefl party coordinate`: its lines, exit codes and JSON, and command lines that say too little."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.coordinated import Federation
from support.grid_double import GridDouble
from support.party_folders import MASKED, build_once, enrolled

from securefl.commands.main import cli
from securefl.deployment import sockets
from securefl.deployment.gathering import TooFewParties
from securefl.flower import studies, submitting
from securefl.flower.exchange import relay
from securefl.flower.studies import play
from securefl.flower.submitting import Submitted


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    build_once(monkeypatch)
    monkeypatch.chdir(tmp_path)
    enrolled(tmp_path, MASKED)
    own = Federation(tmp_path, MASKED)
    asked: list[Any] = []

    def exchange(paths: Any, **options: Any) -> Any:
        asked.append(paths)
        return own.exchange

    monkeypatch.setattr(sockets, "SocketExchange", exchange)
    own.paths = asked  # type: ignore[attr-defined]
    yield own
    own.stop()


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, ["party", "coordinate", *words])


def test_it_ends_with_the_report_of_run_and_exit_code_0(own: Federation, tmp_path: Path) -> None:
    own.start()
    done = call("server", "--out", "run")
    assert done.exit_code == 0, done.output
    assert "round 4: 4 of 4 answered" in done.stderr
    assert "Report: run/report.html" in done.stdout
    assert "took part in 4 of 4 rounds" in done.stderr
    assert (tmp_path / "run" / "report.html").is_file()
    (paths,) = own.paths  # type: ignore[attr-defined]
    assert paths["client-0001"] == tmp_path / "client-0001" / "run" / "party.sock"
    # again: nothing is left to do, and no round is told anew
    again = call("server", "--out", "run")
    assert again.exit_code == 0
    assert "of 4 answered" not in again.stderr


def test_too_few_parties_is_exit_code_5_with_the_reason_and_the_way_on(own: Federation) -> None:
    own.start("client-0000", "client-0003")
    stopped = call("server", "--out", "run", "--wait", "0", "--socket", "client-0001=/srv/b.sock")
    assert stopped.exit_code == 5
    assert "Expected 3 clients, of which 2 are present for round 1 within 0 s" in stopped.stderr
    go_on = (
        "securefl party coordinate server --out run --wait 0 --deadline 3600 --socket client-0001=/srv/b.sock"
    )
    assert f"Go on with: {go_on}" in stopped.stderr
    assert own.paths[0]["client-0001"] == Path("/srv/b.sock")  # type: ignore[attr-defined]
    own.start("client-0001")
    done = CliRunner().invoke(cli, go_on.split()[1:])
    assert done.exit_code == 0, done.output
    assert "round 1: 3 of 4 answered; client-0002 silent since round 1" in done.stderr


def test_json_has_what_ledgers_are_asked_for_and_nothing_else_on_stdout(own: Federation) -> None:
    own.start()
    done = call("server", "--out", "run", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    spent = {"asked": 4, "answered": 4, "counted": "inf", "spent": "inf"}
    assert said["private"]["spending"] == [{"client": k, **spent} for k in range(4)]
    assert said["report"] == "run/report.html"
    assert "answered; " not in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            (("--socket", text), "Expected NAME=PATH, got")
            for text in ("client-0001", "client-0001=", "=/srv/x.sock")
        ),
        # For nan no wait ever ended.
        *(((option, "nan"), "numbers of seconds, got") for option in ("--wait", "--deadline")),
        (
            ("--flower", "here", "--socket", "client-0001=/srv/x.sock"),
            "Name sockets (--parties, --socket) or a SuperLink (--flower), not both.",
        ),
    ],
)
def test_wrong_usage_is_told(words: tuple[str, ...], said: str, own: Federation) -> None:
    done = call("server", *words)
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--socket", "client-0009=/srv/x.sock"),
            "Expected --socket with a party of the roster (client-0000, ",
        ),
        (
            ("--parties", "nowhere"),
            "Expected a folder with the parties' folders, got nowhere, which is none.",
        ),
        (("--out", "roster.jsonl"), "Expected a run folder, got roster.jsonl, which is a file."),
        (("--out", "client-0000"), "Expected a run folder, got client-0000, which is a party's folder."),
    ],
)
def test_legal_words_that_do_not_fit_are_our_errors(
    words: tuple[str, str], said: str, own: Federation, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert str(call("server", *words).exception).startswith(said)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_study_that_was_changed_after_its_plan_was_agreed_to(own: Federation, tmp_path: Path) -> None:
    """Each party refused it, and nobody told the operator why."""
    study = tmp_path / "server" / "study.toml"
    study.write_text(study.read_text().replace("max_retries = 2", "max_retries = 3"))
    own.start()
    done = call("server", "--out", "run")
    assert str(done.exception).startswith("Expected the plan of party.toml from study.toml, got another")


def test_a_clients_folder_is_refused(own: Federation) -> None:
    done = call("client-0000", "--out", "run")
    assert str(done.exception).startswith("Expected the server's folder, got that of client-0000")


# Over Flower ------------------------------------------------------------------------------------------------


@pytest.fixture
def over_flower(own: Federation, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """A SuperLink, whose run is a thread that has the parties in `started`. `run` has the run configs."""
    started: list[str] = []
    runs: list[Any] = []

    def submitted(superlink: str, config: Any) -> Submitted:
        def run() -> None:
            own.start(*started)
            nodes = {
                10 + k: lambda message, name=name: relay(
                    message, name, lambda request: own.exchange({name: request})[name]
                )
                for k, name in enumerate(started)
            }
            try:
                with suppress(TooFewParties):
                    play(GridDouble(nodes), config)
            finally:
                own.stop()

        runs.append(config)
        Thread(target=run).start()
        return Submitted(name=f"run 7 of the SuperLink {superlink!r}")

    monkeypatch.setattr(submitting, "submit", submitted)
    # A run prints into its own log. This one is in the command's process.
    monkeypatch.setattr(studies, "print", lambda *words, **options: None, raising=False)
    own.started, own.runs = started, runs  # type: ignore[attr-defined]
    return own


def test_over_flower_it_ends_as_over_sockets(over_flower: Federation, tmp_path: Path) -> None:
    over_flower.started += over_flower.names  # type: ignore[attr-defined]
    done = call("server", "--out", "run", "--flower", "here", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert [one["answered"] for one in said["private"]["spending"]] == [4, 4, 4, 4]
    assert said["report"] == "run/report.html"
    (config,) = over_flower.runs  # type: ignore[attr-defined]
    assert (config["server"], config["out"]) == (str(tmp_path / "server"), str(tmp_path / "run"))
    assert (config["wait"], config["deadline"]) == (300.0, 3600.0)
    again = call("server", "--out", "run", "--flower", "here")
    assert again.exit_code == 0, again.output
    assert "round 4 of 4" not in again.stdout
    assert "round    4 of 4" in again.stderr, "the progress of finished rounds is shown"


def test_over_flower_too_few_parties_is_exit_code_5_and_a_lost_run_1(
    over_flower: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_flower.started += ["client-0000", "client-0001"]  # type: ignore[attr-defined]
    stopped = call("server", "--out", "run", "--flower", "here", "--wait", "0")
    assert stopped.exit_code == 5, stopped.output
    assert "Expected 3 clients, of which 2 are present for round 1 within 0 s" in stopped.stderr
    go_on = "securefl party coordinate server --out run --flower here --wait 0 --deadline 3600"
    assert f"Go on with: {go_on}" in stopped.stderr
    lost = Submitted(name="run 8", ended=lambda: "finished:failed")
    monkeypatch.setattr(submitting, "submit", lambda superlink, config: lost)
    monkeypatch.setattr(submitting, "_ASK", 0.0)
    stopped = call("server", "--out", "run", "--flower", "here")
    assert stopped.exit_code == 1
    assert "finished:failed" in stopped.stderr
    assert "Go on with: securefl party coordinate server" in stopped.stderr
