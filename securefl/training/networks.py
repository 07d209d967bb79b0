"""Frozen feature networks by name, and a cache of the features that they compute of a study's records.

Features are computed once. The cache finds them by the content of the records.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm.queries import Float32s
from securefl.core.errors import ConfigError, DataError
from securefl.core.formats import prefix
from securefl.core.installed import entry_points
from securefl.core.reading import near
from securefl.data.array_files import npz
from securefl.data.files import digest
from securefl.storage import owned
from securefl.storage.files import folder_at, replacing, write
from securefl.storage.own_code import CodePlace, load, running
from securefl.training.chunks import per_record_outputs
from securefl.training.devices import as_tensor, in_mode
from securefl.training.products import UNIT

GROUP: Final = "securefl.networks"
"""The entry-point group of functions without arguments that return a `Network`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """A frozen network that computes features.

    module: records (n, *shape) -> features (n, k), each record on its own. It is not trained.
    name: identifies the network and its weights, such as a word and a SHA-256. It is a key of the cache.
    about: the network and its training data, for people, or "" if they are unknown.
    tokens: turns n texts into records (n, tokens) of codes, int64, or None if the network reads no text.
    """

    module: nn.Module
    name: str
    about: str
    tokens: Callable[[Sequence[str]], NDArray[np.int64]] | None = None

    def width(self, shape: tuple[int, ...]) -> int:
        """The number k of features of a record of this shape.

        Raises ConfigError if the network cannot read such records, or if its output is not of shape (n, k).
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
        """Compute the features (n, k) of records (n, *shape). A record's features do not depend on others.

        folder: the folder of the cache. Features under another name than this network's are not used.
        tell: called with the number of finished records.
        lenient: whether features may be infinite or nan. A study with a finite epsilon needs this, since an
            error would reveal a record.

        Raises DataError if cached features are damaged or of another network, or if a feature is not finite
        and `lenient` is not set.
        """
        if not len(x):
            return np.empty((0, self.width(x.shape[1:])), np.float32)
        found = []
        for start in range(0, len(x), PART):
            found.append(_part(np.ascontiguousarray(x[start : start + PART]), self, folder, lenient))
            tell(min(start + PART, len(x)))
        return np.concatenate(found)


def points() -> dict[str, EntryPoint]:
    """The entry points of networks of installed packages, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def named(word: str) -> Network:
    """The network named `word`. Raises ConfigError if there is none, or if its packages are missing."""
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


def made_by(place: CodePlace, about: str) -> Network:
    """The network that a class or function of a person's own code makes. This runs the code.

    about: the network in words, or "". Raises ConfigError if it makes no module, or another one each time.
    """
    factory = load(place)
    if not inspect.isroutine(factory) and not inspect.isclass(factory):
        raise ConfigError(
            f"Expected {place.name} to be a class or function, got one of type {type(factory).__name__}."
        )
    with running(place, f"Expected {place.name}() to make a network"):
        module, again = factory(), factory()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"Expected {place.name}() to make an nn.Module, got {type(module).__name__}.")
    sha256 = digest_of(module)
    # A network that differs at each call would never find its cached features again.
    if not isinstance(again, nn.Module) or digest_of(again) != sha256:
        raise ConfigError(
            f"Expected {place.name}() to make the same network each time, got two that differ. Draw "
            "its values from a seeded generator, or read them from a file."
        )
    return Network(module=module, name=f"{place.name} {place.sha256} {sha256}", about=about)


def published(path: Path, sha256: str, package: str) -> Path:
    """The path of a package's file. Raises DataError if there is none, or one of another digest."""
    found = digest(path) if path.is_file() else "no file"
    if found != sha256:
        raise DataError(
            f"Expected the published file at {path}, SHA-256 {sha256}, got {found}. Nothing of the file was "
            f"read. Reinstall {package}."
        )
    return path


def digest_of(model: nn.Module) -> str:
    """SHA-256 of a module: its printed form and its initial values. Its code is no part of it."""
    found = hashlib.sha256(repr(model).encode())
    for key, entry in model.state_dict().items():
        found.update(f"{key} {tuple(entry.shape)}".encode())
        # As bytes: numpy has no bfloat16.
        found.update(entry.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


# Features, cached by the content of the records ------------------------------------------------------


_KEY: Final = "names.key"
_KEY_BYTES: Final = 32
PART: Final = 1024
"""The number of records that are computed and cached together. A cached part is not computed again."""


def _part(x: NDArray[Any], by: Network, folder: Path, lenient: bool) -> Float32s:
    key, network, model = _secret(folder), by.name, by.module
    path = None if key is None else folder / f"{_name(x, network, key)}.npz"
    if path is not None and path.is_file():
        return _kept(path, len(x), network)
    # Chunks of a fixed number of rows: no record's features depend on the number of other records.
    made = per_record_outputs(model, "outputs", model, as_tensor(x), rows=UNIT).numpy().astype(np.float32)
    if not lenient and not np.isfinite(made).all():
        raise DataError("Expected finite features, got some that are not. Clean the records.")
    if path is not None:
        with suppress(OSError), replacing(path, secret=True) as target:
            np.savez(target, features=made, network=_bytes(network), digest=_bytes(_digest(made)))
    return made


def _secret(folder: Path) -> bytes | None:
    """The key of the names in a cache, made with the cache; None if only its owner cannot have it.

    Without a cache the next run computes the features again.
    """
    path = folder / _KEY
    try:
        folder_at(folder, mode=0o700)
        if owned.reason(folder):
            return None
        folder.chmod(0o700)
        if not path.exists():
            write(path, os.urandom(_KEY_BYTES), secret=True)
        return owned.secret(path, _KEY_BYTES, lost="", seen="", error=DataError)
    except (OSError, DataError):
        return None


def _name(x: NDArray[Any], network: str, key: bytes) -> str:
    # Keyed: a digest of the records would confirm a guess of them to whoever reads the folder's names.
    # By the version in front, features that another one kept are not found, and are computed again.
    head = prefix("features") + f"{network}|{x.dtype.str}|{x.shape}|".encode()
    return hmac.new(key, head + x.tobytes(), hashlib.sha256).hexdigest()


def _kept(path: Path, records: int, network: str) -> Float32s:
    """The features in a cached file. Raises DataError if it is damaged or of another network."""
    try:
        made, named, told = npz(path, ["features", "network", "digest"]).values()
        sound = bytes(named) == network.encode() and bytes(told).decode() == _digest(made)
    except (DataError, UnicodeDecodeError):
        sound = False
    if not sound or made.dtype != np.float32 or made.ndim != 2 or len(made) != records:
        raise DataError(
            f"Expected kept features of {records} records by {network} at {path}, got a file "
            "that is damaged or of other records. Remove it."
        )
    return np.asarray(made)


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


def _digest(made: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(made).tobytes()).hexdigest()
