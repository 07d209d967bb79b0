"""A rehearsal of a Flower app: what would be refused, before any message is sent.

The app's own code runs in this process. Its server runs up to the start of its strategy, and one client
trains and evaluates once. The findings follow from the same checks as in a run: `served`, `Layout`, `Task`,
`Updates.check` and `Updates.vector`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isinf, prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict
from flwr.serverapp import ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from securefl.accounting.composition import compose
from securefl.core.errors import ConfigError, DataError
from securefl.deployment.messages import Compute
from securefl.deployment.roster import read as read_roster
from securefl.deployment.updates import EVALUATION, UPDATE
from securefl.engine.privacy_card import not_held
from securefl.flower.exchange import FRAME
from securefl.flower.records import Layout, Task
from securefl.flower.secure_app import inner_of, result_of
from securefl.flower.secure_grid import never_opened, require_weights, served
from securefl.flower.secured_strategy import ROSTER, RehearsalGrid, Started
from securefl.flower.terms import PREFIX, AppTerms, read_table
from securefl.mechanisms.charges import events_of
from securefl.sums.registry import has_key_holder

NODES: Final = 10
"""The number of nodes of Flower's simulation, if nothing else is said."""


@dataclass(frozen=True)
class Finding:
    """Something that a run would refuse. where: "terms", "server", "client" and so on."""

    where: str
    what: str


@dataclass
class Rehearsal:
    """The findings on an app. notes: what is not refused, and differs from plain Flower."""

    app: Path
    refused: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, where: str, what: object) -> None:
        """Note what a run would refuse."""
        self.refused.append(Finding(where, str(what)))

    @contextmanager
    def finding(self, where: str) -> Iterator[None]:
        """Note an error of this package as a finding."""
        try:
            yield
        except (ConfigError, DataError) as error:
            self.refuse(where, error)


def rehearse(app: Path, *, nodes: int | None = None, training: bool = True) -> Rehearsal:
    """Rehearse the app in this folder.

    Args:
        app: has a `pyproject.toml` as `flwr run` takes it.
        nodes: how many nodes connect. None: the clients of the server's roster, or 10.
        training: whether one client trains and evaluates.

    Raises ConfigError if the folder has no Flower app, or its code cannot be loaded.
    """
    found = Rehearsal(app)
    parts, config = _described(app)
    with _importable(app):
        server, client = (_loaded(parts, kind) for kind in ("serverapp", "clientapp"))
        if FRAME in getattr(client, "_registered_funcs", ()):
            found.notes.append(
                "Its nodes relay messages to securefl's parties, whose study has the terms. What a run would "
                "refuse: securefl plan STUDY"
            )
            return found
        terms = None
        with found.finding("terms"):
            terms = AppTerms.of(config, [app])
        started = _server(found, server, config) if terms is not None else None
        if started is not None and not _startable(found, started):
            started = None
        count = 0 if terms is None else _count(found, nodes, config, terms)
        if terms is not None and started is not None:
            _told(found, started, terms, count)
        inner = _client(found, client)
        if training and inner is not None and terms is not None and started is not None:
            _trained(found, inner, started, terms, config, count)
    return found


# The app ------------------------------------------------------------------------------------------------


def _described(app: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    path = app / "pyproject.toml"
    table = read_table(path)
    for name in ("tool", "flwr", "app"):
        table = _table_of(path, table, name)
    parts = _table_of(path, table, "components")
    for kind in ("serverapp", "clientapp"):
        if not isinstance(parts.get(kind), str) or ":" not in parts[kind]:
            raise ConfigError(
                f'{path}: Expected [tool.flwr.app.components] with {kind} = "module:app", got '
                f"{parts.get(kind)!r}. Give the folder of a Flower app."
            )
    return parts, flatten_dict(_table_of(path, table, "config"))


def _table_of(path: Path, table: dict[str, Any], name: str) -> dict[str, Any]:
    """The table of this name, empty if there is none. Raises ConfigError for another value."""
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path}: Expected a table `{name}`, got {found!r}. Give the folder of a Flower app."
        )
    return found


@contextmanager
def _importable(app: Path) -> Iterator[None]:
    """Import from the app's folder first, as Flower does."""
    # A message cannot be made without an identity, which Flower gives to the processes that it starts.
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    sys.path.insert(0, str(app.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(app.resolve()))


def _loaded(parts: dict[str, Any], kind: str) -> Any:
    module, _, name = parts[kind].partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"Expected to load the {kind} {parts[kind]}, got {type(error).__name__}: {error}."
        ) from None


# The server ---------------------------------------------------------------------------------------------


class _Reached(BaseException):
    """The app sends messages of its own. No handler of `Exception` in the app catches it."""


class _NoNodes(RehearsalGrid):
    """A grid of a rehearsal. It has nodes by number, and sends nothing."""

    def set_run(self, run: Run) -> None: ...

    def _reached(self, *args: Any, **named: Any) -> Any:
        raise _Reached

    run = property(_reached)
    create_message = push_messages = pull_messages = send_and_receive = _reached

    def get_node_ids(self) -> Iterable[int]:
        return range(2, 2002)


def _server(found: Rehearsal, server: Any, config: dict[str, Any]) -> Started | None:
    """Run the server app up to the start of its strategy."""
    if not isinstance(server, ServerApp):
        found.refuse("server", f"Expected a ServerApp, got {type(server).__name__}.")
        return None
    try:
        with found.finding("server"):
            server(_NoNodes(), Context(1, 1, {}, RecordDict(), config))
            found.refuse("server", "Expected its main to start a strategy, got its end without one.")
    except Started as started:
        return started
    except _Reached:
        found.refuse(
            "server",
            "Expected `strategy = secure_strategy(strategy, context)` before `strategy.start`, got messages "
            "to nodes without it: clients' updates would reach the server one by one.",
        )
    except (Exception, SystemExit) as error:
        found.refuse("server", f"The app's own error before it started: {type(error).__name__}: {error}")
    return None


def _startable(found: Rehearsal, started: Started) -> bool:
    """Whether the arguments of `start` are of the kinds that Flower's strategies take."""
    rounds = started.rounds
    wrong = []
    if not isinstance(started.arrays, ArrayRecord):
        wrong.append(f"an ArrayRecord of initial arrays, got {type(started.arrays).__name__}")
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        wrong.append(f"num_rounds as a whole number from 1, got {rounds!r}")
    for name, own in (("train", started.train_config), ("evaluate", started.evaluate_config)):
        if not isinstance(own, ConfigRecord):
            wrong.append(f"{name}_config as a ConfigRecord, got {type(own).__name__}")
    for one in wrong:
        found.refuse("server", f"Expected {one}.")
    if wrong:
        return False
    try:
        for array in started.arrays.values():
            array.numpy()
    except Exception as error:
        found.refuse(
            "model", f"Expected initial arrays that NumPy reads, got {type(error).__name__}: {error}"
        )
        return False
    return True


def _count(found: Rehearsal, nodes: int | None, config: dict[str, Any], terms: AppTerms) -> int:
    """The number of clients that connect."""
    if folder := config.get(f"{PREFIX}server"):
        roster = Path(str(folder)) / ROSTER
        with found.finding("server"):
            if not roster.is_file():
                raise ConfigError(
                    f"Expected the server's folder, as {PREFIX}server says, got no {roster}. Name the folder "
                    "that has the server's keys and the roster."
                )
            own = len(read_roster(roster).clients)
            return own if nodes is None else nodes
    whole = NODES if nodes is None else nodes
    # In a simulation the last node stands for the key holder of such sums.
    return whole - has_key_holder(terms.plan)


def _told(found: Rehearsal, started: Started, terms: AppTerms, nodes: int) -> None:
    """What follows from strategy, model and terms."""
    with found.finding("server"):
        served(started.strategy, terms.updates, terms.plan)
    with found.finding("model"):
        layout = Layout.of(started.arrays)
        require_weights(layout, started.strategy, terms.plan, terms.updates)
        if layout.local:
            found.notes.append(
                f"Integers and booleans stay local: {', '.join(layout.local)}. Each client keeps its own; "
                "plain Flower averages them."
            )
        wide = sorted({dtype for _, dtype, _ in layout.parts if dtype == "float64"})
        if wide:
            found.notes.append("Arrays of float64 travel as float32.")
        for own in (started.train_config, started.evaluate_config):
            _task(started, own).encoded()
    for refusal in never_opened(started.strategy, terms.plan, terms.updates, nodes):
        found.refuse("cohort", refusal)
    _epsilon(found, started, terms)


def _task(started: Started, config: ConfigRecord) -> Task:
    return Task.of(started.strategy, started.arrays, {**config, "server-round": 1})


def _epsilon(found: Rehearsal, started: Started, terms: AppTerms) -> None:
    """What the rounds cost a client that is in all of them."""
    plan, rounds = terms.plan, started.rounds
    if rounds > plan.max_rounds:
        found.refuse(
            "rounds",
            f"Expected at most {plan.max_rounds} rounds (max_rounds), got num_rounds={rounds}: nobody is "
            "asked in the others.",
        )
    specs = [own for name, own in terms.updates.spec(plan).items() if name == UPDATE or _evaluates(started)]
    if loose := not_held(plan, specs):
        found.notes.append(f"{loose[0].upper()}{loose[1:]}.")
    spent = max(
        compose(events_of(plan, specs, party, min(rounds, plan.max_rounds)), plan.delta)
        for party in plan.adversaries
    )
    if isinf(spent):
        found.notes.append(
            "No noise: every epsilon is infinite, and differences of rounds may reveal single updates."
        )
        return
    found.notes.append(f"A client in all {rounds} rounds spends epsilon {spent:.3g} at delta {plan.delta:g}.")
    if plan.budget is not None and spent > plan.budget:
        found.refuse(
            "budget",
            f"Expected {rounds} rounds within the budget of {plan.budget:g}, got epsilon {spent:.3g}: "
            "clients drop out before the end. Take fewer rounds or a larger noise_multiplier.",
        )


def _evaluates(started: Started) -> bool:
    return started.strategy.fraction_evaluate > 0


# The client ---------------------------------------------------------------------------------------------


def _client(found: Rehearsal, client: Any) -> ClientApp | None:
    inner = inner_of(client)
    if inner is not None:
        return inner
    found.refuse(
        "client", "Expected `app = secure(app)` at its end, got an app without it: no party is asked."
    )
    return client if isinstance(client, ClientApp) else None


def _trained(
    found: Rehearsal, inner: ClientApp, started: Started, terms: AppTerms, config: dict[str, Any], nodes: int
) -> None:
    """Have one client train, and evaluate if the strategy does, on its own records."""
    place: dict[str, bool | int | float | str] = {"partition-id": 0, "num-partitions": nodes}
    context = Context(1, 2, place, RecordDict(), config)
    kinds = [(UPDATE, "train", started.train_config)]
    if _evaluates(started):
        kinds.append((EVALUATION, "evaluate", started.evaluate_config))
    for name, kind, own in kinds:
        try:
            task = _task(started, own)
        except ConfigError:  # found already
            return
        start = task.layout.flat(started.arrays).astype(np.float32)
        try:
            reply = inner(Message(task.content(start, task.local), 2, kind), context)
        except (Exception, SystemExit) as error:
            found.refuse("client", f"The app's own error in {kind}: {type(error).__name__}: {error}")
            continue
        if not isinstance(reply, Message) or not reply.has_content():
            came = type(reply).__name__ if not isinstance(reply, Message) else "an error"
            found.refuse("client", f"{kind}: Expected a Message with content of the app, got {came}.")
            continue
        _replied(found, reply, task, terms, name, start)


def _replied(found: Rehearsal, reply: Message, task: Task, terms: AppTerms, name: str, start: Any) -> None:
    """What the party would say of the reply."""
    updates, plan = terms.updates, terms.plan
    kind = "train" if name == UPDATE else "evaluate"
    compute = Compute(kind=kind, round=1, metrics=updates.named(name), task=b"", broadcast=start)
    metrics = next(iter(reply.content.metric_records.values()), None)
    beside = sorted(set(metrics or ()) - {*updates.named(name), task.weight_key})
    if beside:
        word = "metrics" if name == UPDATE else "evaluation"
        found.notes.append(
            f"Metrics that are not declared stay on the client ({kind}): {', '.join(beside)}. Plain Flower "
            f"averages them. Name them in `{word}` if they may leave."
        )
    try:
        came = result_of(reply, task, compute)
        vector = updates.vector(plan, name, came, start.astype(np.float64))
        if why := updates.beyond(plan, name, vector):
            raise DataError(why)
    except (ValueError, KeyError, DataError) as error:
        missing = f"no {error} in its MetricRecord" if isinstance(error, KeyError) else str(error)
        found.refuse("client", f"{kind}: {missing}")
        return
    if name == UPDATE and (still := _unmoved(task.layout, start, came.values.astype(np.float32))):
        found.notes.append(
            f"One training moved other arrays and not {', '.join(still)}, which is summed, clipped and "
            "noised all the same. If it is frozen, send what is trained alone, at server and client: "
            "ArrayRecord(trained_state(model)), of securefl.training, loaded with strict=False."
        )
    if not updates.weighted(plan, name):
        found.notes.append(
            f"All clients weigh the same ({kind}): {task.weight_key} is not read. Plain Flower weighs by it; "
            f'so does plan.weights = {{ {name} = "counts" }}.'
        )


def _unmoved(layout: Layout, start: NDArray[np.float32], after: NDArray[np.float32]) -> list[str]:
    """The names of the arrays of which a training changed no bit. None if it changed nothing at all."""
    moved, at, still = start != after, 0, []
    for name, _, shape in layout.parts:
        if name not in layout.local:
            end = at + prod(shape)
            if end > at and not moved[at:end].any():
                still.append(name)
            at = end
    return still if moved.any() else []
