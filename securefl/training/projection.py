"""Public linear maps of features to fewer numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from securefl.core.errors import ConfigError
from securefl.core.streams import stream
from securefl.training.products import dense


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A public linear map of features (n, `features`) to `width` numbers.

    kind "none": the identity. "leading": the first `width` features, for features that come in an order of
    importance. "random": a Gaussian matrix from the public `seed`, which keeps lengths on average.
    """

    kind: Literal["none", "leading", "random"]
    features: int
    width: int
    seed: int = 0

    def words(self) -> dict[str, int | str]:
        """Every field by its word in a model's file."""
        return {"kind": self.kind, "features": self.features, "width": self.width, "seed": self.seed}

    def __post_init__(self) -> None:
        if not 1 <= self.width <= self.features or (self.kind == "none" and self.width < self.features):
            raise ConfigError(
                f"Expected width from 1 to {self.features}, the number of features, and projection "
                f'"leading" or "random" below it; got width {self.width} with projection "{self.kind}".'
            )

    def __call__(self, features: Tensor) -> Tensor:
        """Features (n, `features`) as (n, `width`). It belongs into a chunk of a fixed number of rows."""
        # A product of matrices has other last bits for other numbers of rows: one record more would move all.
        if self.kind == "none":
            return features
        if self.kind == "leading":
            return features[:, : self.width]
        return dense(features.double(), self._matrix.to(features.device))

    @cached_property
    def _matrix(self) -> Tensor:
        drawn = stream(self.seed, "projection", self.features, self.width)
        matrix = drawn.standard_normal((self.features, self.width)) / np.sqrt(self.width)
        return torch.from_numpy(np.ascontiguousarray(matrix.T))
