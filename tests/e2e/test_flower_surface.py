"""Flower's surface over secure sums: each part is as in plain Flower to 1e-6, or refused with the reason.

docs/flower-strategies.md has the whole surface as a table. Each row names the test that holds it. Here are
the rows that no other file has.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import FedAvg, FedXgbBagging, FedXgbCyclic
from support.every import every
from support.flower_apps import (
    CLEAR,
    CLIENTS,
    COUNTS,
    MASKED,
    TWO,
    UPDATES,
    Given,
    HeardGrid,
    PlainGrid,
    app_of,
    grid_of,
    in_house,
    inner,
    plain,
    secured,
    start,
)

from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.deployment.local import LocalDeployment
from securefl.deployment.updates import Updates
from securefl.flower.exchange import FRAME, UNANSWERED
from securefl.flower.records import unwrapped, wrapped
from securefl.flower.secure_app import secure
from securefl.flower.secure_grid import SecureGrid, served

WITHIN = 1e-6
CKKS = replace(TWO, sum="ckks")
CONFIG = {"lr": 0.5}


def flat(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([array.numpy().astype(np.float64).ravel() for array in arrays.values()])


def lasting(apps: list[ClientApp], folder: Path | None, run: dict[str, Any] | None = None) -> Any:
    """Nodes whose contexts last, as Flower's do: plain ones, or behind the parties of a folder.

    The key holder's is one node more, which no strategy samples.
    """
    served, kind = apps, PlainGrid
    if folder is not None:
        beside = in_house(folder, len(apps))
        served, kind = [secure(app, beside=beside) for app in (*apps, ClientApp())], HeardGrid
    contexts = [
        Context(1, k + 10, {"partition-id": k, "site": f"s{k}"}, RecordDict(), dict(run or {}))
        for k in range(len(served))
    ]
    return kind({k + 10: lambda message, k=k: served[k](message, contexts[k]) for k in range(len(served))})


def both(
    folder: Path,
    apps: Callable[[], list[ClientApp]],
    strategy: Callable[[], Any] = FedAvg,
    *,
    plan: Plan = MASKED,
    updates: Updates = UPDATES,
    model: Callable[[], ArrayRecord] = start,
    run: dict[str, Any] | None = None,
    **words: Any,
) -> tuple[Any, Any]:
    """The results over secure sums and of plain Flower, from the same state of `random`."""
    words = {"num_rounds": 2, "train_config": ConfigRecord(dict(CONFIG)), **words}
    results = []
    for place in (folder, None):
        random.seed(5)
        of, own = apps(), strategy()
        double = lasting(of, place, run)
        if place is None:
            results.append(own.start(double, model(), **deepcopy(words)))
            continue
        with LocalDeployment(plan, updates, clients=len(of), folder=folder) as parties:
            grid = grid_of(parties, own, double, updates)
            results.append(own.start(grid, model(), **deepcopy(words)))
    return results[0], results[1]


def changed(arrays: ArrayRecord, change: Callable[[np.ndarray], Any]) -> dict[str, Array]:
    return {name: Array(change(array.numpy()).astype(np.float32)) for name, array in arrays.items()}


def usual() -> list[ClientApp]:
    return [inner(k) for k in range(CLIENTS)]


def alike(result: Any, expected: Any, within: float = WITHIN) -> None:
    assert list(result.arrays) == list(expected.arrays)
    for name, array in expected.arrays.items():
        assert result.arrays[name].dtype == array.dtype
        assert result.arrays[name].numpy().shape == array.numpy().shape
    np.testing.assert_allclose(flat(result.arrays), flat(expected.arrays), atol=within, rtol=0)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        own, wanted = getattr(result, kind), getattr(expected, kind)
        assert set(own) == set(wanted)
        for number, metrics in wanted.items():
            shown = {name: value for name, value in metrics.items() if name != "secret"}
            assert dict(own[number]) == pytest.approx(shown, abs=2e-6)


# Participation, evaluation, configuration -----------------------------------------------------------------


@every("plan", [CLEAR, MASKED, TWO])
def test_partial_participation_samples_and_weighs_as_plain_flower(plan: Plan, tmp_path: Path) -> None:
    def strategy() -> Any:
        return FedAvg(fraction_train=0.75, fraction_evaluate=0.75, min_train_nodes=3, min_evaluate_nodes=3)

    def four() -> list[ClientApp]:
        return [*usual(), inner(1)]

    alike(*both(tmp_path, four, strategy, plan=plan, num_rounds=3))


def test_a_servers_own_evaluation_sees_each_model(tmp_path: Path) -> None:
    def evaluated(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"mean": float(flat(arrays).mean()), "round": number})

    alike(*both(tmp_path, usual, evaluate_fn=evaluated))


def test_configurations_reach_the_app_as_they_were_sent(tmp_path: Path) -> None:
    sent = {
        "lr": 0.5,
        "epochs": 3,
        "name": "a b",
        "on": True,
        "rates": [0.5, 0.25],
        "tags": ["x", "y"],
        "no": [],
    }
    seen: list[list[str]] = []

    def noting() -> list[ClientApp]:
        noted: list[str] = []
        seen.append(noted)

        def note(message: Message, context: Context, call: Any) -> Any:
            config = sorted((n, type(one).__name__, one) for n, one in message.content["config"].items())
            noted.append(repr((message.metadata.message_type, config, list(message.content))))
            return call(message, context)

        return [inner(k, mods=[note]) for k in range(CLIENTS)]

    given = {"train_config": ConfigRecord(dict(sent)), "evaluate_config": ConfigRecord({"batch": 7})}
    alike(*both(tmp_path, noting, **given))
    secured, plain = seen
    assert len(secured) == 2 * 2 * CLIENTS
    assert sorted(secured) == sorted(plain)


def test_bytes_in_a_configuration_are_refused_by_name(tmp_path: Path) -> None:
    config = ConfigRecord({**CONFIG, "code": b"x"})
    double, own = lasting(usual(), tmp_path), FedAvg()
    with (
        LocalDeployment(MASKED, UPDATES, clients=CLIENTS, folder=tmp_path) as parties,
        pytest.raises(ConfigError, match="'code' of another type"),
    ):
        own.start(grid_of(parties, own, double), start(), 1, train_config=config)


def renamed(number: int) -> ClientApp:
    def train(came: Given, message: Message, context: Context) -> tuple[Given, Given]:
        rate = float(message.content["settings"]["lr"])
        own = {n: (a * rate + number).astype(np.float32) for n, a in came.items()}
        return own, {"weight": COUNTS[number], "loss": 1.0 + number}

    def evaluate(came: Given, *_: Any) -> Given:
        return {"weight": COUNTS[number], "accuracy": float(came["b"][0])}

    return app_of(train, evaluate, names=("model", "said"))


def test_keys_of_records_are_those_of_the_strategy(tmp_path: Path) -> None:
    def strategy() -> Any:
        return FedAvg(weighted_by_key="weight", arrayrecord_key="model", configrecord_key="settings")

    alike(*both(tmp_path, lambda: [renamed(k) for k in range(CLIENTS)], strategy))


# Contexts, mods, models ------------------------------------------------------------------------------------


def personal(number: int) -> ClientApp:
    """Keeps a head of its own in its state, and shares the body: the state lasts over rounds and kinds."""

    def train(came: Given, message: Message, context: Context) -> tuple[Given, Given]:
        kept = context.state.array_records.get("head")
        head = np.zeros(3) if kept is None else kept["h"].numpy()
        head = head + number + float(str(context.node_config["site"])[1:])
        context.state["head"] = ArrayRecord({"h": Array(head)})
        rounds = context.state.config_records.get("rounds", ConfigRecord({"n": 0}))
        context.state["rounds"] = ConfigRecord({"n": int(rounds["n"]) + 1})
        scale = float(context.run_config["scale"])
        own = {n: (a * 0.5 + head.sum() * scale).astype(np.float32) for n, a in came.items()}
        return own, {"num-examples": COUNTS[number], "loss": float(head[0])}

    def evaluate(came: Given, message: Message, context: Context) -> Given:
        head, n = context.state["head"]["h"].numpy(), context.state["rounds"]["n"]
        return {"num-examples": COUNTS[number], "accuracy": float(head[0]) + float(n)}

    return app_of(train, evaluate)


def test_an_app_keeps_its_state_and_a_model_of_its_own_over_rounds(tmp_path: Path) -> None:
    alike(*both(tmp_path, lambda: [personal(k) for k in range(CLIENTS)], num_rounds=3, run={"scale": 0.01}))


def modded(number: int) -> ClientApp:
    """An app with a mod for all messages, one for training alone, and a lifespan."""

    def doubling(message: Message, context: Context, call: Any) -> Message:
        reply = call(message, context)
        arrays = reply.content.array_records.get("arrays")
        if arrays is not None:
            reply.content["arrays"] = ArrayRecord(changed(arrays, lambda values: values * 2))
        return reply  # type: ignore[no-any-return]

    app, open_ = ClientApp(mods=[doubling]), list[int]()

    @app.lifespan()
    def lifespan(context: Context) -> Any:
        open_.append(1)
        yield
        open_.pop()

    @app.train(mods=[doubling])
    def train(message: Message, context: Context) -> Message:
        assert open_
        own = {
            n: Array((a.numpy() * 0.1 + number).astype(np.float32))
            for n, a in message.content["arrays"].items()
        }
        metrics = MetricRecord({"num-examples": COUNTS[number], "loss": 1.0})
        return Message(RecordDict({"arrays": ArrayRecord(own), "metrics": metrics}), reply_to=message)

    return app


def test_mods_and_lifespans_of_an_app_run_as_in_plain_flower(tmp_path: Path) -> None:
    apps = [modded(k) for k in range(CLIENTS)]
    result, expected = both(tmp_path, lambda: apps, lambda: FedAvg(fraction_evaluate=0.0))
    alike(result, expected)
    assert abs(flat(result.arrays)).max() > 1


LAYOUTS: dict[str, Any] = {
    "float32": {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)},
    "float64": {"w": np.linspace(-1, 1, 6).reshape(3, 2)},
    "float16": {"w": np.linspace(-1, 1, 6).astype(np.float16)},
    "all three": {"a": np.ones(2, np.float16), "b": np.ones((1, 2), np.float32), "c": np.ones(3)},
    "a number": {"w": np.array(0.5, np.float32)},
    "an empty array": {"w": np.ones(2, np.float32), "e": np.ones((0, 3), np.float32)},
    "in Fortran's order": {"w": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))},
    "many dimensions": {"w": np.ones((1, 2, 1, 2, 1, 2), np.float32)},
    "names with dots": {"layer.0.weight": np.ones(2, np.float32), "layer.0.bias": np.zeros(1, np.float32)},
}


def same_dtype(number: int) -> ClientApp:
    def train(came: Given, *_: Any) -> tuple[Given, Given]:
        own = {n: (a * 0.5 + number).astype(a.dtype) for n, a in reversed(list(came.items()))}
        return own, {"num-examples": COUNTS[number], "loss": 1.0}

    return app_of(train)


@every("arrays", LAYOUTS.values())
def test_layouts_come_back_as_they_went(arrays: Any, tmp_path: Path) -> None:
    result, expected = both(
        tmp_path,
        lambda: [same_dtype(k) for k in range(CLIENTS)],
        lambda: FedAvg(fraction_evaluate=0.0),
        model=lambda: ArrayRecord({name: Array(own) for name, own in arrays.items()}),
    )
    # An app may return its arrays in another order. The server's stays that of the model.
    assert list(result.arrays) == list(arrays)
    coarse = any(own.dtype == np.float16 for own in arrays.values())
    for name, array in expected.arrays.items():
        assert result.arrays[name].dtype == array.dtype
        np.testing.assert_allclose(
            result.arrays[name].numpy(), array.numpy(), atol=2e-3 if coarse else WITHIN, rtol=0
        )


# What is refused ------------------------------------------------------------------------------------------


@every("strategy", [FedXgbBagging, FedXgbCyclic])
def test_trees_are_refused_by_name(strategy: Any) -> None:
    with pytest.raises(ConfigError, match=f"got {strategy.__name__}"):
        served(strategy(), UPDATES, CLEAR)


def test_a_strategy_of_flowers_earlier_interface_is_refused_with_its_module() -> None:
    with pytest.raises(ConfigError, match=r"flwr\.server\.strategy"):
        served(LegacyFedAvg(), UPDATES, CLEAR)  # type: ignore[arg-type]


def test_an_app_of_flowers_earlier_interface_gives_no_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Old(NumPyClient):  # type: ignore[misc]
        def fit(self, parameters: Any, config: Any) -> Any:
            return parameters, 10, {}

    def apps() -> list[ClientApp]:
        return [inner(0), ClientApp(client_fn=lambda context: Old().to_client()), inner(2)]

    double, own = lasting(apps(), tmp_path), FedAvg(fraction_evaluate=0.0)
    with (
        caplog.at_level("INFO"),
        LocalDeployment(CLEAR, UPDATES, clients=CLIENTS, folder=tmp_path) as parties,
    ):
        result = own.start(grid_of(parties, own, double), start(), 1, train_config=ConfigRecord(dict(CONFIG)))
    assert set(result.train_metrics_clientapp) == {1}
    assert "round 1: 2 of 3 answered; client-0001 sent no value since round 1" in caplog.messages


def configured(change: Callable[[list[Message]], list[Message]]) -> Any:
    """FedAvg whose messages are changed, as a caller may do it on the object."""
    strategy = FedAvg(fraction_evaluate=0.0)
    make = strategy.configure_train
    strategy.configure_train = lambda *args: change(list(make(*args)))  # type: ignore[method-assign]
    return strategy


def different(messages: list[Message]) -> list[Message]:
    content = deepcopy(messages[1].content)
    content["arrays"] = ArrayRecord({n: Array(a.numpy() + 1) for n, a in content["arrays"].items()})
    return [messages[0], Message(content, messages[1].metadata.dst_node_id, "train"), *messages[2:]]


def of_type(kind: str) -> Callable[[list[Message]], list[Message]]:
    return lambda messages: [Message(one.content, one.metadata.dst_node_id, kind) for one in messages]


def to_a_stranger(messages: list[Message]) -> list[Message]:
    return [Message(messages[0].content, 99, "train"), *messages[1:]]


REFUSED: dict[str, tuple[Any, str]] = {
    "a model for each client": (different, "one content for the whole cohort, got several"),
    "a custom type of training": (of_type("train.custom"), "train or evaluate messages of FedAvg"),
    "a custom type of evaluation": (of_type("evaluate.custom"), "train or evaluate messages of FedAvg"),
    "a query": (of_type("query"), "train or evaluate messages of FedAvg"),
    "two types at once": (
        lambda messages: [*of_type("evaluate")(messages[:1]), *messages[1:]],
        "train or evaluate messages of FedAvg",
    ),
    "a node outside the roster": (to_a_stranger, r"nodes of parties of the roster, got \[99\]"),
}


@every(("change", "said"), REFUSED.values())
def test_messages_that_no_sum_serves_are_refused_and_reach_no_node(
    change: Any, said: str, tmp_path: Path
) -> None:
    double, own = lasting(usual(), tmp_path), configured(change)
    with LocalDeployment(MASKED, UPDATES, clients=CLIENTS, folder=tmp_path) as parties:
        grid = grid_of(parties, own, double)
        before = len(double.seen)
        with pytest.raises(LocalProtocolError, match=said):
            own.start(grid, start(), 1, train_config=ConfigRecord(dict(CONFIG)))
        assert len(double.seen) == before


# A lying SuperLink ----------------------------------------------------------------------------------------


def lying(lie: Any) -> Callable[[int, Message], Message | None]:
    """A SuperLink that does this to the frames of the masked sum, and leaves hellos and entering alone."""
    seen: dict[int, list[Message]] = {}

    def meddle(node: int, message: Message) -> Message | None:
        if message.metadata.message_type != FRAME:
            return message
        seen.setdefault(node, []).append(deepcopy(message))
        return lie(node, message, seen)  # type: ignore[no-any-return]

    return meddle


def with_frame(message: Message, frame: bytes) -> Message:
    other = deepcopy(message)
    other.content = wrapped(frame)
    return other


def flipped(at: float) -> Any:
    def lie(node: int, message: Message, seen: Any) -> Message:
        frame = bytearray(unwrapped(message.content, sender="server"))
        if node == 11 and len(seen[node]) > 1:
            frame[int(at * (len(frame) - 1))] ^= 1
        return with_frame(message, bytes(frame))

    return lie


def to_another(node: int, message: Message, seen: Any) -> Message:
    """Client 1 gets what was meant for client 0."""
    return seen[10][-1] if node == 11 and len(seen.get(10, [])) > 1 else message  # type: ignore[no-any-return]


def again(node: int, message: Message, seen: Any) -> Message:
    """Client 1 gets its last frame once more, in place of the newest."""
    return seen[node][-2] if node == 11 and len(seen[node]) > 2 else message  # type: ignore[no-any-return]


def cut(node: int, message: Message, seen: Any) -> Message:
    frame = unwrapped(message.content, sender="server")
    return with_frame(message, frame[: len(frame) // 2]) if node == 11 and len(seen[node]) > 1 else message


def dropped(node: int, message: Message, seen: Any) -> Message | None:
    return None if node == 11 and len(seen[node]) > 1 else message


LIES = {
    "a changed first byte": flipped(0.0),
    "a changed byte in the middle": flipped(0.5),
    "a changed last byte": flipped(1.0),
    "a message for another": to_another,
    "an old message": again,
    "half a message": cut,
    "no message": dropped,
}


def hears(folder: Path, plan: Plan, lie: Any, *, replies: bool = False) -> tuple[Any, HeardGrid]:
    double, own = secured(folder), FedAvg(fraction_evaluate=0.0)
    if replies:
        double.fates = {11: lie}
    else:
        double.meddle = lying(lie)
    with LocalDeployment(plan, UPDATES, clients=CLIENTS, folder=folder) as parties:
        grid = SecureGrid(double, own, UPDATES, parties.server, deadline=0.2, patience=0.3)
        return own.start(grid, start(), 1, train_config=ConfigRecord(dict(CONFIG))), double


def only(*numbers: int) -> np.ndarray:
    """Plain Flower's model over these clients."""
    grid = plain()
    grid.nodes = {10 + k: grid.nodes[10 + k] for k in numbers}
    own = FedAvg(fraction_evaluate=0.0)
    return flat(own.start(grid, start(), 1, train_config=ConfigRecord(dict(CONFIG))).arrays)


@every("plan", [MASKED, TWO, CKKS])
@every("lie", LIES.values())
def test_a_lying_superlink_gets_the_mean_of_the_others_or_nothing(
    lie: Any, plan: Plan, tmp_path: Path
) -> None:
    result, double = hears(tmp_path, plan, lie)
    if result.arrays:
        np.testing.assert_allclose(flat(result.arrays), only(0, 2), atol=WITHIN, err_msg="without client 1")
    assert {one.metadata.message_type for one in double.seen} <= {FRAME, "query.securefl_hello"}
    assert not any(b"secret" in one for one in double.came)


def reply_of(change: Callable[[bytes], bytes]) -> Any:
    def fate(node: int, reply: Message) -> list[tuple[int, Message]]:
        if reply.has_content() and "frame" in reply.content.get("securefl", {}):
            reply.content = wrapped(change(unwrapped(reply.content, sender="x")))
        return [(0, reply)]

    return fate


@every(
    "change",
    [
        lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]),
        lambda frame: frame[: len(frame) // 2],
        lambda frame: b"",
    ],
)
def test_changed_replies_cost_their_client_the_round(change: Any, tmp_path: Path) -> None:
    result, _ = hears(tmp_path, MASKED, reply_of(change), replies=True)
    if result.arrays:
        assert np.allclose(flat(result.arrays), only(0, 2), atol=WITHIN)


def test_a_superlink_that_asks_an_app_itself_gets_a_constant(tmp_path: Path) -> None:
    app = secure(inner(0), beside=in_house(tmp_path, CLIENTS))
    content = RecordDict({"arrays": start(), "config": ConfigRecord(dict(CONFIG))})
    for kind in ("train", "train.custom", "evaluate", "query", "query.securefl_simulation"):
        reply = app(Message(content, 10, kind), Context(1, 10, {"partition-id": 0}, RecordDict(), {}))
        assert reply.error.reason == UNANSWERED


# The table ------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"`(tests/[\w/]+\.py)`: ((?:`test_\w+`(?:, )?)+)")


def test_each_row_of_the_table_names_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "flower-strategies.md").read_text(encoding="utf-8")
    table = page.split("## The whole surface")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    for row in rows:
        named = _TEST.findall(row)
        assert named, row
        for path, tests in named:
            source = (ROOT / path).read_text(encoding="utf-8")
            for name in re.findall(r"`(test_\w+)`", tests):
                assert f"def {name}(" in source, f"{path} has no {name}"
