"""Integers and booleans of a model: each client keeps its own, and none of them leaves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedYogi
from support.every import every
from support.flower_apps import (
    CLEAR,
    CLIENTS,
    MASKED,
    UPDATES,
    Given,
    app_of,
    context,
    grid_of,
    in_house,
    node,
    plain,
    secured,
)

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.deployment.local import LocalDeployment
from securefl.flower.records import Layout, Task
from securefl.flower.secure_app import secure

MODEL = {
    "weight": np.linspace(-1, 1, 6).astype(np.float32).reshape(2, 3),
    "seen": np.array(0, np.int64),
    "mask": np.array([True, True, False]),
    "bias": np.zeros(3, np.float32),
    "levels": np.array([250, 3], np.uint8),
}


LOSS = {"num-examples": 10, "loss": 1.0}


def model(values: Any = MODEL) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(own)) for name, own in values.items()})


def batch_norm(number: int, seen: list[Any]) -> ClientApp:
    """An app with BatchNorm's counter: it counts one batch more than its number, in every round."""

    def train(came: Given, message: Message, context: Context) -> tuple[Given, Given]:
        seen.append(("train", number, list(came), came["seen"], came["mask"]))
        own = {name: one + np.float32(number) if one.dtype.kind == "f" else one for name, one in came.items()}
        own |= {"seen": came["seen"] + number + 1, "mask": ~came["mask"]}
        return own, {"num-examples": 10 + number, "loss": 1.0}

    def evaluate(came: Given, message: Message, context: Context) -> Given:
        seen.append(("evaluate", number, list(came), came["seen"], came["mask"]))
        return {"num-examples": 10, "accuracy": 0.5}

    return app_of(train, evaluate)


def remembering(folder: Path, apps: list[ClientApp]) -> Any:
    """The double, whose nodes keep their state between messages as Flower's do."""
    double, beside = secured(folder, apps), in_house(folder, CLIENTS)
    states = [context(k) for k in range(CLIENTS)]
    secure_apps = [secure(app, beside=beside) for app in apps]
    double.nodes = {k + 10: lambda message, k=k: secure_apps[k](message, states[k]) for k in range(CLIENTS)}
    return double


def trained(folder: Path, strategy: Any, seen: list[Any], *, rounds: int = 2, first: Any = None) -> Any:
    apps = [batch_norm(k, seen) for k in range(CLIENTS)]
    with LocalDeployment(MASKED, UPDATES, clients=CLIENTS, folder=folder) as deployment:
        grid = grid_of(deployment, strategy, remembering(folder, apps))
        return strategy.start(grid, first or model(), num_rounds=rounds)


@every("strategy", [FedAvg, FedAvgM, FedAdam, FedYogi])
def test_floats_are_plain_flowers_and_each_client_counts_on(strategy: Any, tmp_path: Path) -> None:
    seen: list[Any] = []
    result = trained(tmp_path, strategy(), seen)
    floats = {name: own for name, own in MODEL.items() if own.dtype.kind == "f"}
    expected = strategy().start(_floats_alone(), model(floats), num_rounds=2)
    for name in floats:
        np.testing.assert_allclose(
            result.arrays[name].numpy(), expected.arrays[name].numpy(), atol=1e-6, err_msg=name
        )
    for name in ("seen", "mask", "levels"):
        np.testing.assert_array_equal(result.arrays[name].numpy(), MODEL[name], err_msg="the server's own")
    for number in range(CLIENTS):
        own = [one for one in seen if one[1] == number]
        assert [one[0] for one in own] == ["train", "evaluate"] * 2
        assert {tuple(one[2]) for one in own} == {tuple(MODEL)}, "the order of the model"
        step = number + 1
        assert [int(one[3]) for one in own] == [0, step, step, 2 * step]
        assert [one[3].dtype for one in own] == [np.int64] * 4
        assert [one[4].tolist()[0] for one in own] == [True, False, False, True]


def _floats_alone() -> Any:
    """Plain Flower over the same clients, with the floats of the model."""

    def of(number: int) -> ClientApp:
        return app_of(
            lambda came, *_: (
                {n: a + np.float32(number) for n, a in came.items()},
                {"num-examples": 10 + number, "loss": 1.0},
            ),
            lambda *_: {"num-examples": 10, "accuracy": 0.5},
        )

    grid = plain()
    grid.nodes = {k + 10: node(of(k), k) for k in range(CLIENTS)}
    return grid


def test_a_local_array_that_an_app_returns_in_another_dtype_is_not_kept(tmp_path: Path) -> None:
    """The app would get it back in the next round, in place of the array that its model has."""
    seen: list[Any] = []

    def wider(came: Given, *_: Any) -> tuple[Given, Given]:
        seen.append((came["seen"].dtype, int(came["seen"])))
        return {**came, "seen": np.array(7, np.int32)}, LOSS

    apps, own = [app_of(wider)] * CLIENTS, FedAvg(fraction_evaluate=0.0)
    with LocalDeployment(MASKED, UPDATES, clients=CLIENTS, folder=tmp_path) as deployment:
        own.start(grid_of(deployment, own, remembering(tmp_path, apps)), model(), num_rounds=2)
    assert seen == [("int64", 0)] * 2 * CLIENTS


def test_what_stays_local_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="securefl"):
        trained(tmp_path, FedAvg(), [])
    said = [one for one in caplog.messages if "stay local" in one]
    assert len(said) == 1, "once a run"
    assert "seen, mask, levels" in said[0]
    assert "Plain Flower would average them" in said[0]


def test_a_counter_in_no_frame_reaches_the_server(tmp_path: Path) -> None:
    """The client's own counter is 2^62 and more: no message to the server has its bytes."""
    secret = 2**62 + 12345
    app = app_of(lambda came, *_: ({**came, "seen": np.array(secret, np.int64)}, LOSS))
    double, own = secured(tmp_path, [app, app, app]), FedAvg(fraction_evaluate=0.0)
    with LocalDeployment(CLEAR, UPDATES, clients=CLIENTS, folder=tmp_path) as deployment:
        result = own.start(grid_of(deployment, own, double), model(), num_rounds=1)
    assert int(result.arrays["seen"].numpy()) == 0
    assert double.came
    for forms in (str(secret).encode(), repr(secret.to_bytes(8, "little"))[2:-1].encode()):
        assert not any(forms in one for one in double.came)


@every(
    ("arrays", "said"),
    [
        ({"n": np.zeros(2, np.int64), "m": np.ones(1, bool)}, "one array of float16.*got n, m"),
        ({"w": np.zeros(2, np.float32), "z": np.zeros(1, np.complex64)}, "'z' of complex64"),
        ({"w": np.zeros(2, np.float32), "m": np.zeros(2**24 + 1, bool)}, "at most 16777216 integers"),
        ({}, "an empty ArrayRecord"),
    ],
)
def test_a_layout_that_no_sum_has_is_refused(arrays: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Layout.of(model(arrays))


def task(values: Any = MODEL) -> Task:
    arrays = model(values)
    layout = Layout.of(arrays)
    return Task(
        layout=layout,
        arrays_key="arrays",
        config_key="config",
        weight_key="num-examples",
        config={"lr": 0.5, "layers": ["a", "b"]},
        local=layout.own(arrays),
    )


def test_a_task_comes_back_with_its_local_arrays() -> None:
    came = Task.decoded(task().encoded())
    assert came.layout == task().layout
    for name in came.layout.local:
        np.testing.assert_array_equal(came.local[name].numpy(), MODEL[name])
        assert came.local[name].dtype == str(MODEL[name].dtype)


def test_a_large_mask_of_one_value_is_short_and_one_of_many_is_refused_with_its_name() -> None:
    ones = {"w": np.zeros(2, np.float32), "m": np.ones((1000, 1000), bool)}
    assert len(task(ones).encoded()) < 1000
    np.testing.assert_array_equal(Task.decoded(task(ones).encoded()).local["m"].numpy(), ones["m"])
    mixed = {**ones, "m": np.arange(10**6).reshape(1000, 1000) % 3 > 0}
    with pytest.raises(ConfigError, match=r"arrays m .*masks"):
        task(mixed).encoded()


CHANGED = {
    "a fraction": lambda said: said[3].__setitem__(0, [0.5]),
    "a text": lambda said: said[3].__setitem__(0, ["0"]),
    "a truth value": lambda said: said[3].__setitem__(0, [True]),
    "beyond its type": lambda said: said[3].__setitem__(2, [256, 3]),
    "too few": lambda said: said[3].__setitem__(1, [1, 1]),
    "none": lambda said: said[3].__setitem__(1, []),
    "one array fewer": lambda said: said[3].pop(),
    "one array more": lambda said: said[3].append([0]),
    "more than a model may have": lambda said: (
        said[0].__setitem__(2, ["mask", "bool", [2**24 + 1]]) or said[3].__setitem__(1, [1])
    ),
    "a bomb": lambda said: said[0].__setitem__(1, ["seen", "int64", [2**30, 2**30]]),
    "no list": lambda said: said.__setitem__(3, 7),
    "no values": lambda said: said.pop(),
    "no configuration": lambda said: said.__setitem__(2, None),
    "a text for the configuration": lambda said: said.__setitem__(2, "w"),
    "pairs for the configuration": lambda said: said.__setitem__(2, [["lr", 0.1]]),
}


@every("change", CHANGED.values())
def test_a_changed_task_is_refused(change: Any) -> None:
    said = json.loads(task().encoded())
    change(said)
    with pytest.raises(RemoteProtocolError, match="a task as securefl"):
        Task.decoded(json.dumps(said).encode())


def test_an_app_sees_its_message_as_plain_flower_sends_it(tmp_path: Path) -> None:
    """Source, destination, type and group are those of the server's message, not of a reply."""

    def noting(seen: list[Any]) -> ClientApp:
        def train(came: Given, message: Message, context: Context) -> tuple[Given, Given]:
            own = message.metadata
            seen.append((own.src_node_id, own.dst_node_id, own.message_type, own.reply_to_message_id))
            return came, LOSS

        return app_of(train)

    config = ConfigRecord({"lr": 0.5})
    seen: list[Any] = []
    own = FedAvg(fraction_evaluate=0.0)
    with LocalDeployment(CLEAR, UPDATES, clients=CLIENTS, folder=tmp_path) as deployment:
        double = secured(tmp_path, [noting(seen) for _ in range(CLIENTS)])
        own.start(grid_of(deployment, own, double), model(), num_rounds=1, train_config=config)
    wanted: list[Any] = []
    grid = plain([noting(wanted) for _ in range(CLIENTS)])
    FedAvg(fraction_evaluate=0.0).start(
        grid, model({"w": MODEL["weight"]}), num_rounds=1, train_config=config
    )
    assert sorted(seen) == sorted(wanted) == [(1, 10 + k, "train", "") for k in range(CLIENTS)]
