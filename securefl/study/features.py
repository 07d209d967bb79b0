"""Features of a study's records: computed client by client by a frozen network, and kept by content."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from securefl.core.errors import ConfigError, SecureFLError
from securefl.data import Dataset
from securefl.data.files import cache_folder
from securefl.data.networks import outside
from securefl.engines.party.computing import Records
from securefl.storage.own_code import CodePlace, importable
from securefl.storage.own_code import load as load_code
from securefl.study.config import Study
from securefl.study.own import Marks, digest_of, features_code
from securefl.training.networks import Network, named

Told = Callable[[int, int], None]
"""Is called with how many records have their features, of how many."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Featured:
    """records: each client's. test: the server's. shape: of one record. marks: of the network."""

    records: Sequence[Records]
    test: Dataset
    shape: tuple[int, ...]
    marks: Marks


def featured(study: Study, records: Sequence[Records], test: Dataset, tell: Told) -> Featured:
    """Records with the features that the study's network computes of them, if it names one.

    A client's features are computed of its records alone, and kept under their digest and the network's.
    Raises ConfigError for a network that is none or does not read the records, and DataError for kept
    features that are damaged, or not finite.
    """
    if study.data.features is None:
        return Featured(records=records, test=test, shape=test.shape, marks=Marks())
    network, place = _network(study)
    width = network.width(test.shape)
    total, done = len(test) + sum(len(x) for x, _ in records), 0

    def of(x: Any, lenient: bool) -> Any:
        nonlocal done
        folder = cache_folder() / "features"
        found = network.features(x, folder, lambda own: tell(done + own, total), lenient=lenient)
        done += len(x)
        return found

    made = [(of(x, study.claims), y) for x, y in records]
    tested = Dataset(name=test.name, x=of(test.x, False), y=test.y, classes=test.classes, fitted=test.fitted)
    return Featured(records=made, test=tested, shape=(width,), marks=_marks(network, place, test.name))


def _network(study: Study) -> tuple[Network, CodePlace | None]:
    place = features_code(study)
    return (named(study.data.features or "") if place is None else _own(study, place)), place


def _own(study: Study, place: CodePlace) -> Network:
    """The network that a function of the study's own returns."""
    factory = load_code(place)
    if not inspect.isroutine(factory) and not inspect.isclass(factory):
        raise ConfigError(f"[data] Expected {place.name} to be a class or function, got something else.")
    try:
        with importable(place):
            module, again = factory(), factory()
    except SecureFLError:
        raise
    # The function is the study's own code: it may fail in any way, and end the process as scripts do.
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"[data] Expected {place.name}() to make a network, got {type(error).__name__}: {error}. Mend it."
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"[data] Expected {place.name}() to make an nn.Module, got {type(module).__name__}."
        )
    digest = digest_of(module, sources=False)
    # Features that no later process could compute again would be kept under a name that never comes back.
    if not isinstance(again, nn.Module) or digest_of(again, sources=False) != digest:
        raise ConfigError(
            f"[data] Expected {place.name}() to make the same network each time, got others. Draw its values "
            "from a seeded generator, or read them from a file."
        )
    name = f"{place.name} {place.sha256} {digest}"
    return Network(module=module, name=name, about=study.data.network or "")


def _marks(network: Network, place: CodePlace | None, source: str) -> Marks:
    sentence = outside(network.about, source)
    words = {"features": network.about or network.name}
    return Marks(
        bound={"features": hashlib.sha256(network.name.encode()).hexdigest()},
        words=words if place is None else {**words, "code of the features": str(place)},
        outside=(sentence,) if sentence else (),
    )
