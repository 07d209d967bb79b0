"""A study whose rounds run in a ServerApp: the same rounds, lines, resuming and ends as over sockets."""

from __future__ import annotations

import signal
import stat
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from httpx import ConnectError
from support.coordinated import Federation, after, federation
from support.every import every
from support.grid_double import GridDouble, silent
from support.party_folders import CLEAR, MASKED, enrolled, made
from support.started import Started

from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError
from securefl.core.release import SERVER
from securefl.deployment.coordinator import run_deployed
from securefl.deployment.gathering import RunLost, TooFewParties
from securefl.deployment.status import status
from securefl.flower import studies, submitting
from securefl.flower.exchange import FRAME, UNANSWERED, GridExchange, relay
from securefl.flower.studies import client_app, play, server_app
from securefl.flower.submitting import APP, STOP, TALK, Submitted, follow, submit, talking
from securefl.storage.folder_lock import locked
from securefl.study.attended import presences
from securefl.study.interruption import Interrupted, Interruption

pytestmark = pytest.mark.usefixtures("built_once")


def lines(own: Federation) -> list[str]:
    return [one.line() for one in presences(own.records)]


def grid_of(own: Federation) -> GridDouble:
    """A node for each party that is up, numbered from 10 by the order of names."""

    def node(name: str, message: Message) -> Message:
        return relay(message, name, lambda request: own.exchange({name: request})[name])

    return GridDouble({10 + k: partial(node, name) for k, name in enumerate(own.names)})


class Asked(Interruption):
    """An interruption that a test asks for, in place of a signal."""

    def ask(self) -> None:
        self._heard = (signal.SIGINT, 0.0)


def soon(seconds: float) -> None:
    sleep(0.01)


def commanded(own: Federation, out: Path, begin: Any, wait: float = 0.0, **options: Any) -> None:
    """What the command does: it submits a run with `begin`, and follows it."""
    given = {"tell": own.shown.append, "say": own.said.append, "stop": Asked(), "pause": soon, **options}
    follow(own.root / SERVER, out, begin, wait=wait, deadline=60.0, **given)


def over_flower(
    own: Federation,
    grid: GridDouble,
    out: Path,
    ends: type[BaseException] | None = None,
    fresh: Any = None,
    app: Callable[..., None] = play,
    **options: Any,
) -> None:
    """Run the study with its command in a thread, and its app in this one, which holds the parties.

    ends: the error with which the app ends, as its process would.
    """
    submitted: Future[Mapping[str, Any]] = Future()

    def begin(config: Mapping[str, Any]) -> Submitted:
        submitted.set_result(config)
        return Submitted(name="run 7 of the SuperLink 'here'")

    def command() -> None:
        try:
            commanded(own, out, begin, **options)
        finally:
            submitted.cancel()

    def deployed(*words: Any, tell: Any, **more: Any) -> Any:
        def noted(arm: Any, seed: int, record: Mapping[str, Any]) -> None:
            own.records.append(record)
            tell(arm, seed, record)

        return run_deployed(*words, tell=noted, fresh=fresh, **more)

    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "run_deployed", deployed)
        run = pool.submit(command)
        with suppress(CancelledError), nullcontext() if ends is None else pytest.raises(ends):
            app(grid, submitted.result(60), clock=grid.clock, pause=grid.pause)
        run.result()


# Rounds ---------------------------------------------------------------------------------------------------


def test_a_study_over_flower_is_the_study_over_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two deployments have other keys and sessions, so their clients would draw other mini-batches.
    monkeypatch.setattr(Identity, "training", lambda own, session: lambda place: sha256(place).digest())
    said, models = [], []
    for how in ("sockets", "flower"):
        root = tmp_path / how
        root.mkdir()
        enrolled(root)
        with federation(root) as own:
            if how == "sockets":
                _, page = own.coordinate(root / "run")
            else:
                over_flower(own, grid_of(own), root / "run")
                page = root / "run" / "report.html"
        said.append([line for line in own.said if not line.startswith("Submitted run 7 ")])
        models.append([(record["round"], record["accuracy"]) for record in own.records])
        assert page.is_file()
    assert said[0] == said[1]
    assert models[0] == models[1]
    assert len(own.said) == len(said[1]) + 1, "a run is submitted once"


def test_a_node_that_goes_is_said_and_its_return_under_another_number_is_found(tmp_path: Path) -> None:
    enrolled(tmp_path)
    with federation(tmp_path) as own:
        grid = grid_of(own)
        gone = grid.nodes[11]
        fresh = after({1: lambda: grid.nodes.pop(11), 3: lambda: grid.nodes.update({99: gone})})
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


def test_too_few_parties_stop_it_with_the_reason(tmp_path: Path) -> None:
    enrolled(tmp_path, MASKED)
    with federation(tmp_path, MASKED) as own:
        grid = grid_of(own)
        grid.nodes = {10: grid.nodes[10]}
        with pytest.raises(TooFewParties, match=r"for round 1 .* client-0001 \(silent\), client-0002 \(sil"):
            over_flower(own, grid, tmp_path / "run", wait=3, ends=TooFewParties)
    assert own.rounds == []


# Two coordinators -------------------------------------------------------------------------------------------


def no_run(config: Mapping[str, Any]) -> Submitted:
    raise AssertionError("a second run was submitted")


def test_a_second_coordinator_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    enrolled(tmp_path)
    with federation(tmp_path) as own:

        def fresh(arm: Any, seed: int, record: Mapping[str, Any]) -> None:
            if record["round"] > 1:
                return
            with pytest.raises(ConfigError, match="is in use by process"):
                commanded(own, tmp_path / "other", no_run)
            with pytest.raises(ConfigError, match="is in use by process"):
                Federation(tmp_path).coordinate(tmp_path / "other")

        over_flower(own, grid_of(own), tmp_path / "run", fresh=fresh)
    assert len(own.rounds) == 4


def test_beside_a_coordinator_over_sockets_nothing_is_submitted(tmp_path: Path) -> None:
    enrolled(tmp_path)
    with locked(tmp_path / SERVER), pytest.raises(ConfigError, match="is in use by process"):
        commanded(Federation(tmp_path), tmp_path / "run", no_run)


def test_a_superlink_that_dies_before_the_run_starts_ends_the_command(tmp_path: Path) -> None:
    enrolled(tmp_path)

    def dead() -> str:
        raise ConfigError("Expected `flwr ls` to succeed, got a connection that is refused.")

    run = Submitted(name="run 8", ended=dead)
    with pytest.raises(RunLost, match="flwr ls"):
        commanded(Federation(tmp_path), tmp_path / "run", lambda config: run, clock=ticking())


def test_a_superlink_that_dies_ends_the_command_though_its_run_waits_for_it(tmp_path: Path) -> None:
    """Flower tries to reach a dead SuperLink without end, so the run neither ends nor says anything."""
    enrolled(tmp_path)
    waits = ExitStack()

    def begin(config: Mapping[str, Any]) -> Submitted:
        waits.enter_context(locked(Path(config[TALK])))
        return Submitted(name="run 8", ended=lambda: submitting.flwr("ls"))  # type: ignore[arg-type, return-value]

    def dead(*words: str) -> Mapping[str, Any]:
        raise ConfigError("Expected `flwr ls` to succeed, got a connection that is refused.")

    with waits, pytest.MonkeyPatch.context() as patch:
        patch.setattr(submitting, "flwr", dead)
        with pytest.raises(RunLost, match="no answer of its SuperLink"):
            commanded(Federation(tmp_path), tmp_path / "run", begin, clock=ticking())


def test_a_late_run_of_an_earlier_command_asks_nobody(tmp_path: Path) -> None:
    """Its command was killed. The next one removes what it left, and its own run is another."""
    enrolled(tmp_path)
    grid, server = GridDouble({10: lambda message: message}), tmp_path / SERVER
    late = server / "run" / "flower-late"
    late.mkdir(parents=True)
    config = {
        TALK: str(late),
        "server": str(server),
        "out": str(tmp_path / "run"),
        "wait": 0.0,
        "deadline": 9.0,
    }
    with pytest.raises(ConfigError, match="the command that submitted this run"):
        play(grid, config)
    with talking(server, print) as talk:
        assert stat.S_IMODE(talk.stat().st_mode) == 0o700
        assert not late.exists()
        with pytest.raises(ConfigError, match="the command that submitted this run"):
            play(grid, config)
    assert grid.seen == []
    assert not list(late.parent.glob("flower-*"))


# A run that is lost -----------------------------------------------------------------------------------------


@every(("study", "wave"), [(CLEAR, 0), (MASKED, 4)])
def test_a_superlink_that_dies_in_a_round_stops_the_command_and_another_goes_on(
    study: str, wave: int, tmp_path: Path
) -> None:
    """No party is to blame, so the round is not one of silent parties."""
    enrolled(tmp_path, study)
    with federation(tmp_path, study) as own:
        grid = grid_of(own)
        push, pushed = grid.push_messages, [0]

        def dying(messages: Any) -> list[str]:
            pushed[0] += len(own.records) == 2
            if pushed[0] > 3 * wave:
                raise ConnectError("the SuperLink is gone")
            return push(messages)

        grid.push_messages = dying  # type: ignore[method-assign]
        with pytest.raises(RunLost, match=r"run 7 .*'here'.* ConnectError: the SuperLink is gone"):
            over_flower(own, grid, tmp_path / "run", ends=ConnectError)
        assert [number for number, _ in own.rounds] == [1, 2]
        own.records.clear()
        over_flower(own, grid_of(own), tmp_path / "run")
    everybody = list(range(made(study).world.problem.clients))
    assert own.rounds == [(k, everybody) for k in range(1, 5)], "rounds 1 and 2 are of the first start"
    assert [record["round"] for record in own.shown] == [1, 2, 1, 2, 3, 4]
    assert status(tmp_path / "client-0000")["sessions"]["count"] == 1


def test_a_run_that_is_killed_without_a_word_stops_the_command(tmp_path: Path) -> None:
    enrolled(tmp_path)

    def killed(grid: GridDouble, config: Mapping[str, Any], **options: Any) -> None:
        talk = Path(config[TALK])
        with locked(talk), (talk / submitting.EVENTS).open("a") as events:
            events.write('{"line": "the last one"}\n{"line": "cut o')

    own = Federation(tmp_path)
    with pytest.raises(RunLost, match="its end: without a word"):
        over_flower(own, GridDouble({}), tmp_path / "run", app=killed)
    assert own.said[-1] == "the last one"


def ticking() -> Callable[[], float]:
    """A clock that is 20 seconds later at each look."""
    now = iter(range(0, 10**6, 20))
    return lambda: float(next(now))


def test_a_run_that_never_starts_says_where_the_reason_stands(tmp_path: Path) -> None:
    enrolled(tmp_path)
    how = iter(["", "", "finished:failed No module 'securefl'"])
    own, run = Federation(tmp_path), Submitted(name="run 8", ended=lambda: next(how))
    with pytest.raises(RunLost, match="failed No module"):
        commanded(own, tmp_path / "run", lambda config: run, clock=ticking())
    assert own.said == ["Submitted run 8. Waiting until it starts."]
    assert not list((tmp_path / SERVER / "run").glob("flower-*"))


# A command that ends ----------------------------------------------------------------------------------------


def test_a_run_ends_with_its_command_in_the_middle_of_a_wave(tmp_path: Path) -> None:
    """Otherwise a killed command's run would wait for a training of an hour, and hold the server's folder."""
    enrolled(tmp_path)
    with federation(tmp_path) as own, ExitStack() as command:
        grid = grid_of(own)
        grid.fates = {12: silent}
        talk = command.enter_context(talking(tmp_path / SERVER, print))

        def pause(seconds: float) -> None:
            grid.pause(seconds)
            if grid.now > 3:
                command.close()

        config = {TALK: str(talk), "server": str(tmp_path / SERVER), "out": str(tmp_path / "run")}
        play(grid, {**config, "wait": 0.0, "deadline": 1e6}, clock=grid.clock, pause=pause)
        assert grid.now < 10
        own.clock.now = 0.0
        own.coordinate(tmp_path / "run")
    assert len(own.rounds) == 4


def test_a_process_of_a_run_that_cannot_look_ends_soon_after_its_command(tmp_path: Path) -> None:
    """Flower may be trying to reach a dead SuperLink, for ever, with the server's folder held."""
    program = "from pathlib import Path; from securefl.flower import studies; studies._GRACE = 0.0; "
    program += f"studies._ending(Path({str(tmp_path / 'gone')!r}))"
    assert Started("-c", program).wait() == 1


def test_a_first_request_to_stop_lets_the_round_finish(tmp_path: Path) -> None:
    enrolled(tmp_path)
    stop = Asked()
    with federation(tmp_path) as own:

        def fresh(arm: Any, seed: int, record: Mapping[str, Any]) -> None:
            stop.ask()
            end = monotonic() + 30
            while not list((tmp_path / SERVER / "run").glob(f"flower-*/{STOP}")) and monotonic() < end:
                sleep(0.01)

        with pytest.raises(Interrupted) as interrupted:
            over_flower(own, grid_of(own), tmp_path / "run", fresh=fresh, stop=stop)
        assert interrupted.value.exit_code == 130
        assert own.rounds == [(1, [0, 1, 2])]
        own.records.clear()
        over_flower(own, grid_of(own), tmp_path / "run")
    assert own.rounds == [(k, [0, 1, 2]) for k in range(1, 5)]


def test_a_request_to_stop_before_the_run_starts_stops_at_once(tmp_path: Path) -> None:
    enrolled(tmp_path)
    stop = Asked()
    stop.ask()
    with pytest.raises(Interrupted):
        commanded(Federation(tmp_path), tmp_path / "run", lambda config: Submitted(name="run 8"), stop=stop)


# The packaged app -------------------------------------------------------------------------------------------


def test_the_app_is_submitted_with_its_config_and_installs_nothing(tmp_path: Path) -> None:
    words: list[tuple[str, ...]] = []

    def flwr(*told: str) -> Mapping[str, Any]:
        words.append(told)
        if told[0] == "run":
            config.append(tomllib.loads(Path(told[-1]).read_text()))
            return {"success": True, "run-id": "12"}
        return {"success": True, "runs": [{"status": states.pop(0), "status-details": "why\x1b"}]}

    config: list[Any] = []
    states = ["running", "finished:failed"]
    given = {"out": str(tmp_path / 'a "quoted" place'), "wait": 3.0}
    run = submit("here", given, flwr=flwr)
    assert run.name == "run 12 of the SuperLink 'here'"
    assert words[0][:3] == ("run", str(APP), "here")
    assert config == [given]
    assert run.ended() == ""
    assert run.ended() == "finished:failed why\\x1b"
    assert words[1] == ("ls", "here", "--run-id", "12")
    about = tomllib.loads((APP / "pyproject.toml").read_text())
    assert about["project"]["dependencies"] == []
    assert about["tool"]["flwr"]["app"]["components"]["serverapp"] == "securefl_study.server:app"


def test_every_word_of_the_run_config_has_a_default_in_the_app(tmp_path: Path) -> None:
    """Flower refuses a word that the app's own configuration lacks."""
    enrolled(tmp_path)
    told: list[Mapping[str, Any]] = []

    def begin(config: Mapping[str, Any]) -> Submitted:
        told.append(config)
        return Submitted(name="run 8", ended=lambda: "finished")

    with pytest.raises(RunLost):
        commanded(Federation(tmp_path), tmp_path / "run", begin, clock=ticking())
    about = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert {name: type(value) for name, value in about.items()} == {
        name: type(value) for name, value in told[0].items()
    }


def test_a_node_without_a_party_answers_with_the_constant_text() -> None:
    message = Message(RecordDict(), 1, FRAME)
    reply = client_app(message, Context(1, 1, {}, RecordDict(), {}))
    assert reply.error.reason == UNANSWERED


def test_the_app_by_itself_names_the_command() -> None:
    with pytest.raises(ConfigError, match="securefl party coordinate --flower"):
        server_app(GridDouble({}), Context(1, 1, {}, RecordDict(), {}))


# Who stands for whom ----------------------------------------------------------------------------------------


def test_neither_of_two_nodes_that_name_one_party_gets_its_request() -> None:
    """Either of them may be the one that lies."""
    asked, said = list[int](), list[str]()

    def node(number: int, name: str) -> Any:
        def ask(request: bytes) -> bytes:
            asked.append(number)
            return b"said " + request

        return lambda message: relay(message, name, ask)

    grid = GridDouble({10: node(10, "client-0000"), 11: node(11, "client-0001"), 66: node(66, "client-0001")})
    exchange = GridExchange(grid, deadline=60, say=said.append, clock=grid.clock, pause=grid.pause)
    requests = {name: b"to " + name.encode() for name in ("client-0000", "client-0001")}
    assert exchange(requests, True) == exchange(requests) == {"client-0000": b"said to client-0000"}
    assert asked == [10, 10]
    assert len(said) == 1
    grid.nodes = {k: one for k, one in grid.nodes.items() if k != 11}
    assert exchange(requests, True)["client-0001"] == b"said to client-0001", "the other one was stopped"
