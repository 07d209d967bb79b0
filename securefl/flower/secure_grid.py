"""Secure sums for Flower's own strategies: a Grid that answers a training with one reply, the mean.

    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(SecureGrid(grid, strategy, updates, server), initial_arrays)

The strategy chooses nodes and builds its messages as usual. The grid takes them, asks the parties of these
nodes for a sum over Flower's grid, and returns one synthetic reply: an ArrayRecord with the mean model, and a
MetricRecord with the mean metrics and `num-examples`. If no sum was opened, there is no such reply. Each
chosen client that is not in the sum has an error reply with the public reason, so that Flower's log counts it
as a failure. The log names absent parties, since when, and the reason (`engine.attendance`).

`num-examples` is the exact sum of the clients' counts, each clipped to the plan's `max_num_examples` and
contributed within the hidden sum. So it is part of the release "update". Under a `public_num_examples` or a
bound it is the number of contributors times that count (or 1), which is public.

A sum can serve only strategies that use a weighted mean alone. It returns one reply, the mean. A median or a
trimmed mean of one reply is that reply, so such a strategy would silently become FedAvg. `served` refuses
every strategy that is not on the list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from logging import INFO, WARNING
from random import SystemRandom
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Strategy,
)
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore.run import Run

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum
from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.logs import logger
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.deployment.engine import RemoteEngine, ServerSide
from securefl.deployment.updates import EVALUATION, UPDATE, Mean, Updates, as_public
from securefl.engine.attendance import Absence, Presence
from securefl.flower.exchange import CODE, GridExchange
from securefl.flower.records import Layout, Task
from securefl.sums.registry import scheme_of

MEANS: Final = (FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam, FedYogi)
"""The served strategies. Each uses a mean of clients' models and metrics, with one weight for each client."""


def served(strategy: Strategy, updates: Updates, plan: Plan) -> FedAvg:
    """Return the strategy if sums of these values can serve it.

    Raises ConfigError for another strategy, for one that reads the metrics of single clients, for one that
    evaluates if clients do not, for one whose weight is among the metrics, and for one whose model is no sum
    of updates if the noise on them is correlated over rounds.
    """
    # Exactly these classes: a subclass may aggregate otherwise without any sign of it.
    if type(strategy) not in MEANS or not isinstance(strategy, FedAvg):
        names, came = [one.__name__ for one in MEANS], type(strategy)
        # Flower's earlier interface has classes of the same names.
        whole = f"{came.__module__}.{came.__name__}" if came.__name__ in names else came.__name__
        raise ConfigError(
            f"Expected a strategy of flwr.serverapp.strategy among {', '.join(names)}, got {whole}. A hidden "
            "sum gives the mean of a cohort and no single model, so any other rule would silently become the "
            "mean. Noise and clipping are the plan's."
        )
    noise = plan.correlation(updates.spec(plan)[UPDATE])
    if noise.correlated and type(strategy) not in (FedAvg, FedProx):
        raise ConfigError(
            f"Expected FedAvg or FedProx with noise that is correlated over {noise.span}, got "
            f"{type(strategy).__name__}: its model is no sum of updates, so what a round's noise cancels in "
            "sums need not cancel in it. Take one of the two, or independent noise: coefficients = (1.0,) in "
            "the plan, and no decays."
        )
    for how in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
        if getattr(strategy, how) is not aggregate_metricrecords:
            raise ConfigError(
                f"Expected Flower's own {how}, the weighted mean, got {getattr(strategy, how)!r}: it would "
                "get only the mean. Leave it out."
            )
    if strategy.fraction_evaluate > 0 and not updates.evaluation:
        raise ConfigError(
            f"Expected fraction_evaluate=0.0, got {strategy.fraction_evaluate}: clients of this plan give no "
            "metrics of an evaluation. Set it, or name metrics in `Updates(evaluation=...)`."
        )
    if strategy.weighted_by_key in (*updates.metrics, *updates.evaluation):
        raise ConfigError(
            f"Expected metrics beside {strategy.weighted_by_key!r}, got it among them: it is the weight. "
            "Leave it out."
        )
    return strategy


def require_weights(layout: Layout, strategy: FedAvg, plan: Plan, updates: Updates) -> None:
    """Raises ConfigError for running statistics of batch norm that would be treated as if they were weights.

    They are known by torch's names. A server optimiser, a bound and noise can make a variance negative.
    """
    names = [name for name, _, _ in layout.parts if name.rpartition(".")[2] in _STATISTICS]
    plain = type(strategy) in (FedAvg, FedProx)
    if names and (not plain or plan.noisy or updates.update_bound is not None):
        how = type(strategy).__name__ if not plain else "noise or a bound"
        raise ConfigError(
            f"Expected a model without running statistics of batch norm, got {', '.join(names)} under {how}, "
            "which treats them as weights and can make a variance negative. Keep them local: make the model "
            "by `local_statistics(model)`, of securefl.training, at server and client."
        )


def needed(strategy: FedAvg) -> int:
    """The number of nodes that the strategy waits for, without a limit, before it sends a message."""
    return max(strategy.min_available_nodes, strategy.min_train_nodes, strategy.min_evaluate_nodes)


def never_opened(strategy: FedAvg, plan: Plan, updates: Updates, nodes: int) -> Iterator[ConfigError]:
    """Why no round of this strategy over this many nodes would ever open a sum. Nothing if one may.

    Or why too few clients would be left for some rounds, since those of earlier rounds rest (`separation`).
    A round with fewer nodes than that is another matter: it opens no sum, and the next one may.
    """
    if (least := needed(strategy)) > nodes:
        yield ConfigError(
            f"Expected {least} nodes or more, as the strategy says, got {nodes}. Give --nodes, or lower "
            "min_available_nodes, min_train_nodes and min_evaluate_nodes."
        )
    asked = {
        UPDATE: ("fraction_train", strategy.fraction_train, strategy.min_train_nodes),
        EVALUATION: ("fraction_evaluate", strategy.fraction_evaluate, strategy.min_evaluate_nodes),
    }
    (low, high), specs, scheme = plan.cohort_sizes, updates.spec(plan), scheme_of(plan)
    for name, (word, fraction, fewest) in asked.items():
        if not 0 <= fraction <= 1:
            yield ConfigError(f"Expected {word} from 0 to 1, got {fraction}.")
            continue
        if not fraction:  # Flower leaves it out
            continue
        size = max(int(nodes * fraction), fewest)
        if not low <= size <= high:
            yield ConfigError(
                f"Expected {low} to {high} clients in a sum of {name!r}, as the plan says, got {size} of "
                f"{nodes} nodes. Change the strategy's fraction, or the plan's sizes of cohorts."
            )
            continue
        if name not in specs:  # another check refuses it
            continue
        apart = min(plan.apart(specs[name]), plan.max_rounds)
        if size <= nodes < size * apart:
            yield ConfigError(
                f"Expected at most {nodes // apart} of {nodes} nodes in a sum of {name!r} for a separation "
                f"of {plan.separation} rounds, got {size}: too few clients would be left for a round. Take "
                f"separation = {nodes // size} or less in the plan, or a smaller {word} and "
                f"{word.replace('fraction', 'min')}_nodes in the strategy."
            )
        elif scheme is not None:
            try:
                scheme.check(specs[name], size)
            except ConfigError as error:
                yield error


_log = logger(__name__)
_Make = Callable[..., Iterable[Message]]
_METRICS = "metrics"
_STATISTICS: Final = ("running_mean", "running_var")


class SecureGrid(Grid):
    """A Flower Grid for one strategy: its train and evaluate messages become secure sums under a plan.

        >>> import tempfile, securefl
        >>> from pathlib import Path
        >>> from flwr.serverapp.strategy import FedMedian
        >>> from securefl.deployment import LocalDeployment, Updates
        >>> from securefl.flower import SecureGrid
        >>> plan = securefl.Plan(delta=1e-5, non_private=("update",), max_rounds=1)
        >>> own, folder = Updates(), tempfile.TemporaryDirectory()
        >>> with folder as d, LocalDeployment(plan, own, clients=2, folder=Path(d)) as house:
        ...     try: SecureGrid(None, FedMedian(), own, house.server)
        ...     except securefl.errors.ConfigError as error: print(str(error).split(". ")[0][-13:])
        got FedMedian

    Guarantees:
        - The strategy's server learns a cohort's mean and its members. The plan says how the sum is hidden.
        - Only the given strategy is served, and only if it uses no more than a mean.
        - No message of the strategy reaches a node.

    Args:
        grid: Flower's.
        strategy: the same object that is started on this grid.
        updates: the values that clients may be asked for. The parties have the same.
        server: plan, roster, record and keys of this server.
        deadline: seconds that a wave of an exchange may take. One wave includes the training.
        patience: seconds within which the parties' nodes must connect.

    Raises:
        ConfigError: a sum cannot serve the strategy, the updates can never be released under the plan, too
            few nodes connected in time, or no sum over cohorts of this strategy could ever open.
    """

    def __init__(
        self,
        grid: Grid,
        strategy: Strategy,
        updates: Updates,
        server: ServerSide,
        *,
        deadline: float = 3600.0,
        patience: float = 120.0,
    ) -> None:
        updates.check(server.plan)
        self._strategy = served(strategy, updates, server.plan)
        self._grid, self._plan, self._updates = grid, server.plan, updates
        names = sorted(set(server.pinned.members) - {SERVER})
        exchange = GridExchange(grid, deadline=deadline)
        nodes = exchange.look(names, patience)
        self._engine = RemoteEngine(server, updates.spec(server.plan), updates.digest, exchange)
        self._clients = {
            nodes[name]: number for number, name in enumerate(server.pinned.clients) if name in nodes
        }
        if len(self._clients) < (least := needed(self._strategy)):
            raise ConfigError(
                f"Expected nodes of {least} parties at least, as the strategy says, got "
                f"{len(self._clients)} within {patience:g} s: {', '.join(sorted(nodes)) or 'nobody'}. "
                "Start the others' nodes."
            )
        for refusal in never_opened(self._strategy, server.plan, updates, len(self._clients)):
            raise refusal
        self._round, self._stage = 0, 0
        self._made: list[Message] = []
        self._local: dict[str, Array] | None = None
        self._mark(self._strategy)
        self._engine.enter()

    def _mark(self, strategy: Strategy) -> None:
        """Wrap the strategy's configure methods, to note the messages that it makes."""
        # A grid does not know its caller. With this note it refuses the messages of another strategy, whose
        # medians would silently become means.
        for how, name in (("configure_train", UPDATE), ("configure_evaluate", EVALUATION)):
            make = getattr(strategy, how)

            def noted(
                *args: object, _make: _Make = make, _name: str = name, **kwargs: object
            ) -> list[Message]:
                self._made = list(_make(*args, **kwargs))
                self._redraw(self._made, _name, self._place(_name)[0])
                return self._made

            setattr(strategy, how, noted)

    def _redraw(self, made: list[Message], name: str, number: int) -> None:
        """Address the messages to clients that rest from this value to others that can send it.

        A strategy draws of all nodes. The nodes that rest would refuse, and the round would be lost.
        """
        resting = self._engine.server.account.resting(number, name)
        drawn = {one.metadata.dst_node_id for one in made}
        out = [one for one in made if self._clients.get(one.metadata.dst_node_id) in resting]
        unable = self._unable(name, number)
        able = sorted(node for node, own in self._clients.items() if own not in unable and node not in drawn)
        # The strategy's draw is uniform, so this one is too, over the clients that can send.
        for one, node in zip(out, SystemRandom().sample(able, min(len(able), len(out))), strict=False):
            one.metadata.dst_node_id = node

    @property
    def local(self) -> Mapping[str, Array]:
        """The model's integers and booleans, which never change here; none before the first round."""
        return dict(self._local or {})

    # Flower's side ------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def _bypass(self, *args: Any, **named: Any) -> Any:
        raise LocalProtocolError(
            "Expected a strategy's send_and_receive, got a message of its own: it would reach a client "
            "beside the sums. Use Flower's own grid for what is no training."
        )

    create_message = push_messages = pull_messages = _bypass

    def get_node_ids(self) -> Iterable[int]:
        """The nodes of all clients that have connected, also of those that are silent now."""
        # A strategy waits without a limit for missing nodes, so a retired client would stop it.
        return list(self._clients)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """One reply with the mean, if a sum was opened, and an error reply of each client outside it.

        `timeout` is ignored: waves have deadlines.

        Raises LocalProtocolError if the strategy of this grid did not make these messages for one query.
        """
        posted = list(messages)
        if not posted:
            return []
        known = {id(one) for one in self._made}
        kinds = {one.metadata.message_type for one in posted}
        if not {id(one) for one in posted} <= known or len(kinds) > 1 or not kinds <= {"train", "evaluate"}:
            raise LocalProtocolError(
                f"Expected train or evaluate messages of {type(self._strategy).__name__}, the strategy of "
                f"this grid, got {', '.join(sorted(kinds))} of another maker. Give each "
                "strategy a SecureGrid of its own."
            )
        if any(one.content != posted[0].content for one in posted[1:]):
            raise LocalProtocolError("Expected one content for the whole cohort, got several.")
        name = UPDATE if kinds == {"train"} else EVALUATION
        if name == EVALUATION and not self._updates.evaluation:
            raise ConfigError("Expected fraction_evaluate=0.0: clients of this plan give no evaluation.")
        return self._asked(name, posted)

    # Sums ---------------------------------------------------------------------------------------------

    def _asked(self, name: str, posted: list[Message]) -> list[Message]:
        self._round, self._stage = self._place(name)
        self._engine.enter()
        content, own = posted[0].content, self._strategy
        came = content.array_records[own.arrayrecord_key]
        local = self._kept(came)
        # A strategy weighs all arrays, so integers come back as float64.
        arrays = ArrayRecord({name: local.get(name, array) for name, array in came.items()})
        config = content.config_records.get(own.configrecord_key, ConfigRecord())
        task = Task.of(own, arrays, config)
        layout, start = task.layout, task.layout.flat(arrays)
        require_weights(layout, own, self._plan, self._updates)
        chosen = self._chosen(posted)
        cohort = self._cohort(chosen, name)
        if not cohort:
            return self._absent(posted, ())
        query = CohortQuery(
            cohort=cohort,
            broadcast=start.astype(np.float32),
            public=as_public(task.encoded()),
            sums=(
                Sum(self._updates.spec(self._plan)[name], self._updates.size(self._plan, name, layout.size)),
            ),
        )
        answers, _ = self._engine.query(query, self._engine.at(self._round, self._stage))
        absent = self._absent(posted, answers.survivors)
        if not answers.survivors:
            return absent
        mean = self._updates.read(self._plan, name, answers.totals[name], layout.size)
        # The mean stands in for all that are in it, so it replies to one of them.
        first = next(one for one in posted if self._number(one) in answers.survivors)
        return [Message(self._content(mean, layout, start, local), reply_to=first), *absent]

    def _absent(self, posted: list[Message], survivors: Collection[int]) -> list[Message]:
        """Log who took part. Returns an error reply of each other client, with the public reason."""
        # Without them Flower would log one result and no failure, whoever was missing.
        chosen = self._chosen(posted)
        presence = self._engine.attended(self._round, chosen)
        missed = presence.absent or presence.short or len(survivors) < len(chosen)
        stages = ", with its evaluation" if self._stage else ""
        _log.log(WARNING if missed else INFO, "%s%s", presence.line(), stages)
        if not survivors and _none_has_a_value(presence):
            _log.warning(
                "No client sent a value. Each owner reads why in `securefl party status`. If the terms fit "
                "no result of the app, as with fractional weights or missing metrics, `securefl flower "
                "check` says so before a run."
            )
        reasons = {one.name: f"{one.name} {one.why} since round {one.since}" for one in presence.absent}
        replies = []
        # By number, since a strategy samples in random order.
        for number, one in sorted(zip(chosen, posted, strict=True), key=lambda pair: pair[0]):
            if number not in survivors:
                name = client_name(number)
                why = reasons.get(name, f"{name}: {presence.short or 'it was not asked'}")
                replies.append(Message(Error(CODE, why), reply_to=one))
        return replies

    def _kept(self, arrays: ArrayRecord) -> dict[str, Array]:
        """The integers and booleans of the first model. They stay local, so the server's never change."""
        if self._local is None:
            self._local = Layout.of(arrays).own(arrays)
            if self._local:
                _log.warning(
                    "Integers and booleans stay local: %s. Each client keeps its own values, and the server "
                    "its initial ones. Plain Flower would average them.",
                    ", ".join(self._local),
                )
        return self._local

    def _place(self, name: str) -> tuple[int, int]:
        """The next query's round and stage. Training begins a round, and one evaluation may follow in it."""
        if name == EVALUATION and self._round and not self._stage:
            return self._round, 1
        return self._round + 1, 0 if name == UPDATE else 1

    def _number(self, message: Message) -> int:
        return self._clients[message.metadata.dst_node_id]

    def _chosen(self, posted: list[Message]) -> list[int]:
        """The numbers of the clients that the strategy chose, in the order of its messages."""
        strange = [node for one in posted if (node := one.metadata.dst_node_id) not in self._clients]
        if strange:
            raise LocalProtocolError(f"Expected nodes of parties of the roster, got {strange}.")
        return [self._number(one) for one in posted]

    def _unable(self, name: str, number: int) -> set[int]:
        """The clients that would send no value of this name in this round: outside the session, over budget,
        or at rest."""
        account, missing = self._engine.server.account, self._engine.missing
        away = {own for own in self._clients.values() if client_name(own) in missing}
        return away | account.retired(number) | account.resting(number, name)

    def _cohort(self, chosen: list[int], name: str) -> tuple[int, ...]:
        """The clients of these that are asked for the value of this name."""
        if self._round > self._plan.max_rounds:
            _log.warning("Round %d: the plan's schedule of %d is over.", self._round, self._plan.max_rounds)
            return ()
        return self._whole(sorted(set(chosen) - self._unable(name, self._round)))

    def _whole(self, cohort: list[int]) -> tuple[int, ...]:
        """The clients of these whose whole fixed batch is present; all of them if the plan has no batches."""
        batch = self._plan.fixed_batch or 1
        here = Counter(number // batch for number in cohort)
        return tuple(number for number in cohort if here[number // batch] == batch)

    def _content(
        self, mean: Mean, layout: Layout, start: np.ndarray, local: Mapping[str, Array]
    ) -> RecordDict:
        metrics: Mapping[str, float | int] = {**mean.metrics, self._strategy.weighted_by_key: mean.examples}
        content = RecordDict({_METRICS: MetricRecord(dict(metrics))})
        if len(mean.update):
            content[self._strategy.arrayrecord_key] = layout.record(start + mean.update, local)
        return content


def _none_has_a_value(presence: Presence) -> bool:
    """Whether every asked client replied, and none with a value: the reason is then hardly one client's."""
    without = [one for one in presence.absent if one.why == Absence.NO_VALUE.value]
    return presence.asked > 0 and presence.answered == 0 and len(without) == presence.asked
