"""A study whose requests a run of Flower carries: the same rounds, lines and resuming as over sockets."""

from __future__ import annotations

import socket
import threading
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from support.coordinated import Federation, federation
from support.grid_double import GridDouble, silent
from support.party_folders import CLEAR, MASKED, enrolled, made

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.release import SERVER
from securefl.deployment import folder as folders
from securefl.deployment.gathering import CarrierLost, TooFewParties
from securefl.deployment.messages import Carried, Wave, decode_envelope, encode_envelope
from securefl.deployment.party_setup import Made
from securefl.deployment.server import listening
from securefl.deployment.status import status
from securefl.flower import carrier
from securefl.flower.carrier import FlowerExchange, Submitted, carry, pass_on, server_app
from securefl.flower.exchange import FRAME, UNANSWERED, relay
from securefl.flower.submitting import APP, submit
from securefl.study.attended import presences


@pytest.fixture(autouse=True)
def _built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building a world takes a second, and every opening of a folder does it."""
    monkeypatch.setattr(Made, "of", classmethod(lambda cls, study, arm, seed, keeper=None: made(study.text)))


def lines(own: Federation) -> list[str]:
    return [one.line() for one in presences(own.records)]


def grid_of(own: Federation) -> GridDouble:
    """A node for each party that is up, numbered from 10 by the order of names."""

    def node(name: str, message: Message) -> Message:
        return relay(message, name, lambda request: own.exchange({name: request})[name])

    return GridDouble({10 + k: partial(node, name) for k, name in enumerate(own.names)})


def over_flower(
    own: Federation,
    grid: GridDouble,
    out: Path,
    wait: float = 0.0,
    ends: type[Exception] | None = None,
    **options: Any,
) -> Any:
    """Run the study with its coordinator in a thread. This one, which holds the parties, carries.

    ends: the error with which the carrier ends, as its process would.
    """
    path, submitted = own.root / SERVER / folders.RUN / "flower.sock", Event()

    def begin(where: Path) -> Submitted:
        assert where == path
        submitted.set()
        return Submitted(name="run 7 of the SuperLink 'here'")

    def coordinate() -> Any:
        try:
            with FlowerExchange(path, begin, deadline=60.0, say=own.said.append) as exchange:
                return own.coordinate(out, wait=wait, exchange=exchange, **options)
        finally:
            submitted.set()

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(coordinate)
        submitted.wait(60)
        if run.done():  # it needed no run
            return run.result()
        with nullcontext() if ends is None else pytest.raises(ends):
            carry(grid, path, clock=grid.clock, pause=grid.pause)
        return run.result()


# Rounds ---------------------------------------------------------------------------------------------------


def test_a_study_over_flower_is_the_study_over_sockets(tmp_path: Path) -> None:
    said, models = [], []
    for how in ("sockets", "flower"):
        root = tmp_path / how[0]  # a socket's path has 107 bytes at most
        root.mkdir()
        enrolled(root)
        with federation(root) as own:
            if how == "sockets":
                _, page = own.coordinate(root / "run")
            else:
                _, page = over_flower(own, grid_of(own), root / "run")
        said.append([line for line in own.said if not line.startswith("Submitted run 7 ")])
        models.append([(record["answered"], record["accuracy"]) for record in own.records])
        assert page.is_file()
    assert said[0] == said[1]
    assert models[0] == models[1]
    assert len(own.said) == len(said[1]) + 1, "a run is submitted once"


def test_a_node_that_goes_is_said_and_its_return_under_another_number_is_found(tmp_path: Path) -> None:
    enrolled(tmp_path)
    with federation(tmp_path) as own:
        grid = grid_of(own)
        nodes = dict(grid.nodes)

        def fresh(arm: Any, seed: int, record: Mapping[str, Any]) -> None:
            if record["round"] == 1:
                grid.nodes = {k: node for k, node in nodes.items() if k != 11}
            if record["round"] == 3:
                grid.nodes = {**grid.nodes, 99: nodes[11]}

        over_flower(own, grid, tmp_path / "run", fresh=fresh)
    assert own.rounds == [(1, [0, 1, 2]), (2, [0, 2]), (3, [0, 2]), (4, [0, 1, 2])]
    assert lines(own)[2] == "round 3: 2 of 3 answered; client-0001 silent since round 2"
    assert own.said.count("No node of client-0001 is connected to the SuperLink.") == 1


def test_two_nodes_that_name_one_party_are_both_left_out(tmp_path: Path) -> None:
    """A registered node lies about its party. It cannot take the party's place, and the operator reads so."""
    enrolled(tmp_path)
    with federation(tmp_path) as own:
        grid = grid_of(own)

        def liar(message: Message) -> Message:
            return relay(message, "client-0001", lambda request: b"nonsense")

        grid.nodes = {**grid.nodes, 66: liar}
        over_flower(own, grid, tmp_path / "run")
    assert own.rounds == [(k, [0, 2]) for k in range(1, 5)]
    assert own.said.count("Several nodes name client-0001, so none is used: stop all but one.") == 1


def test_a_node_that_never_answers_is_silent(tmp_path: Path) -> None:
    enrolled(tmp_path)
    with federation(tmp_path) as own:
        grid = grid_of(own)
        grid.fates = {12: silent}
        over_flower(own, grid, tmp_path / "run")
    assert own.rounds == [(k, [0, 1]) for k in range(1, 5)]


def test_too_few_parties_stop_it_with_the_reason(tmp_path: Path) -> None:
    enrolled(tmp_path, MASKED)
    with federation(tmp_path, MASKED) as own:
        grid = grid_of(own)
        grid.nodes = {10: grid.nodes[10]}
        with pytest.raises(TooFewParties, match=r"for round 1 .* client-0001 \(silent\), client-0002 \(sil"):
            over_flower(own, grid, tmp_path / "run", wait=3)
    assert own.rounds == []


def test_a_second_coordinator_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    enrolled(tmp_path)
    with federation(tmp_path) as own:

        def fresh(arm: Any, seed: int, record: Mapping[str, Any]) -> None:
            def submitted(path: Path) -> Submitted:
                raise AssertionError("a second run was submitted")

            second = FlowerExchange(tmp_path / "x.sock", submitted, deadline=5, say=own.said.append)
            with pytest.raises(ConfigError, match="is in use by process"):
                Federation(tmp_path).coordinate(tmp_path / "other", exchange=second)

        over_flower(own, grid_of(own), tmp_path / "run", fresh=fresh)
    assert len(own.rounds) == 4


# A run that is lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("study", "wave"), [(CLEAR, 0), (MASKED, 4)], ids=["entering", "in a sum"])
def test_a_run_that_ends_in_a_round_stops_the_command_and_another_goes_on(
    study: str, wave: int, tmp_path: Path
) -> None:
    """The SuperLink died: no party is to blame, so the round is not one of silent parties."""
    enrolled(tmp_path, study)
    with federation(tmp_path, study) as own:
        grid = grid_of(own)
        push, pushed = grid.push_messages, [0]

        def dying(messages: Any) -> list[str]:
            pushed[0] += len(own.records) == 2
            if pushed[0] > 3 * wave:
                raise ConnectionError("the SuperLink is gone")
            return push(messages)

        grid.push_messages = dying  # type: ignore[method-assign]
        with pytest.raises(CarrierLost, match=r"run 7 .*'here'"):
            over_flower(own, grid, tmp_path / "run", ends=ConnectionError)
        assert [number for number, _ in own.rounds] == [1, 2]
        own.records.clear()
        over_flower(own, grid_of(own), tmp_path / "run")
    assert own.rounds == [(k, [0, 1, 2]) for k in range(1, 5)], "rounds 1 and 2 are of the first start"
    assert status(tmp_path / "client-0000")["sessions"]["count"] == 1


def waiting(path: Path, run: Submitted, said: list[str], **options: Any) -> FlowerExchange:
    return FlowerExchange(path, lambda where: run, deadline=5.0, say=said.append, **options)


def ticking() -> Callable[[], float]:
    """A clock that is 20 seconds later at each look."""
    now = iter(range(0, 10**6, 20))
    return lambda: float(next(now))


def test_a_run_that_never_starts_says_where_the_reason_stands(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "server" / "run" / "f.sock"
    path.parent.parent.mkdir(mode=0o750)
    over = Submitted(name="run 8", ended=lambda: "finished:failed No module named 'securefl'")
    with pytest.raises(CarrierLost, match="failed No module named"):
        waiting(path, over, said, clock=ticking()).enter({"client-0000": b""})
    with pytest.raises(CarrierLost, match="300 s, got nothing"):
        waiting(path, Submitted(name="run 9"), said, clock=ticking()).enter({"client-0000": b""})
    assert said[0] == "Submitted run 8. Waiting until it starts, up to 300 s."
    assert not path.exists()


def test_the_carrier_ends_with_its_coordinator_in_the_middle_of_a_wave(tmp_path: Path) -> None:
    """Otherwise a killed coordinator's run would wait for a training of an hour."""
    path, grid = tmp_path / "run" / "f.sock", GridDouble({10: lambda message: message}, {10: silent})
    gone = threading.Event()

    def order(connection: socket.socket) -> None:
        line = carrier.Connection(connection)
        line.send(encode_envelope(Wave(seconds=1e6, entering=1, parties=("client-0000",))))
        line.send(b"a request")
        connection.close()
        gone.set()

    def pause(seconds: float) -> None:
        # The clock is not real, and the coordinator's thread is: it must not fall behind.
        assert gone.wait(60)
        grid.pause(seconds)

    with listening(path) as listener, ThreadPoolExecutor(1) as pool:
        coordinator = pool.submit(lambda: order(listener.accept()[0]))
        carry(grid, path, clock=grid.clock, pause=pause)
        coordinator.result()
    assert grid.now < 100


def test_a_late_run_of_an_earlier_coordinator_finds_no_socket(tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match="No such file"):
        carry(GridDouble({}), tmp_path / "flower-00000000.sock")


# The packaged app -------------------------------------------------------------------------------------------


def test_the_app_is_submitted_with_the_socket_and_installs_nothing(tmp_path: Path) -> None:
    words: list[tuple[str, ...]] = []

    def flwr(*told: str) -> Mapping[str, Any]:
        words.append(told)
        if told[0] == "run":
            config.append(tomllib.loads(Path(told[-1]).read_text()))
            return {"success": True, "run-id": "12"}
        return {"success": True, "runs": [{"status": states.pop(0), "status-details": "why\x1b"}]}

    config: list[Any] = []
    states = ["running", "finished:failed"]
    path = tmp_path / 'a "quoted" place' / "f.sock"
    run = submit("here", path, flwr=flwr)
    assert run.name == "run 12 of the SuperLink 'here'"
    assert words[0][:3] == ("run", str(APP), "here")
    assert config == [{"socket": str(path)}]
    assert run.ended() == ""
    assert run.ended() == "finished:failed why\\x1b"
    assert words[1] == ("ls", "here", "--run-id", "12")
    about = tomllib.loads((APP / "pyproject.toml").read_text())
    assert about["project"]["dependencies"] == []
    assert about["tool"]["flwr"]["app"]["components"]["serverapp"] == "securefl_study.server:app"


def test_a_node_without_a_party_answers_with_the_constant_text() -> None:
    message = Message(RecordDict(), 1, FRAME)
    reply = pass_on(message, Context(1, 1, {}, RecordDict(), {}))
    assert reply.error.reason == UNANSWERED


def test_the_app_by_itself_names_the_command() -> None:
    with pytest.raises(ConfigError, match="securefl party coordinate --flower"):
        server_app(GridDouble({}), Context(1, 1, {}, RecordDict(), {}))


# Who stands for whom ----------------------------------------------------------------------------------------


def test_neither_of_two_nodes_that_name_one_party_gets_its_request(tmp_path: Path) -> None:
    """Either of them may be the one that lies."""
    path, asked = tmp_path / "run" / "f.sock", list[int]()

    def node(number: int, name: str) -> Any:
        def ask(request: bytes) -> bytes:
            asked.append(number)
            return b"said " + request

        return lambda message: relay(message, name, ask)

    grid = GridDouble({10: node(10, "client-0000"), 11: node(11, "client-0001"), 66: node(66, "client-0001")})
    parties = ("client-0000", "client-0001")

    def order(connection: socket.socket) -> list[bytes | None]:
        with connection:
            line = carrier.Connection(connection)
            line.send(encode_envelope(Wave(seconds=60, entering=1, parties=parties)))
            for name in parties:
                line.send(b"to " + name.encode())
            carried = decode_envelope(line.receive() or b"", Carried, sender="flower")
            assert len(carried.notes) == 1
            return [line.receive() for _ in carried.parties]

    with listening(path) as listener, ThreadPoolExecutor(1) as pool:
        coordinator = pool.submit(lambda: order(listener.accept()[0]))
        carry(grid, path, clock=grid.clock, pause=grid.pause)
        assert coordinator.result() == [b"said to client-0000"]
    assert asked == [10]
