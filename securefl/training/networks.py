"""Frozen networks that compute the features of a study's records, by name.

Features are computed once, and kept by the content of the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm.queries import Float32s
from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import near
from securefl.storage.files import replacing
from securefl.training.chunks import apart
from securefl.training.devices import as_tensor, in_mode
from securefl.training.products import UNIT

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


# Features, kept by the content of the records --------------------------------------------------------


PART: Final = 1024
"""Records that are computed, and kept, together. What was computed before a stop is not computed again."""


def embedded(
    x: NDArray[Any],
    model: nn.Module,
    *,
    network: str,
    folder: Path,
    tell: Callable[[int], None] = lambda done: None,
    lenient: bool = False,
) -> Float32s:
    """Features (n, k) of records (n, ...), in float32. A record's own do not depend on those beside it.

    network: names the model and its weights; another name shares nothing with it. folder: where features are
    kept. tell: is called with the number of records that are done. lenient: whether features may be not
    finite, which is no error where it would tell of a record.
    Raises DataError for kept features that are damaged, or of another network, and for records whose features
    are not finite.
    """
    found = []
    for start in range(0, len(x), PART):
        found.append(_part(np.ascontiguousarray(x[start : start + PART]), model, network, folder, lenient))
        tell(min(start + PART, len(x)))
    if not found:
        raise DataError("Expected at least one record to compute features of, got none.")
    return np.concatenate(found)


def _part(x: NDArray[Any], model: nn.Module, network: str, folder: Path, lenient: bool) -> Float32s:
    path = folder / f"{_key(x, network)}.npz"
    if path.is_file():
        return _kept(path, len(x), network)
    # Chunks of a fixed number of rows: no record's features move with the number of records beside it.
    made = apart(model, model, as_tensor(x), rows=UNIT).numpy().astype(np.float32)
    if not lenient and not np.isfinite(made).all():
        raise DataError("Expected finite features, got some that are not. Clean the records.")
    with suppress(OSError), replacing(path) as target:  # nowhere to keep them: the next run computes again
        np.savez(target, features=made, network=_bytes(network), digest=_bytes(_digest(made)))
    return made


def _key(x: NDArray[Any], network: str) -> str:
    head = f"{network}|{x.dtype.str}|{x.shape}|".encode()
    return hashlib.sha256(head + x.tobytes()).hexdigest()


def _kept(path: Path, records: int, network: str) -> Float32s:
    """What a file keeps, if it is whole and of this network."""
    try:
        # opened here: numpy leaves a file open that is no archive
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            made = file["features"]
            sound = bytes(file["network"]) == network.encode() and bytes(file["digest"]).decode() == _digest(
                made
            )
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        sound = False
    if not sound or made.dtype != np.float32 or made.ndim != 2 or len(made) != records:
        raise DataError(
            f"Expected kept features of {records} records by {network} at {path}, got others. Remove it."
        )
    return np.asarray(made)


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


def _digest(made: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(made).tobytes()).hexdigest()
