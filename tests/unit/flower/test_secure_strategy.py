"""One wrap on each side: a strategy and an app of Flower under the terms of their run config."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian
from support.every import every
from support.flower_apps import Given, PlainGrid, app_of
from support.grid_double import silent

from securefl.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.core.release import SERVER
from securefl.deployment import roster
from securefl.deployment.local import LocalDeployment, socket_of
from securefl.flower import exchange, secure, secure_strategy, secured_strategy
from securefl.flower.records import wrapped
from securefl.flower.secure_app import by_context, own_folder, simulated
from securefl.flower.terms import AppTerms

NODES = 10
BASE = {"securefl.terms": "without-noise", "securefl.metrics": "loss", "securefl.evaluation": "accuracy"}
SMALL = {
    **BASE,
    "securefl.plan.min_cohort_size": 3,
    "securefl.plan.max_cohort_size": 3,
    "securefl.plan.min_honest": 2,
    "securefl.plan.corrupt": 0.0,
    "securefl.plan.dropout": 0.0,
    "securefl.plan.max_client_weight": 0.5,
}


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.linspace(-1, 1, 8).astype(np.float32)), "n": Array(np.array(3))})


def stepping(secured: bool) -> ClientApp:
    def train(came: Given, message: Message, context: Context) -> tuple[Given, Given]:
        own = int(context.node_config["partition-id"])
        stepped = (came["w"] * 0.5 + np.float32(own)).astype(np.float32)
        return {**came, "w": stepped}, {"num-examples": 20, "loss": float(own)}

    app = app_of(train, lambda came, *_: {"num-examples": 20, "accuracy": float(came["w"][0])})
    return secure(app) if secured else app


@pytest.fixture(autouse=True)
def passing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Short paths for sockets: a folder of its own in place of /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def nodes(config: Any, count: int = NODES, *, secured: bool = True) -> PlainGrid:
    def node(number: int) -> Any:
        app = stepping(secured)
        own = {"partition-id": number, "num-partitions": count}
        context = Context(7, 10 + number, own, RecordDict(), dict(config))
        return lambda message: app(message, context)

    return PlainGrid({10 + k: node(k) for k in range(count)})


def server_context(config: Any) -> Context:
    return Context(7, 1, {}, RecordDict(), dict(config))


def values(result: Any) -> np.ndarray:
    return np.asarray(result.arrays["w"].numpy())


@pytest.mark.parametrize(
    ("config", "count", "family"),
    [
        (BASE, NODES, FedAvg),
        pytest.param(BASE, NODES, FedAdam, marks=pytest.mark.slow),
        ({**SMALL, "securefl.plan.sum": "two-server"}, 4, FedAdam),
        ({**SMALL, "securefl.plan.sum": "ckks"}, 4, FedAvg),
        pytest.param({**SMALL, "securefl.plan.sum": "two-server"}, 4, FedAvg, marks=pytest.mark.slow),
        pytest.param({**SMALL, "securefl.plan.sum": "ckks"}, 4, FedAdam, marks=pytest.mark.slow),
    ],
)
def test_two_wraps_end_in_plain_flowers_model(config: Any, count: int, family: Any, passing: Path) -> None:
    clients = count - (count == 4)
    strategy = secure_strategy(family(), server_context(config))
    result = strategy.start(nodes(config, count), model(), num_rounds=2)
    expected = family().start(nodes({}, clients, secured=False), model(), num_rounds=2)
    # Flower adds in float32, in the order of arrival: ten terms lose ten roundings a round.
    np.testing.assert_allclose(values(result), values(expected), atol=2e-6, rtol=2 * 10 * 2**-24)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        for number, metrics in getattr(expected, kind).items():
            assert dict(getattr(result, kind)[number]) == pytest.approx(dict(metrics), abs=2e-6)
    assert result.arrays["n"].numpy() == 3
    assert result.arrays["n"].dtype == "int64", "the server keeps its own, with its dtype"
    assert list(passing.iterdir()) == [], "the simulation's parties are gone with it"


def test_a_folder_in_the_run_config_keeps_the_ledgers(passing: Path) -> None:
    folder = passing / "kept"
    config = {**BASE, "securefl.parties": str(folder)}
    for sessions, opened in ((1, [1]), (1, []), (2, [1])):
        own = config if sessions == 1 else {**config, "securefl.sessions": sessions}
        result = secure_strategy(FedAvg(), server_context(own)).start(nodes(own), model(), num_rounds=1)
        assert list(result.train_metrics_clientapp) == opened, "without noise, a run more needs more sessions"
    assert (folder / "client-0003" / "ledger.sqlite").exists()


def test_a_strategy_that_no_sum_serves_is_refused_before_any_node_is_asked() -> None:
    with pytest.raises(ConfigError, match="got FedMedian"):
        secure_strategy(FedMedian(), server_context(BASE))
    with pytest.raises(ConfigError, match=r"fraction_evaluate=0\.0"):
        secure_strategy(FedAvg(), server_context({**BASE, "securefl.evaluation": ""}))
    with pytest.raises(ConfigError, match="beside the app"):
        secure_strategy(FedAvg(), server_context({}))


@every(
    ("change", "said"),
    [
        ({"securefl.server": "/a", "securefl.parties": "/b"}, "got both"),
        ({"securefl.server": 3}, r"securefl.*server"),
        ({"securefl.sessions": 0}, "at least 1"),
        ({"securefl.server": "/a", "securefl.sessions": 2}, "the server has no say"),
        ({"securefl.deadline": 0}, r"securefl.*deadline.*got 0"),
        ({"securefl.patience": "soon"}, r"securefl.*patience.*got 'soon'"),
    ],
)
def test_a_wrong_place_is_refused_by_its_key(change: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        secure_strategy(FedAvg(), server_context({**BASE, **change}))


def test_its_steps_are_no_way_around_the_sums() -> None:
    strategy = secure_strategy(FedAvg(), server_context(BASE))
    for step in (strategy.aggregate_train, strategy.aggregate_evaluate):
        with pytest.raises(LocalProtocolError, match="Call `start`"):
            step(1, [])
    for configure in (strategy.configure_train, strategy.configure_evaluate):
        with pytest.raises(LocalProtocolError, match="Call `start`"):
            configure(1, model(), ConfigRecord(), PlainGrid({}))


def test_nodes_without_the_wrap_are_said_and_asked_nothing() -> None:
    config = {**BASE, "securefl.patience": 0.1}
    grid = nodes(config, 3, secured=False)
    plain = dict(grid.nodes)

    def refusing(node: int) -> Any:
        def reply(message: Message) -> Message:
            with pytest.raises(ValueError, match="function registered"):
                plain[node](message)
            return Message(Error(2), reply_to=message)

        return reply

    grid.nodes = {node: refusing(node) for node in plain}
    with pytest.raises(ConfigError, match=r"app = secure\(app\)"):
        secure_strategy(FedAvg(), server_context(config)).start(grid, model(), num_rounds=1)
    assert {one.metadata.message_type for one in grid.seen} == {"query.securefl_simulation"}


def test_a_first_node_that_is_dead_does_not_stop_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_PATIENCE", 0.1)
    config = {**BASE, "securefl.patience": 0.5, "securefl.deadline": 0.5}
    grid = nodes(config, 11)
    grid.fates = {10: silent}
    result = secure_strategy(FedAvg(), server_context(config)).start(grid, model(), num_rounds=1)
    assert values(result)[0] == pytest.approx(-0.5 + np.mean(range(1, 11)), abs=1e-6)


# Folders and sockets ------------------------------------------------------------------------------------


def test_a_link_in_place_of_the_folder_is_refused(passing: Path) -> None:
    folder = simulated(server_context(BASE))
    (passing / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(passing / "elsewhere")
    with pytest.raises(ConfigError, match="alone can write to"):
        own_folder(folder, make=True)


def test_a_strategy_starts_in_no_folder_that_others_can_write_to(passing: Path) -> None:
    context = server_context(BASE)
    folder = simulated(context)
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match=r"user \d+ alone"):
        secure_strategy(FedAvg(), context).start(nodes(BASE), model(), num_rounds=1)


def test_a_file_in_place_of_the_folder_is_refused(passing: Path) -> None:
    path = passing / "file"
    path.touch(mode=0o600)
    with pytest.raises(ConfigError, match="alone can write to"):
        own_folder(path)


def test_a_node_of_a_simulation_without_a_server_says_who_makes_the_folder(passing: Path) -> None:
    node = Context(1, 2, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {})
    with pytest.raises(ConfigError, match=r"secure_strategy"):
        by_context(node)


def test_a_node_names_its_party_in_its_configuration() -> None:
    said = {"securefl-party": "client-0001", "securefl-socket": "/run/a"}
    simulated_too = {**said, "partition-id": 3, "num-partitions": 4}
    for config in (said, simulated_too):
        assert by_context(Context(1, 2, dict(config), RecordDict(), {})) == ("client-0001", Path("/run/a"))
    for half in (
        {"securefl-party": "client-0001"},
        {"securefl-socket": "/x", "partition-id": 1, "num-partitions": 2},
        {},
    ):
        with pytest.raises(ConfigError, match="securefl-party and securefl-socket"):
            by_context(Context(1, 2, dict(half), RecordDict(), {}))


# A deployment -------------------------------------------------------------------------------------------


def deployed_nodes(root: Path, count: int, **more: int) -> PlainGrid:
    """Nodes that are told their parties and sockets."""

    def node(number: int) -> Any:
        app, name = stepping(True), f"client-{number:04}"
        place = {"securefl-party": name, "securefl-socket": str(socket_of(root, name))}
        context = Context(7, 10 + number, {**place, "partition-id": number, **more}, RecordDict(), {})
        return lambda message: app(message, context)

    return PlainGrid({10 + k: node(k) for k in range(count)})


@contextmanager
def deployed(root: Path, config: Any, count: int, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Parties that are served on sockets, and the folder of a server that has its keys and their roster."""
    terms = AppTerms.of(config, [])
    with LocalDeployment(terms.plan, terms.updates, clients=count, folder=root) as parties:
        (root / SERVER).mkdir()
        lines = [roster.line_of(member) for member in parties.pinned.members.values()]
        (root / SERVER / "roster.jsonl").write_text("\n".join(lines))
        kept = parties.server.record.enrolled
        patch.setattr(secured_strategy.keys, "read", lambda folder, name: kept)
        yield


def test_a_deployment_names_the_servers_folder_and_each_party(
    passing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**SMALL, "securefl.server": str(passing / SERVER), "securefl.deadline": 20.0}
    grid = deployed_nodes(passing, 3)
    with deployed(passing, SMALL, 3, monkeypatch):
        result = secure_strategy(FedAvg(), server_context(config)).start(grid, model(), num_rounds=2)
    expected = FedAvg().start(nodes({}, 3, secured=False), model(), num_rounds=2)
    np.testing.assert_allclose(values(result), values(expected), atol=1e-6, rtol=0)


def test_other_terms_at_the_server_are_refused_by_every_party(
    passing: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**SMALL, "securefl.server": str(passing / SERVER), "securefl.deadline": 20.0}
    other = {**config, "securefl.plan.max_rounds": 3}
    grid = deployed_nodes(passing, 3)
    with deployed(passing, SMALL, 3, monkeypatch), caplog.at_level("INFO"):
        result = secure_strategy(FedAvg(), server_context(other)).start(grid, model(), num_rounds=1)
    assert not result.train_metrics_clientapp
    (line,) = [one for one in caplog.messages if one.startswith("round 1") and "evaluation" not in one]
    assert line.count("refused the order since round 1") == 3


def test_a_simulated_server_in_a_deployment_reaches_no_party(
    passing: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run config has no folder of the server, so it makes parties and keys of its own."""
    config = {**SMALL, "securefl.patience": 0.2, "securefl.deadline": 20.0}
    with deployed(passing, SMALL, 3, monkeypatch):
        with pytest.raises(ConfigError, match=r"config, securefl\.server"):
            secure_strategy(FedAvg(), server_context(config)).start(
                deployed_nodes(passing, 3), model(), num_rounds=1
            )
        nodes_that_say_how_many = deployed_nodes(passing, 3, **{"num-partitions": 3})
        with caplog.at_level("INFO"):
            result = secure_strategy(FedAvg(), server_context(config)).start(
                nodes_that_say_how_many, model(), num_rounds=1
            )
    assert not result.train_metrics_clientapp
    (line,) = [one for one in caplog.messages if one.startswith("round 1") and "evaluation" not in one]
    assert line.count("refused the order since round 1") == 3


def test_a_folder_that_anybody_else_may_write_is_refused_and_a_made_one_is_the_users_alone(
    passing: Path,
) -> None:
    """A group of the machine could put its own socket in the party's place as well as all users could."""
    folder = passing / "parties"
    own_folder(folder, make=True)
    assert folder.stat().st_mode & 0o777 == 0o700
    for mode, taken in ((0o755, True), (0o750, True), (0o770, False), (0o720, False), (0o702, False)):
        folder.chmod(mode)
        with nullcontext() if taken else pytest.raises(ConfigError):
            own_folder(folder)


def test_a_folder_that_belongs_to_another_user_is_refused(
    passing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = passing / "parties"
    own_folder(folder, make=True)
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    with pytest.raises(ConfigError):
        own_folder(folder)


def test_a_wrapped_app_takes_its_own_user_unless_it_is_told_another(
    passing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def send(path: Path, request: bytes, **given: Any) -> bytes:
        asked.append((path.name, given["user"]))
        raise RemoteProtocolError("nobody", sender="party")

    monkeypatch.setattr("securefl.flower.secure_app.send", send)
    app = secure(ClientApp(), beside=lambda context: ("client-0000", passing / "s"))
    message = Message(content=wrapped(b"a frame"), dst_node_id=1, message_type=exchange.FRAME, ttl=1.0)
    for config in (
        {},
        {"securefl-user": 1001},
        {"securefl-user": "root"},
        {"securefl-user": "nobody-of-this-name"},
    ):
        app(message, Context(1, 1, config, RecordDict(), {}))
    assert asked == [("s", os.getuid()), ("s", 1001), ("s", 0), ("null", os.getuid())]


def test_a_node_whose_folder_others_may_write_names_no_party(passing: Path) -> None:
    folder = passing / "parties"
    own_folder(folder, make=True)
    config = {"partition-id": 0, "num-partitions": 2}
    node = Context(1, 2, dict(config), RecordDict(), {"securefl.parties": str(folder)})
    assert by_context(node)[1].is_relative_to(folder)
    folder.chmod(0o770)
    with pytest.raises(ConfigError):
        by_context(node)
