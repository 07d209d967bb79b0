"""A study as a Flower strategy: it runs FedProf, FedLog or any other protocol of securefl over a Grid.

    strategy = StudyStrategy(folder, out)
    result = strategy.start(grid)

A FedProf server asks for profiles before it selects clients. FedLog's server asks for sums that are no model.
Neither fits Flower's pair of training and evaluation, so `start` runs the study's own rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.logs import logger
from securefl.deployment.coordinator import run_deployed
from securefl.flower.exchange import GridExchange
from securefl.study.export import taken
from securefl.study.folder import study_of

_log = logger(__name__)


class OwnRounds(Strategy):
    """A strategy whose `start` runs rounds of its own. Flower's single steps raise LocalProtocolError."""

    def _not_a_step(self, *args: Any, **named: Any) -> Any:
        raise LocalProtocolError(
            f"Expected `start` of {type(self).__name__}, which runs its own rounds, got one of Flower's "
            "steps. Call `start`."
        )

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _not_a_step


class StudyStrategy(OwnRounds):
    """Runs the study of a server's folder over a Grid whose nodes relay for the study's parties.

        >>> from pathlib import Path
        >>> from securefl.errors import ConfigError
        >>> from securefl.flower import StudyStrategy
        >>> strategy = StudyStrategy(Path("server"), Path("run"))
        >>> try: strategy.start(None, num_rounds=3)
        ... except ConfigError as error: print(str(error)[:43])
        Expected the grid alone, got num_rounds too

    Args:
        folder: the server's folder. `securefl party init --server` makes it; its roster must be pinned.
        out: the run folder.
        deadline: seconds that a wave may take. A party that has not replied by then is silent.
        patience: seconds that parties are awaited: at the start all of them, and before each later round
            only if too few are present for it.

    Raises nothing. Its method `start` raises ConfigError if it gets more than the grid, and what
    `run_deployed` raises.
    """

    def __init__(self, folder: Path, out: Path, *, deadline: float = 3600.0, patience: float = 120.0) -> None:
        self._folder, self._out, self._deadline, self._patience = folder, out, deadline, patience

    def start(self, grid: Grid, *more: Any, **named: Any) -> Result:
        """Run the study. Returns its model, and the figures of each round that its server knows.

        Raises ConfigError if any other argument is given: the study says model, rounds, deadlines and
        options.
        """
        others = [name for name, value in named.items() if value is not None]
        if more or others:
            raise ConfigError(
                f"Expected the grid alone, got {', '.join(others) or f'{len(more)} more'} too. The study "
                "says its initial model and its number of rounds, and its parties agreed to them. Leave "
                "the others out."
            )
        result = Result()

        def tell(arm: object, seed: int, record: Mapping[str, Any]) -> None:
            figures = {
                name: float(value)
                for name, value in record.items()
                if name != "round" and isinstance(value, int | float) and np.isfinite(value)
            }
            result.evaluate_metrics_serverapp[int(record["round"])] = MetricRecord(dict(figures))

        self.summary()
        exchange = GridExchange(grid, deadline=self._deadline)
        run_deployed(self._folder, self._out, exchange, tell=tell, wait=self._patience)
        study = study_of(self._out)
        learnt = taken(study, self._out, study.arms[0].name).learnt.tensors()
        result.arrays = ArrayRecord({name: Array(np.asarray(own)) for name, own in learnt.items()})
        return result

    def summary(self) -> None:
        """Log whose study it is."""
        _log.info("The own rounds of the study of %s.", self._folder)
