"""The backend that runs an arm's parties. By default one process simulates all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import Algorithm
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState
from securefl.core.memory import keep_freed_memory
from securefl.core.messages import client_name
from securefl.core.streams import client_stream
from securefl.engine.engine import Engine
from securefl.engine.inprocess import simulated
from securefl.linear.registry import scheme_of as linear_scheme_of
from securefl.linear.scheme import LinearScheme
from securefl.storage.journal import Journal
from securefl.study.checkpoint import ResumePoint
from securefl.study.config import Arm, Study
from securefl.study.lying import with_lies
from securefl.study.seeded import World


@dataclass(frozen=True, kw_only=True)
class ArmContext:
    """Everything that a backend needs for one arm under one seed.

    Attributes:
        nonce: 32 random bytes, drawn when the run began.
        kept: the client states that are on this machine, by client.
        stands: the figures of each finished round that a resumed run needs.
    """

    study: Study
    arm: Arm
    world: World
    algorithm: Algorithm
    plan: Plan
    ledger: Ledger
    journal: Journal
    nonce: bytes
    kept: Mapping[int, ClientState]
    stands: Sequence[ResumePoint]

    @property
    def scores(self) -> LinearScheme | None:
        """The plan's scheme for linear queries. All parties compute the same parameters."""
        return linear_scheme_of(
            self.plan.scores,
            parameters=self.study.privacy.parameters,
            asks=2 * self.study.study.rounds,
            clients=self.world.problem.clients,
        )

    @property
    def proven_cheaters(self) -> list[int]:
        """The clients that were proven to cheat in earlier rounds."""
        return [k for own in self.stands for k in own.proven_cheaters]

    @property
    def retries_left(self) -> int | None:
        """The number of retries that the run has left; None before its first round."""
        return self.stands[-1].retries_left if self.stands else None


class Backend(Protocol):
    """A backend: it runs an arm's parties, and says which session they are in.

    in_one_process: whether all parties are in this process, so that nothing leaves it during a round. Then a
    round is one durable commit, at its end.
    """

    in_one_process: bool

    def session(self, arm_context: ArmContext) -> bytes:
        """The arm's session, 32 bytes."""
        ...

    def engine(self, arm_context: ArmContext) -> Engine:
        """The engine that runs the arm's cohort queries."""
        ...


class OneProcess:
    """The backend that simulates all parties in this process."""

    in_one_process = True

    def session(self, arm_context: ArmContext) -> bytes:
        names = [client_name(k) for k in range(arm_context.world.population().clients)]
        return arm_context.plan.session(names, arm_context.nonce)

    def engine(self, arm_context: ArmContext) -> Engine:
        keep_freed_memory()
        study, world = arm_context.study, arm_context.world
        honest = arm_context.algorithm.contributions
        contributions = with_lies(honest, world.quality, study.corruption.scale_factor)
        return simulated(
            arm_context.plan,
            contributions,
            arm_context.ledger,
            world.records,
            rng=partial(client_stream, world.seed),
            held=world.held,
            scores=arm_context.scores,
            kept=arm_context.kept,
            proven_cheaters=arm_context.proven_cheaters,
            retries_left=arm_context.retries_left,
            journal=arm_context.journal,
            trainer=study.runtime.trainer(honest),
        )
