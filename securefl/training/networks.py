"""Frozen networks that compute the features of a study's records, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from securefl.core.errors import ConfigError
from securefl.core.reading import near
from securefl.rounds import Float32s
from securefl.training.embedding import embedded
from securefl.training.tensors import in_mode

GROUP: Final = "securefl.networks"
"""Entry points of functions without arguments that return a Network."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """module: records (n, *shape) -> features (n, k), each record on its own. It is never trained here.

    name: tells it and its weights from all others, such as a word and a SHA-256: features are kept under it.
    about: which network it is and what it was trained on, for people; "" where nobody knows.
    """

    module: nn.Module
    name: str
    about: str

    def width(self, shape: tuple[int, ...]) -> int:
        """k, the number of features of a record of this shape.

        Raises ConfigError for records that it does not read, and for what are no features.
        """
        try:
            with torch.no_grad(), in_mode(self.module, training=False):
                found = self.module(torch.zeros((1, *shape)))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ConfigError(
                f"Expected records that {self.name.split()[0]} reads, got some of shape {shape}: "
                f"{str(error)[:200]}. Take another source or network."
            ) from None
        if not isinstance(found, torch.Tensor) or found.ndim != 2 or len(found) != 1:
            raise ConfigError(
                f"Expected {self.name.split()[0]} to turn records (n, *shape) into features (n, k), got "
                f"{tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__}."
            )
        return int(found.shape[1])

    def features(
        self, x: NDArray[Any], folder: Path, tell: Callable[[int], None], *, lenient: bool = False
    ) -> Float32s:
        """Features (n, k) of records (n, *shape), kept in `folder` by content (`embedding.embedded`).

        tell: is called with the number of records that are done. lenient: as there.
        """
        if not len(x):
            return np.empty((0, self.width(x.shape[1:])), np.float32)
        return embedded(x, self.module, network=self.name, folder=folder, tell=tell, lenient=lenient)


def points() -> dict[str, EntryPoint]:
    """The networks of installed packages, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def named(word: str) -> Network:
    """The network of this name. Raises ConfigError where there is none, or its packages are missing."""
    if (point := points().get(word)) is None:
        known = sorted(points())
        raise ConfigError(
            f"Expected features of a network among {', '.join(known)}, or a function as `module:name` that "
            f"returns one, got {word!r}{near(word, known)}."
        )
    found = point.load()()
    if not isinstance(found, Network):
        raise ConfigError(f"Expected {point.value} to return a Network, got {type(found).__name__}.")
    return found
