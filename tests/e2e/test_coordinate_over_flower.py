"""`securefl party coordinate --flower` on a real SuperLink, through a kill, a lost node and a wrong name."""

from __future__ import annotations

import csv
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("parties_by_hand.md").read_text(encoding="utf-8")
STUDY = re.search(r"^```toml\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)

# A SuperLink, four nodes and four parties start one after the other.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three clients and a key holder, each with a node of the packaged app, below a SuperLink."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower"))
    from network import register, superlink, supernode
    from parties import make_parties, parts, serve_parties
    from processes import federation

    assert STUDY is not None
    study = tmp_path / "study.toml"
    study.write_text(STUDY[1])
    names = parts(study)
    with federation(tmp_path) as own:
        make_parties(own, study, names)
        serve_parties(own, names)
        port = superlink(own, simulation=False)
        for name in set(names) - {"server"}:
            register(own, name)
            path = tmp_path / "parties" / name / "run" / "party.sock"
            config = f'securefl-party="{name}" securefl-socket="{path}"'
            supernode(own, name, port, config, app="securefl.flower.studies:client_app")
        yield own


def command(own: Any, *words: str) -> list[str]:
    server, out = own.folder / "parties" / "server", own.folder / "run"
    return [
        *(sys.executable, "-m", "securefl", "party", "coordinate"),
        str(server),
        "--out",
        str(out),
        *words,
    ]


def coordinated(own: Any, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(own, *words), env=own.environment, capture_output=True, text=True, check=False
    )


def test_a_study_over_flower_through_a_kill_a_lost_node_and_a_resumed_run(deployed: Any) -> None:
    own = deployed
    wrong = coordinated(own, "--flower", "nowhere")
    assert wrong.returncode == 1
    assert "securefl: Expected `flwr run` to succeed, got" in wrong.stderr
    assert "Traceback" not in wrong.stderr

    first = subprocess.Popen(
        command(own, "--flower", "here"), env=own.environment, stderr=subprocess.PIPE, text=True
    )
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("round 2: "):
            assert line == "round 2: 4 of 4 answered\n"
            first.send_signal(signal.SIGKILL)
            break
    first.stderr.close()
    assert first.wait() == -signal.SIGKILL
    # The SuperLink's run of the killed command ends by itself.
    own.wait("superlink", lambda: own.said("superlink").count("Finished task") == 1)

    own.kill("node of client-0002")
    second = coordinated(own, "--flower", "here", "--wait", "5")
    assert second.returncode == 0, second.stderr + own.said("superlink")[-3000:]
    said = second.stderr
    assert "Going on with the run in" in said
    with (own.folder / "run" / "private" / "metrics.csv").open() as file:
        rounds = list(csv.DictReader(line for line in file if not line.startswith("#")))
    answered = [row["answered"] for row in rounds]
    # The SuperLink's run goes on for a while without its command. If the clients answered the round that was
    # at hand then as four, they do not answer it as three.
    assert re.fullmatch("4{2,4}0?3{1,4}", "".join(answered)), said
    assert len(answered) == 6
    since = answered.index("3") + 1
    assert f"round 6: 3 of 4 answered; client-0002 silent since round {since}" in said.splitlines()
    assert (own.folder / "run" / "report.html").is_file()
    assert not list((own.folder / "parties" / "server" / "run").glob("flower-*"))

    own.kill("node of key-holder")
    own.kill("node of client-0001")
    (own.folder / "run").rename(own.folder / "done")
    third = coordinated(own, "--flower", "here", "--wait", "1")
    assert third.returncode == 5, third.stderr
    assert "--flower here" in third.stderr.splitlines()[-1]

    waits = subprocess.Popen(
        command(own, "--flower", "here", "--wait", "900"),
        env=own.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waits.stderr is not None
    assert any(line.startswith("Asking ") for line in waits.stderr)
    for beside in (("--flower", "here"), ()):
        refused = coordinated(own, *beside)
        assert refused.returncode == 1
        assert "is in use by process" in refused.stderr
    own.kill("superlink")
    rest = waits.stderr.read()
    waits.stderr.close()
    assert waits.wait() == 1, rest
    assert "--flower here" in rest.splitlines()[-1]
