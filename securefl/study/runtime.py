"""How a study uses the machine it runs on. Nothing here changes what a ledger records or a message says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from securefl.algorithm import Offer
from securefl.storage import processes
from securefl.storage.processes import MOST_WORKERS
from securefl.training.cohorts import Batched, slots_for
from securefl.training.devices import Wanted
from securefl.training.fit import Fits, Trainer, one_by_one
from securefl.training.workers import Forked


@dataclass(frozen=True, kw_only=True)
class RuntimeSection:
    """training: "batched" trains several clients in one computation, where the model has dense layers alone;
    "sequential" trains each by itself. Both draw the same batches and noise. Sums differ in last bits.
    workers: processes that share arms, seeds and local training; by default one for each processor.
    device: where models are computed. "auto": on a GPU where one can be used, and else on the CPU."""

    training: Literal["batched", "sequential"] = "batched"
    workers: int | None = None
    device: Wanted = "auto"

    def __post_init__(self) -> None:
        if self.workers is not None and not 1 <= self.workers <= MOST_WORKERS:
            raise ValueError(f"Expected 1 to {MOST_WORKERS:,} workers, got {self.workers}.")

    @property
    def processes(self) -> int:
        """The number of worker processes here."""
        if not processes.can_fork():
            return 1
        return self.workers or processes.processors()

    def lanes(self, pairs: int) -> int:
        """How many of a study's pairs of arm and seed run side by side."""
        return min(self.processes, pairs)

    def lane(self, lanes: int) -> RuntimeSection:
        """The same for one of several runs that go on side by side, and share the workers."""
        return replace(self, workers=max(1, self.processes // lanes))

    def trainer(self, offers: Sequence[Offer]) -> Trainer:
        """The trainer of a run with these offers. One is made for a run, since it keeps what it learnt."""
        alone = Forked(self.processes) if self.processes > 1 else one_by_one
        if self.training == "sequential":
            return alone
        cohorts = (offer.sends.cohort for offer in offers if isinstance(offer, Fits))
        return Batched(alone, slots_for(max(cohorts, default=0)))
