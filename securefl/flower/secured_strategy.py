"""A strategy whose training is secure sums: Flower's own, the terms beside it, and the server's place.

    strategy = secure_strategy(FedAvg(), context)
    result = strategy.start(grid, initial_arrays, num_rounds=3)

`start` opens the server's place, runs the strategy on a `SecureGrid`, and closes the place again. The place
is a folder of the server if the run config names one (`securefl.server`). Without it, the run is a
simulation: a `LocalDeployment` of all parties stands in this process for as long as `start` runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from securefl.core.errors import ConfigError
from securefl.core.logs import logger
from securefl.core.ranges import Positive, Ranged
from securefl.core.reading import convert
from securefl.core.release import SERVER
from securefl.deployment import keys, roster
from securefl.deployment.engine import ServerSide
from securefl.deployment.local import LocalDeployment
from securefl.deployment.plan_file import USUAL_SESSIONS, require_sessions
from securefl.flower.exchange import GridExchange
from securefl.flower.secure_app import PARTIES, own_folder, simulated
from securefl.flower.secure_grid import SecureGrid, served
from securefl.flower.study_strategy import OwnRounds
from securefl.flower.terms import PLACE, PREFIX, AppTerms, Config
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord
from securefl.sums.registry import has_key_holder

ROSTER: Final = "roster.jsonl"
_SERVER: Final = f"{PREFIX}server"
_log = logger(__name__)


def secure_strategy(strategy: Strategy, context: Context) -> SecureStrategy:
    """Wrap a strategy, so that it learns no more of its clients than secure sums.

        >>> from flwr.app import Context, RecordDict
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from securefl.flower import secure_strategy
        >>> config = {"securefl.terms": "noised", "securefl.evaluation": "accuracy"}
        >>> strategy = secure_strategy(FedAvg(), Context(1, 1, {}, RecordDict(), config))
        >>> strategy.terms.plan.budget
        4.0

    Args:
        strategy: FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam or FedYogi of Flower.
        context: of the ServerApp. Its run config names the terms (`AppTerms.of`) and may have:
            `securefl.server`, a folder with the server's keys and `roster.jsonl`, for a deployment;
            `securefl.parties`, in a simulation, a folder in which the parties' ledgers stay;
            `securefl.sessions`, in a simulation, the sessions without noise that its parties may enter;
            `securefl.deadline` and `securefl.patience`, in seconds, as for `SecureGrid`.

    Returns:
        A strategy with the same method `start`.

    Raises:
        ConfigError: there are no terms, they are invalid, or a sum cannot serve the strategy.
    """
    terms = AppTerms.of(context.run_config)
    return SecureStrategy(
        served(strategy, terms.updates, terms.plan), terms, Place.of(context.run_config), simulated(context)
    )


@dataclass(frozen=True, kw_only=True)
class Place(Ranged):
    """What the run config says of the server's parties, beside the terms.

    server: in a deployment, its own folder.
    parties: in a simulation, the folder of all parties. Empty for a passing one.
    sessions: without noise, that the parties of a simulation may enter.
    deadline, patience: in seconds, as for `SecureGrid`.
    """

    server: str = ""
    parties: str = ""
    sessions: int = USUAL_SESSIONS
    deadline: Positive = 3600.0
    patience: Positive = 120.0

    @classmethod
    def of(cls, config: Config) -> Place:
        """The place that the run config states. Raises ConfigError for a value of another type or range."""
        own = {name: config[PREFIX + name] for name in PLACE if PREFIX + name in config}
        place = convert(cls, own, PREFIX.removesuffix("."))
        if place.server and place.parties:
            raise ConfigError(
                f"Expected {_SERVER} in a deployment or {PARTIES} in a simulation, got both. Leave one empty."
            )
        if place.server and "sessions" in own:
            raise ConfigError(
                f"Expected {PREFIX}sessions in a simulation alone, got it in a deployment, where each "
                "client's owner agrees to a number and the server has no say. Leave it out."
            )
        require_sessions(place.sessions)
        return place


class Started(BaseException):
    """A strategy was about to start, with its arguments, in a rehearsal of its app (`rehearsal`)."""

    def __init__(
        self,
        strategy: FedAvg,
        arrays: ArrayRecord,
        rounds: int,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
    ) -> None:
        super().__init__()
        self.strategy, self.arrays, self.rounds = strategy, arrays, rounds
        self.train_config, self.evaluate_config = train_config, evaluate_config


class RehearsalGrid(Grid):
    """The grid of a rehearsal: a strategy that is started on it raises `Started` and sends nothing."""


class SecureStrategy(OwnRounds):
    """A strategy on secure sums, made by `secure_strategy`. Attribute `terms`: those that it runs under."""

    def __init__(self, strategy: FedAvg, terms: AppTerms, place: Place, folder: Path) -> None:
        self.strategy, self.terms, self.place, self.folder = strategy, terms, place, folder

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the strategy on secure sums. Arguments and result are those of the strategy's own `start`.

        `timeout` is not used: `securefl.deadline` limits each wave.

        Raises ConfigError, as `SecureGrid` does, before any client is asked for a value.
        """
        if isinstance(grid, RehearsalGrid):
            configs = [ConfigRecord() if own is None else own for own in (train_config, evaluate_config)]
            raise Started(self.strategy, initial_arrays, num_rounds, *configs)
        place, updates = self.place, self.terms.updates
        with self._server(grid) as server:
            secure = SecureGrid(
                grid, self.strategy, updates, server, deadline=place.deadline, patience=place.patience
            )
            result = self.strategy.start(
                secure, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
            )
        if result.arrays:
            # A strategy weighs all arrays, so integers would come back as float64.
            result.arrays = ArrayRecord({**result.arrays, **secure.local})
        return result

    @contextmanager
    def _server(self, grid: Grid) -> Iterator[ServerSide]:
        place, terms = self.place, self.terms
        if place.server:
            with _deployed(Path(place.server), terms) as server:
                yield server
            return
        count = GridExchange(grid, deadline=place.deadline).partitions(place.patience)
        # The last node stands for the key holder.
        clients = count - has_key_holder(terms.plan)
        _log.warning(
            "A simulation of %d parties under the terms of %s: this process has all their keys, and protects "
            "none of them. In a deployment the run config names the server's folder, %s.",
            count,
            terms.source,
            _SERVER,
        )
        own_folder(self.folder, make=True)
        try:
            own = LocalDeployment(
                terms.plan, terms.updates, clients=clients, folder=self.folder, sessions=place.sessions
            )
            with own as parties:
                yield parties.server
        finally:
            if not place.parties:
                shutil.rmtree(self.folder, ignore_errors=True)

    def summary(self) -> None:
        """Log the strategy's own summary."""
        self.strategy.summary()


@contextmanager
def _deployed(folder: Path, terms: AppTerms) -> Iterator[ServerSide]:
    pinned, identity = roster.read(folder / ROSTER), keys.read(folder, SERVER)
    with closing(Journal(folder / "journal.sqlite")) as journal:
        yield ServerSide(plan=terms.plan, pinned=pinned, record=OwnRecord(SERVER, journal, identity))
