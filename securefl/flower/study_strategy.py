"""A study as a Flower strategy: it runs FedProf, FedLog or any other protocol of securefl over a Grid.

    strategy = StudyStrategy(others_of(folder), playing(folder, out))
    result = strategy.start(grid)

A FedProf server asks for profiles before it selects clients. FedLog's server asks for sums that are no model.
Neither fits Flower's pair of training and evaluation, so `start` runs the study's own rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.logs import logger
from securefl.deployment.visits import SendAndReceive
from securefl.flower.exchange import GridExchange

Tell = Callable[[Mapping[str, Any]], None]
"""Is called with the record of every finished round: its `round`, and figures by name."""
Play = Callable[[SendAndReceive, Tell], Mapping[str, NDArray[Any]]]
"""Runs the rounds over an exchange. Returns the model's arrays by name."""
_log = logger(__name__)


class OwnRounds(Strategy):
    """A strategy whose `start` runs rounds of its own. Flower's single steps raise LocalProtocolError."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        raise self._not_a_step()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        raise self._not_a_step()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        raise self._not_a_step()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        raise self._not_a_step()

    def _not_a_step(self) -> LocalProtocolError:
        return LocalProtocolError(
            f"Expected `start` of {type(self).__name__}, which runs its own rounds, got one of Flower's "
            "steps. Call `start`."
        )


class StudyStrategy(OwnRounds):
    """Runs a study over a Grid whose nodes relay for the study's parties.

        >>> from securefl.errors import ConfigError
        >>> from securefl.flower import StudyStrategy
        >>> strategy = StudyStrategy(("client-0000",), lambda exchange, tell: {})
        >>> try: strategy.start(None, num_rounds=3)
        ... except ConfigError as error: print(str(error)[:43])
        Expected the grid alone, got num_rounds too

    Args:
        names: the parties beside the server.
        play: see `Play`; for a server's folder, `securefl.deployment.coordinator.playing` makes it.
        deadline: seconds that a wave may take. A party that has not replied by then is silent.
        patience: seconds within which the parties' nodes must connect. Later nodes take part from then on.

    Raises nothing. Its method `start` raises ConfigError if it gets more than the grid.
    """

    def __init__(
        self, names: Collection[str], play: Play, *, deadline: float = 3600.0, patience: float = 120.0
    ) -> None:
        self._names, self._play, self._deadline, self._patience = tuple(names), play, deadline, patience

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the study. Returns its model, and the figures of each round that its server knows.

        Raises ConfigError if any other argument is given: the study says model, rounds, deadlines and
        options.
        """
        given = {
            "initial_arrays": initial_arrays,
            "num_rounds": num_rounds,
            "timeout": timeout,
            "train_config": train_config,
            "evaluate_config": evaluate_config,
            "evaluate_fn": evaluate_fn,
        }
        if others := [name for name, value in given.items() if value is not None]:
            raise ConfigError(
                f"Expected the grid alone, got {', '.join(others)} too. The study says its initial model and "
                "its number of rounds, and its parties have agreed to them. Leave the others out."
            )
        result = Result()

        def tell(record: Mapping[str, Any]) -> None:
            figures = {
                name: float(value)
                for name, value in record.items()
                if name != "round" and isinstance(value, int | float) and np.isfinite(value)
            }
            result.evaluate_metrics_serverapp[int(record["round"])] = MetricRecord(dict(figures))

        self.summary()
        exchange = GridExchange(grid, deadline=self._deadline)
        exchange.look(self._names, self._patience)
        arrays = self._play(exchange, tell)
        result.arrays = ArrayRecord({name: Array(np.asarray(own)) for name, own in arrays.items()})
        return result

    def summary(self) -> None:
        """Log the parties of the study."""
        _log.info("A study's own rounds, with %s.", ", ".join(self._names))
