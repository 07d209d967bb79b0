"""How a study is computed on this machine. No party, message or charge depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from securefl.training.cohorts import Batched
from securefl.training.fit import Trainer, one_by_one


@dataclass(frozen=True, kw_only=True)
class RuntimeSection:
    """training: "batched" trains several clients in one computation, where the model has dense layers alone;
    "sequential" trains each by itself. Both draw the same batches and noise. Sums differ in last bits."""

    training: Literal["batched", "sequential"] = "batched"

    def trainer(self) -> Trainer:
        """The trainer of a run. One is made for a run, since it keeps what it learnt about models."""
        return Batched(one_by_one) if self.training == "batched" else one_by_one
