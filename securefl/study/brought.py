"""What a caller in Python hands to a study, in place of what its text would name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torch import nn


@dataclass(frozen=True, kw_only=True, eq=False)
class Brought:
    """data: records in place of `[data] source`: arrays, a Dataset, one per client, or torch's or Hugging
    Face's data sets. model: makes the model in place of `[model] kind`."""

    data: object | None = None
    model: Callable[..., nn.Module] | None = None


NOTHING: Final = Brought()
"""One for all, so that two studies of one text are equal."""
