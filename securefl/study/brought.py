"""What a caller in Python hands to a study, in place of what its text would name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True, eq=False)
class Brought:
    """data: records in place of `[data] source`: arrays, a Dataset, one per client, or torch's or Hugging
    Face's data sets. model: makes the model in place of `[model] kind`."""

    data: object | None = None
    model: Callable[..., nn.Module] | None = None

    def __eq__(self, other: object) -> bool:
        """Whether the very same things were brought: arrays compare entry by entry."""
        return isinstance(other, Brought) and self.data is other.data and self.model is other.model

    def __hash__(self) -> int:
        return hash((id(self.data), id(self.model)))
