"""Clients that lie about their updates, in a simulation: what a protocol's defences meet.

A lying client trains as any other. What it then sends is not what it trained (`data.corruptions.Corruption`).
Its ledger and its release are those of any client, since only its value is another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from securefl.algorithm.clients import ClientContext, Contribution
from securefl.algorithm.queries import Value
from securefl.core.errors import DataError
from securefl.data.corruptions import LYING
from securefl.training.jobs import TrainedContribution, TrainingResult
from securefl.training.run_jobs import Around


def with_lies(
    contributions: Sequence[Contribution], qualities: Sequence[str], factor: float
) -> list[Contribution]:
    """The contributions, of which those that are trained are lied about by the clients of these qualities.

    factor: what scaled and oversized clients multiply by.
    """
    liars = {client: kind for client, kind in enumerate(qualities) if kind in LYING}
    if not liars:
        return list(contributions)
    return [
        Lied(own, liars, factor) if isinstance(own, TrainedContribution) else own for own in contributions
    ]


@dataclass(frozen=True, eq=False)
class Lied(Around):
    """A contribution that is computed from a training, with the lies of some clients."""

    liars: Mapping[int, str]
    factor: float

    def value(self, context: ClientContext, fitted: TrainingResult | None) -> Value:
        kind = self.liars.get(context.client)
        factor = self.factor if kind in ("scaled", "oversized") else -1.0
        if kind in ("reversed", "scaled"):
            fitted = self._moved(context, fitted, factor)
        value = self.plain.value(context, fitted)
        return _times(value, factor) if kind in ("oversized", "two-faced") else value

    def _moved(
        self, context: ClientContext, fitted: TrainingResult | None, factor: float
    ) -> TrainingResult | None:
        """The trained model, `factor` times as far from where the training began."""
        fit = self.plain.fit(context)
        if fit is None or fitted is None or isinstance(fitted, DataError):
            return fitted
        moved, size = fitted.copy(), len(fit.start)  # a hook's values behind the model stay
        moved[:size] = fit.start + np.float32(factor) * (fitted[:size] - fit.start)
        return moved


def _times(value: Value, factor: float) -> Value:
    """The value times a factor. What is scored stays: a hidden part keeps its direction and its norm."""
    if value.integers is not None:
        return replace(value, integers=np.rint(value.integers * factor).astype(np.int64))
    return value if value.hidden.size else replace(value, clear=value.clear * factor)
