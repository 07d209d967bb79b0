"""Where the parties of an arm sit: by default all of them in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import Algorithm
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Kept
from securefl.core.messages import client_name
from securefl.core.streams import client_stream
from securefl.engine.engine import Engine
from securefl.engine.inprocess import simulated
from securefl.linear import Way as ScoreWay
from securefl.linear import way_of as score_way
from securefl.storage.journal import Journal
from securefl.study.checkpoint import Stands
from securefl.study.config import Arm, Study
from securefl.study.seeded import World


@dataclass(frozen=True, kw_only=True)
class Cast:
    """One arm under one seed, with the files that this machine has of it and where it stands.

    Attributes:
        nonce: 32 bytes that were drawn when the run began.
        kept: what clients keep, as far as it is on this machine.
    """

    study: Study
    arm: Arm
    world: World
    algorithm: Algorithm
    plan: Plan
    ledger: Ledger
    journal: Journal
    nonce: bytes
    kept: Mapping[int, Kept]
    stands: Sequence[Stands]

    @property
    def scores(self) -> ScoreWay | None:
        """The plan's way of scoring, with parameters as all parties work them out."""
        return score_way(
            self.plan.scores,
            parameters=self.study.privacy.parameters,
            asks=2 * self.study.study.rounds,
            clients=self.world.problem.clients,
        )

    @property
    def culprits(self) -> list[int]:
        """The clients that were proven to cheat in earlier rounds."""
        return [k for own in self.stands for k in own.culprits]

    @property
    def retries_left(self) -> int | None:
        """How many more attempts the run has; None before its first round."""
        return self.stands[-1].retries_left if self.stands else None


class Seats(Protocol):
    """Where the parties of an arm sit."""

    def session(self, cast: Cast) -> bytes:
        """The arm's session, 32 bytes."""
        ...

    def engine(self, cast: Cast) -> Engine:
        """What runs its Asks."""
        ...


class OneProcess:
    """All parties in this process."""

    def session(self, cast: Cast) -> bytes:
        names = [client_name(k) for k in range(cast.world.population().clients)]
        return cast.plan.session(names, cast.nonce)

    def engine(self, cast: Cast) -> Engine:
        return simulated(
            cast.plan,
            cast.algorithm.offers,
            cast.ledger,
            cast.world.records,
            rng=partial(client_stream, cast.world.seed),
            held=cast.world.held,
            scores=cast.scores,
            kept=cast.kept,
            culprits=cast.culprits,
            retries_left=cast.retries_left,
            journal=cast.journal,
            trainer=cast.study.runtime.trainer(cast.algorithm.offers),
        )
