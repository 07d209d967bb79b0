"""Who holds which records: disjoint index sets, one a client, drawn from an injected generator.

A partition reads the labels or groups of all records, and their number. So the number of clients, and how
many records of which class each of them holds, belong to the public setting. No epsilon of a study covers
that.

Each function returns sorted int64 positions into the data set, one array a client, no position twice. It
raises ConfigError if it cannot meet the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError
from securefl.data.dataset import Dataset
from securefl.data.dirichlet import class_counts
from securefl.data.dominant_class import dominant_class

Index = NDArray[np.int64]
Kind = Literal["iid", "shards", "classes", "dirichlet", "dominant", "normal", "natural"]

_MOST_RECORDS = 1e9
_NEEDED: dict[Kind, tuple[str, ...]] = {
    "iid": (),
    "shards": ("per_client",),
    "classes": ("per_client",),
    "dirichlet": ("concentration",),
    "dominant": ("share",),
    "normal": ("mean", "deviation"),
    "natural": (),
}
_ALLOWED: dict[Kind, tuple[str, ...]] = {**_NEEDED, "dominant": ("share", "mean", "deviation")}


def iid(n: int, clients: int, rng: np.random.Generator) -> tuple[Index, ...]:
    """All n records at random, client sizes equal to within one."""
    _enough(n, clients)
    return tuple(np.sort(part) for part in np.array_split(rng.permutation(n), clients))


def shards(labels: Index, clients: int, per_client: int, rng: np.random.Generator) -> tuple[Index, ...]:
    """McMahan et al. (2017): sort by label, cut into clients * per_client shards, deal them at random.

    Records of a class are shuffled first, so that a shard is a random sample of it. A client holds at most
    2 * per_client labels. If the classes divide evenly into shards, a shard has exactly one label.
    """
    _enough(len(labels), clients * per_client)
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    cut = np.array_split(by_label, clients * per_client)
    # neighbouring shards have one label: dealt in order, a client would get one label alone
    hands = rng.permutation(len(cut)).reshape(clients, per_client)
    return tuple(np.sort(np.concatenate([cut[shard] for shard in hand])) for hand in hands)


def by_classes(labels: Index, clients: int, per_client: int, rng: np.random.Generator) -> tuple[Index, ...]:
    """Each client holds records of exactly `per_client` classes (as in LG-FedAvg and FedLog).

    Every class goes to as many clients as every other, give or take one, and its records are dealt evenly.
    """
    found = np.unique(labels)
    if per_client > len(found) or clients * per_client < len(found):
        raise ConfigError(
            f"Expected {clients} clients of {per_client} classes each to hold all {len(found)} classes, got "
            "a number at which they cannot. Change per_client."
        )
    holders: list[list[int]] = [[] for _ in found]
    for client in range(clients):
        held = np.array([len(own) for own in holders])
        # the classes with the fewest holders first, in random order among equals
        fewest = np.lexsort((rng.random(len(found)), held))
        for place in fewest[:per_client]:
            holders[place].append(client)
    parts: list[list[Index]] = [[] for _ in range(clients)]
    for label, own in zip(found, holders, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        _enough(len(members), len(own))
        for client, given in zip(own, np.array_split(members, len(own)), strict=True):
            parts[client].append(given)
    return tuple(np.sort(np.concatenate(part)) for part in parts)


def dirichlet(
    labels: Index, clients: int, concentration: float, rng: np.random.Generator
) -> tuple[Index, ...]:
    """FedCor's unbalanced Dirichlet partition (see `securefl.data.dirichlet`). Every record is handed out.

    The Dirichlet parameter of a class is `concentration` times the share of that class in the whole set,
    as in FedCor's Eq. 146: with ten equal classes, 0.2 means 0.02 a class.
    """
    _enough(len(labels), clients)
    codes = np.unique(labels, return_inverse=True)[1]
    counts = class_counts(np.bincount(codes), clients, concentration, rng)
    parts: list[list[Index]] = [[] for _ in range(clients)]
    for code, wanted in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(codes == code))
        for part, given in zip(parts, np.split(members, np.cumsum(wanted)[:-1]), strict=True):
            part.append(given)
    return tuple(np.sort(np.concatenate(part)) for part in parts)


def normal_sizes(
    n: int, clients: int, mean: float, deviation: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Client sizes from N(mean, deviation^2), rounded, each at least 1, summing to at most n.

    If the draws sum to more than n, the records of a client beyond its first one are scaled down by a common
    factor and rounded down. If they sum to less, the other records stay unused.
    """
    _enough(n, clients)
    sizes = np.maximum(1, np.rint(rng.normal(mean, deviation, clients))).astype(np.int64)
    if sizes.sum() > n:
        sizes = 1 + (sizes - 1) * (n - clients) // (sizes.sum() - clients)
    return sizes


def sized(n: int, sizes: NDArray[np.int64], rng: np.random.Generator) -> tuple[Index, ...]:
    """Random records of n, in client portions of the given sizes (their sum is at most n)."""
    ends = np.cumsum(sizes)
    return tuple(np.sort(part) for part in np.split(rng.permutation(n), ends)[: len(sizes)])


def natural(
    groups: Index, clients: int | None, rng: np.random.Generator, holders: int = 0
) -> tuple[Index, ...]:
    """One client a group (writer, role), in the order of group ids.

    clients: None takes every group. A number takes that many groups at random. holders: how many groups there
    are, with records or without; 0 takes those that have records.
    """
    names = np.arange(holders) if holders else np.unique(groups)
    if clients is not None:
        if not 1 <= clients <= len(names):
            raise ConfigError(f"Expected between 1 and {len(names)} clients, one a group, got {clients}.")
        names = np.sort(rng.choice(names, clients, replace=False))
    elif not len(names):
        raise ConfigError("Expected at least one group, got none.")
    return tuple(np.flatnonzero(groups == name) for name in names)


def _enough(n: int, portions: int) -> None:
    if portions < 1:
        raise ConfigError(f"Expected at least one client (and one shard each), got {portions}.")
    if n < portions:
        raise ConfigError(
            f"Expected a record for each of {portions} clients or shards, got {n} records. "
            "Use fewer clients or more data."
        )


@dataclass(frozen=True, kw_only=True)
class Partition:
    """How a data set is shared out, as a configuration says it.

    per_client: shards a client, for "shards"; classes a client, for "classes".
    concentration: for "dirichlet".
    share: of the dominant class in (0, 1], for "dominant".
    mean, deviation: records a client, for "normal", and if wanted for "dominant".

    Raises ValueError for a number that is missing, out of range, or not used by the kind.
    """

    kind: Kind
    per_client: int | None = None
    concentration: float | None = None
    share: float | None = None
    mean: float | None = None
    deviation: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in _NEEDED:
            raise ValueError(f"Expected kind to be one of {', '.join(_NEEDED)}, got {self.kind!r}.")
        numbers = ("per_client", "concentration", "share", "mean", "deviation")
        given = {name for name in numbers if getattr(self, name) is not None}
        for name in _NEEDED[self.kind]:
            if name not in given:
                raise ValueError(f"Expected {name} for partition {self.kind!r}, got none. Add it.")
        # A number that the kind does not read is refused: its author believes that it has an effect.
        for name in sorted(given):
            if name not in _ALLOWED[self.kind]:
                raise ValueError(f"Expected no {name} for partition {self.kind!r}, got one. Remove it.")
        if ("mean" in given) != ("deviation" in given):
            raise ValueError("Expected both mean and deviation of client sizes, got one. Add the other.")
        self._check_ranges()

    def in_words(self) -> str:
        """The partition as a legend says it."""
        match self.kind:
            case "shards":
                return f"{self.per_client} shards a client"
            case "classes":
                return f"{self.per_client} class{'es' if self.per_client != 1 else ''} a client"
            case "dirichlet":
                return f"Dirichlet {self.concentration:g}"
            case "dominant":
                return f"{self.share:.0%} of one class"
            case "normal":
                return f"sizes {self.mean:g} ± {self.deviation:g}"
            case _:
                return self.kind

    def _check_ranges(self) -> None:
        # written so that NaN fails too
        if self.per_client is not None and not self.per_client >= 1:
            raise ValueError(f"Expected per_client >= 1, got per_client={self.per_client}.")
        if self.concentration is not None and not 0 < self.concentration < np.inf:
            raise ValueError(
                f"Expected concentration > 0 and finite, got concentration={self.concentration}."
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"Expected 0 < share <= 1, got share={self.share}.")
        if self.mean is not None and not 0 < self.mean <= _MOST_RECORDS:
            raise ValueError(f"Expected 0 < mean <= {_MOST_RECORDS:g}, got mean={self.mean}.")
        if self.deviation is not None and not 0 <= self.deviation <= _MOST_RECORDS:
            raise ValueError(f"Expected 0 <= deviation <= {_MOST_RECORDS:g}, got deviation={self.deviation}.")

    def split(self, dataset: Dataset, clients: int | None, rng: np.random.Generator) -> tuple[Index, ...]:
        """Record indices of each of `clients` clients. None: "natural" takes every group.

        Raises ConfigError if the data set has no labels or groups for the kind, or cannot be cut so.
        """
        n = len(dataset)
        if self.kind == "natural":
            return natural(self._groups(dataset), clients, rng, dataset.holders)
        if clients is None:
            raise ConfigError(f"Expected a number of clients for partition {self.kind!r}, got none. Add it.")
        match self.kind:
            case "iid":
                return iid(n, clients, rng)
            case "shards":
                return shards(self._labels(dataset), clients, self.per_client or 0, rng)
            case "classes":
                return by_classes(self._labels(dataset), clients, self.per_client or 0, rng)
            case "dirichlet":
                return dirichlet(self._labels(dataset), clients, self.concentration or 0.0, rng)
            case "dominant":
                sizes = self._sizes(n, clients, rng)
                return dominant_class(self._labels(dataset), clients, self.share or 0.0, rng, sizes)
            case "normal":
                sizes = normal_sizes(n, clients, self.mean or 0.0, self.deviation or 0.0, rng)
                return sized(n, sizes, rng)
            case _:
                assert_never(self.kind)

    def _groups(self, dataset: Dataset) -> Index:
        if dataset.groups is None:
            raise ConfigError(
                f"Expected groups for a natural partition, got data set {dataset.name!r}, which does not say "
                "whose a record is. Share it out under [data], such as by clients = 10 and partition = "
                '{ kind = "iid" }, or name the client_column.'
            )
        return dataset.groups

    def _labels(self, dataset: Dataset) -> Index:
        if not dataset.classes:
            raise ConfigError(
                f"Expected class labels for partition {self.kind!r}, got {dataset.name!r} without any. "
                "Choose another kind."
            )
        labels: Index = np.maximum(dataset.y, 0)  # an unusable record has none: it is dealt out as a 0
        return labels

    def _sizes(self, n: int, clients: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        if self.mean is None or self.deviation is None:
            return None
        return normal_sizes(n, clients, self.mean, self.deviation, rng)
