"""Flower apps of three clients, each a mean of its own numbers, plain and behind their parties."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from securefl.algorithm.plan import Plan
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER
from securefl.deployment.local import LocalDeployment, socket_of
from securefl.deployment.updates import Updates
from securefl.flower.secure_app import Beside, secure
from securefl.flower.secure_grid import SecureGrid
from support.grid_double import GridDouble
from support.hidden_plans import hidden

CLIENTS = 3
COUNTS = (10, 30, 24)
UPDATES = Updates(metrics=("loss",), evaluation=("accuracy",))
CLEAR = Plan(
    delta=1e-5,
    max_rounds=9,
    non_private=("update", "evaluation"),
    weights={"update": "counts", "evaluation": "counts"},
    min_num_examples=8,
    max_num_examples=64,
    adjacency="add-remove",
)
MASKED = hidden(CLEAR, CLIENTS, adjacency="replace-one", max_client_weight=0.99)
TWO = replace(MASKED, sum="two-server")


def start() -> ArrayRecord:
    rng = np.random.default_rng(3)
    return ArrayRecord(
        {"w": Array(rng.normal(size=(4, 5)).astype(np.float32)), "b": Array(np.zeros(5, np.float32))}
    )


def flat(result: Any) -> np.ndarray:
    """All its numbers in turn."""
    return np.concatenate([array.numpy().ravel() for array in result.arrays.values()])


Given = dict[str, Any]


def app_of(
    train: Callable[[Given, Message, Context], tuple[Given, Given]],
    evaluate: Callable[[Given, Message, Context], Given] | None = None,
    *,
    mods: Any = (),
    names: tuple[str, str] = ("arrays", "metrics"),
    change: Callable[[RecordDict], RecordDict] = lambda content: content,
) -> ClientApp:
    """An app that trains and evaluates so, on the arrays that came.

    train: gives arrays and metrics. evaluate: gives metrics. names: of arrays in messages, and of metrics in
    replies. change: of a reply.
    """
    app, (arrays_key, metrics_key) = ClientApp(mods=[*mods]), names

    def replied(message: Message, metrics: Given, own: Given | None = None) -> Message:
        records: Given = (
            {} if own is None else {"arrays": ArrayRecord({k: Array(np.asarray(v)) for k, v in own.items()})}
        )
        return Message(change(RecordDict({**records, metrics_key: MetricRecord(metrics)})), reply_to=message)

    def came(message: Message) -> Given:
        return {name: array.numpy() for name, array in message.content[arrays_key].items()}

    @app.train()
    def _(message: Message, context: Context) -> Message:
        own, metrics = train(came(message), message, context)
        return replied(message, metrics, own)

    if evaluate is not None:

        @app.evaluate()
        def _(message: Message, context: Context) -> Message:
            return replied(message, evaluate(came(message), message, context))

    return app


def inner(
    number: int, change: Callable[[RecordDict], RecordDict] = lambda content: content, mods: Any = ()
) -> ClientApp:
    """A client's app: one step towards its own target, as its config says. `change` spoils its reply."""

    def train(came: Given, message: Message, context: Context) -> tuple[Given, Given]:
        rate = float(message.content["config"]["lr"])
        pull = float(message.content["config"].get("proximal-mu", 0.0))
        own = {n: (a * (1 - rate) + rate * number * (1 - pull)).astype(np.float32) for n, a in came.items()}
        return own, {"num-examples": COUNTS[number], "loss": 0.25 + number, "secret": 7.0}

    def evaluate(came: Given, message: Message, context: Context) -> Given:
        mean = float(np.mean([array.mean() for array in came.values()]))
        return {"num-examples": COUNTS[number], "accuracy": mean + number}

    return app_of(train, evaluate, mods=mods, change=change)


def context(number: int) -> Context:
    return Context(1, number + 10, {"partition-id": number}, RecordDict(), {})


def node(app: ClientApp, number: int) -> Callable[[Message], Message]:
    return lambda message: app(message, context(number))


@dataclass
class PlainGrid(GridDouble):
    """The same double, for Flower's own way: every message to its node, and every reply back."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        return self.pull_messages(self.push_messages(messages))


def plain(apps: Any = None) -> PlainGrid:
    own = apps or [inner(k) for k in range(CLIENTS)]
    return PlainGrid({k + 10: node(app, k) for k, app in enumerate(own)})


@dataclass
class HeardGrid(GridDouble):
    """The double, with what the server was told, as bytes."""

    came: list[bytes] = field(default_factory=list)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = super().pull_messages(message_ids)
        self.came += [repr(one).encode() for one in found]
        return found


def in_house(folder: Path, clients: int) -> Beside:
    """The parties of a `LocalDeployment` in this folder, by partition; the last is the key holder."""

    def beside(context: Context) -> tuple[str, Path]:
        number = int(context.node_config["partition-id"])
        name = client_name(number) if number < clients else KEY_HOLDER
        return name, socket_of(folder, name)

    return beside


def secured(folder: Path, apps: Any = None, *, clients: int = CLIENTS) -> HeardGrid:
    """The double with every app behind its party, and the key holder's node after them."""
    own = [*(apps or [inner(k) for k in range(clients)]), ClientApp()]
    beside = in_house(folder, clients)
    return HeardGrid({k + 10: node(secure(app, beside=beside), k) for k, app in enumerate(own)})


def grid_of(
    house: LocalDeployment, strategy: Any, double: GridDouble, updates: Updates = UPDATES
) -> SecureGrid:
    return SecureGrid(double, strategy, updates, house.server, deadline=5.0, patience=0.3)
