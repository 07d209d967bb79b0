"""Under a finite epsilon a value beyond its bound is cut to it. Its owner reads so, and nobody else can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from flwr.app import Message
from support.coordinated import federation
from support.every import every
from support.grid_parties import Parties
from support.party_folders import enrolled
from support.private_studies import AVERAGING, private

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Value, ValueSpec
from securefl.commands.main import cli
from securefl.core.errors import RemoteProtocolError
from securefl.core.grid import Grid
from securefl.deployment.messages import TurnReply, decode_envelope
from securefl.deployment.session_store import CUT
from securefl.deployment.status import status
from securefl.engine.party.computing import Computing
from securefl.flower.exchange import relay
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.protecting import is_cut
from securefl.study.attended import presences

pytestmark = pytest.mark.usefixtures("built_once")

QUIET = private("fedavg", AVERAGING["fedavg"]).text
WILD = QUIET.replace("learning_rate = 0.5", "learning_rate = 1e5")
"""Private training whose steps are so long that no grid holds the update."""


def test_the_owner_reads_how_often_and_what_to_do(tmp_path: Path) -> None:
    assert WILD != QUIET
    enrolled(tmp_path, WILD)
    with federation(tmp_path, WILD) as own:
        own.coordinate(tmp_path / "run")
    assert [one.line() for one in presences(own.records)] == [
        "round 1: 4 of 4 answered",
        "round 2: 4 of 4 answered",
    ]
    said = status(tmp_path / "client-0001")
    assert said["missing"] == []
    assert said["refusals"] == []
    (cut,) = said["cut"]
    assert cut["times"] == 2
    assert cut["why"].startswith(
        "Expected 'update' within +-512, the bound of its grid, got a larger one: it "
    )
    assert cut["why"].endswith("A larger clip or bound needs a new plan, to which all parties agree.")
    shown = CliRunner().invoke(cli, ["party", "status", str(tmp_path / "client-0001")]).stdout
    assert "values cut to a bound: 2" in shown
    for text in (*own.said, *map(str, own.records)):
        assert "bound of its grid" not in text


def played(monkeypatch: pytest.MonkeyPatch, times: float) -> tuple[list[tuple[str, bytes]], list[int]]:
    """What the server gets if client 1 has its bound so many times, and the number of each diary's notes."""
    replies: list[tuple[str, bytes]] = []

    def recording(message: Message, name: str, ask: Callable[[bytes], bytes]) -> Message:
        def told(request: bytes) -> bytes:
            reply = ask(request)
            replies.append((name, reply))
            return reply

        return relay(message, name, told)

    real = Computing.value

    def value(self: Computing, task: Any, name: str, secret: Any) -> Value:
        own = real(self, task, name, secret)
        if task.client != 1:
            return own
        bound = self._contributions[name].spec.grid.bound  # an entry at the bound, or far beyond it
        return Value(clear=np.full(len(own.clear), bound * times))

    with monkeypatch.context() as patch:
        patch.setattr(Computing, "value", value)
        parties = Parties(QUIET, relay=recording)
        parties.played(parties.apart())
    return replies, [
        sum(one.text.startswith(CUT) for one in parties.files[name].diary.refusals())
        for name in parties.others
    ]


def test_the_servers_bytes_are_the_same_with_and_without_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    at, none = played(monkeypatch, 1.0)
    beyond, one = played(monkeypatch, 1e3)
    assert none == [0, 0, 0, 0]
    assert one == [0, 1, 0, 0], "otherwise nothing was cut, and the test compares nothing"
    # A reply to a request to enter has a visit, which is drawn anew in each process.
    turns = [[pair for pair in run if _is_turn(pair[1])] for run in (at, beyond)]
    assert len(turns[0]) >= 8
    assert turns[0] == turns[1]
    assert [len(data) for _, data in at] == [len(data) for _, data in beyond]


def _is_turn(data: bytes) -> bool:
    try:
        return bool(decode_envelope(data, TurnReply, sender="test"))
    except RemoteProtocolError:
        return False


SUM = {"name": "s", "reduction": "sum", "reveals": "a sum", "grid": Grid(step=1.0, bound=8.0)}
CLEAR = Plan(delta=1e-5, max_rounds=1, non_private=("s",))
NOISED = Plan(delta=1e-5, max_rounds=1, noise="local", noise_multiplier=1.0, adjacency="add-remove")
BOUNDED = {"sensitivity": {("record", "add-remove"): 1.0}}


@every(
    ("plan", "spec", "value", "weight", "speaks", "cut"),
    [
        (CLEAR, {}, Value(clear=np.array([8.0, -8.0])), 1.0, True, False),
        (CLEAR, {}, Value(clear=np.array([0.0, -8.1])), 1.0, True, True),
        (CLEAR, {}, Value(clear=np.array([0.0, -8.1])), 1.0, False, False),  # it abstains
        (CLEAR, {}, Value(clear=np.array([np.nan, 9.0])), 1.0, True, False),  # it answers as without records
        (NOISED, BOUNDED, Value(integers=np.array([8]), step=1.0), 1.0, False, False),
        (NOISED, BOUNDED, Value(integers=np.array([9]), step=1.0), 1.0, False, True),
        (NOISED, BOUNDED, Value(integers=np.array([2**62]), step=1.0), 0.5, False, True),
        (CLEAR, {"reduction": "none"}, Value(clear=np.array([99.0])), 1.0, True, False),
    ],
)
def test_which_values_are_cut(
    plan: Plan, spec: dict[str, Any], value: Value, weight: float, speaks: bool, cut: bool
) -> None:
    declared = ValueSpec(**{**SUM, **spec})  # type: ignore[arg-type]
    assert is_cut(Protection(plan, declared), value, weight, must_answer=speaks) is cut
