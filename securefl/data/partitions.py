"""Partitions of a data set between clients: iid, shards, classes, Dirichlet, dominant class, sizes, groups.

A partition reads the number of records and the labels or groups of all of them. So the number of clients, and
each client's number of records of each class, count as public. No epsilon of a study covers them.

Each function returns one array a client of sorted int64 positions into the data set. No position occurs
twice. A function draws from the generator that the caller passes, and raises ConfigError if it cannot meet
the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError
from securefl.core.ranges import Count, Fraction, Positive, Range, Ranged
from securefl.data.dataset import TARGETS, Dataset

Index = NDArray[np.int64]


Kind = Literal["iid", "shards", "classes", "dirichlet", "fedcor", "dominant", "normal", "natural"]

_KINDS: dict[str, tuple[str, str, str]] = {
    "iid": ("", "", "iid"),
    "shards": ("per_client", "", "{0.per_client} shards a client"),
    "classes": ("per_client", "", "{0.per_client} class{1} a client"),
    "dirichlet": ("alpha", "min_size", "Dirichlet {0.alpha:g}"),
    "fedcor": ("concentration", "", "FedCor's Dirichlet {0.concentration:g}"),
    "dominant": ("share", "mean deviation", "{0.share:.0%} of one class"),
    "normal": ("mean deviation", "", "sizes {0.mean:g} ± {0.deviation:g}"),
    "natural": ("", "", "natural"),
}
"""The numbers that a kind needs, those that it also takes, and the kind in words."""
MIN_SIZE = 10
"""The fewest records of a client in a Dirichlet partition, as in Flower and in the code of Li et al."""
DRAWS = 100
"""The most draws of a Dirichlet partition. After these the request counts as infeasible."""


def iid(n: int, clients: int, rng: np.random.Generator) -> tuple[Index, ...]:
    """Divide all n records at random. Clients' sizes differ by at most one."""
    _enough(n, clients)
    return tuple(np.sort(part) for part in np.array_split(rng.permutation(n), clients))


def shards(labels: Index, clients: int, per_client: int, rng: np.random.Generator) -> tuple[Index, ...]:
    """McMahan et al. (2017): sort by label, cut into clients * per_client shards, assign them at random.

    Records of a class are shuffled first, so a shard is a random sample of its class. A client holds at most
    2 * per_client labels. If the classes divide evenly into shards, a shard has exactly one label.
    """
    _enough(len(labels), clients * per_client)
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    cut = np.array_split(by_label, clients * per_client)
    # Neighbouring shards often share a label. Without the shuffle a client would get one label alone.
    hands = rng.permutation(len(cut)).reshape(clients, per_client)
    return _joined([cut[shard] for shard in hand] for hand in hands)


def by_classes(labels: Index, clients: int, per_client: int, rng: np.random.Generator) -> tuple[Index, ...]:
    """Give each client records of exactly `per_client` classes (as in LG-FedAvg and FedLog).

    The classes' numbers of clients differ by at most one. A class's records are divided evenly.
    """
    found = np.unique(labels)
    if per_client > len(found) or clients * per_client < len(found):
        raise ConfigError(
            f"Expected per_client from {-(-len(found) // clients)} to {len(found)}, so that {clients} "
            f"clients hold all {len(found)} classes, got {per_client}."
        )
    holds = np.zeros((clients, len(found)), bool)
    for own in holds:
        # Take the classes with the fewest clients first, in random order among equals.
        own[np.lexsort((rng.random(len(found)), holds.sum(axis=0)))[:per_client]] = True
    parts: list[list[Index]] = [[] for _ in range(clients)]
    for label, holders in zip(found, holds.T, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        _enough(len(members), holders.sum())
        for client, given in zip(*holders.nonzero(), np.array_split(members, holders.sum()), strict=True):
            parts[client].append(given)
    return _joined(parts)


def dirichlet(
    labels: Index, clients: int, alpha: float, rng: np.random.Generator, min_size: int = MIN_SIZE
) -> tuple[Index, ...]:
    """Divide each class between the clients in proportions from Dir(alpha, ..., alpha), without a rest.

    This is the partition of Li et al. (Federated Learning on Non-IID Data Silos, ICDE 2022) and of Flower's
    DirichletPartitioner. For each class in order, proportions (clients,) are drawn. As in the code of both, a
    client that has more than n / clients records already gets none of the class. All classes are drawn again
    until each client has `min_size` records.

    labels: (n,). A small alpha gives a client few classes. A large one gives every client the same mix.

    Raises ConfigError if none of DRAWS draws gives each client `min_size` records.
    """
    _enough(len(labels), clients)
    shuffled = rng.permutation(len(labels))
    members = [shuffled[labels[shuffled] == label] for label in np.unique(labels)]
    for _ in range(DRAWS):
        cut: list[list[Index]] = []
        sizes = np.zeros(clients, np.int64)
        for own in members:
            shares = rng.dirichlet(np.full(clients, alpha)) * (sizes <= len(labels) / clients)
            if not shares.sum() > 0:  # a small alpha can give all of a class to clients that are full
                break
            ends = (np.cumsum(shares / shares.sum()) * len(own)).astype(np.int64)[:-1]
            cut.append(np.split(own, ends))
            sizes += np.diff(ends, prepend=0, append=len(own))
        if sizes.sum() == len(labels) and sizes.min() >= min_size:
            return _joined(zip(*cut, strict=True))
    raise ConfigError(
        f"Expected a Dirichlet partition with {min_size} records or more of each of {clients} clients, got "
        f"none in {DRAWS} draws with alpha = {alpha:g} over {len(labels):,} records. Use a larger alpha, "
        "fewer clients or a smaller min_size."
    )


def fedcor(labels: Index, clients: int, concentration: float, rng: np.random.Generator) -> tuple[Index, ...]:
    """FedCor's unbalanced Dirichlet partition (see `class_counts`). Every record goes to a client.

    The Dirichlet parameter of a class is `concentration` times the share of that class in the whole set,
    as in FedCor's Eq. 146: with ten equal classes, 0.2 means 0.02 a class.
    """
    _enough(len(labels), clients)
    codes = np.unique(labels, return_inverse=True)[1]
    counts = class_counts(np.bincount(codes), clients, concentration, rng)
    cut = [
        np.split(rng.permutation(np.flatnonzero(codes == code)), np.cumsum(wanted)[:-1])
        for code, wanted in enumerate(counts.T)
    ]
    return _joined(zip(*cut, strict=True))


def normal_sizes(
    n: int, clients: int, mean: float, deviation: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw client sizes from N(mean, deviation^2), rounded, each at least 1, with a sum of at most n.

    If the draws sum to more than n, each client keeps its first record. Its other records are scaled down by
    one common factor and rounded down. If the draws sum to less, the remaining records stay unused.
    """
    _enough(n, clients)
    sizes = np.maximum(1, np.rint(rng.normal(mean, deviation, clients))).astype(np.int64)
    if sizes.sum() > n:
        sizes = 1 + (sizes - 1) * (n - clients) // (sizes.sum() - clients)
    return sizes


def sized(n: int, sizes: NDArray[np.int64], rng: np.random.Generator) -> tuple[Index, ...]:
    """Divide random records of n into portions of the given sizes (their sum is at most n)."""
    ends = np.cumsum(sizes)
    return tuple(np.sort(part) for part in np.split(rng.permutation(n), ends)[: len(sizes)])


def natural(
    groups: Index, clients: int | None, rng: np.random.Generator, holders: int = 0
) -> tuple[Index, ...]:
    """Make each group (a writer, a role) one client, in the order of group ids.

    clients: None takes every group. A number takes that many groups at random.
    holders: the number of groups, with records or without. 0 takes the groups that have records.
    """
    names = np.arange(holders) if holders else np.unique(groups)
    if clients is not None:
        if not 1 <= clients <= len(names):
            raise ConfigError(f"Expected between 1 and {len(names)} clients, one a group, got {clients}.")
        names = np.sort(rng.choice(names, clients, replace=False))
    elif not len(names):
        raise ConfigError("Expected at least one group, got none.")
    return tuple(np.flatnonzero(groups == name) for name in names)


def _joined(parts: Iterable[Sequence[Index]]) -> tuple[Index, ...]:
    """The sorted positions of each client, of which it got several arrays."""
    return tuple(np.sort(np.concatenate(part)) for part in parts)


def _enough(n: int, portions: int) -> None:
    if portions < 1:
        raise ConfigError(f"Expected at least one client (and one shard each), got {portions}.")
    if n < portions:
        raise ConfigError(
            f"Expected a record for each of {portions} clients or shards, got {n} records. "
            "Use fewer clients or more data."
        )


@dataclass(frozen=True, kw_only=True)
class Partition(Ranged):
    """A study's partition of a data set between clients.

    >>> from securefl.data import Dataset, Partition
    >>> import numpy as np
    >>> x, y = np.zeros((8, 1), np.float32), np.repeat([0, 1], 4)
    >>> data = Dataset(name="eight", x=x, y=y, classes=2)
    >>> parts = Partition(kind="classes", per_client=1).split(data, 2, np.random.default_rng(0))
    >>> sorted(part.tolist() for part in parts)
    [[0, 1, 2, 3], [4, 5, 6, 7]]

    Args:
        kind: The name of the partition. "natural" makes each group of the data set one client.
        per_client: Shards a client, for "shards". Classes a client, for "classes".
        alpha: Of the Dirichlet distribution over the clients, for "dirichlet".
        min_size: The fewest records of a client, for "dirichlet", by default 10. 0 permits empty clients.
        concentration: Of FedCor's Dirichlet distribution over the classes, for "fedcor".
        share: Of the dominant class in (0, 1], for "dominant".
        mean, deviation: Records a client, for "normal". They are optional for "dominant".

    Raises:
        ValueError: The kind is unknown, or a number is missing, out of range, or not used by the kind.
    """

    kind: Kind
    per_client: Count | None = None
    concentration: Positive | None = None
    alpha: Positive | None = None
    min_size: Annotated[int, Range("[0, 10^9]")] | None = None
    share: Fraction | None = None
    mean: Annotated[float, Range("(0, 10^9]")] | None = None
    deviation: Annotated[float, Range("[0, 10^9]")] | None = None

    def refusals(self) -> Iterator[str]:
        if self.kind not in _KINDS:
            return
        given = self._given()
        needed, taken = (set(names.split()) for names in _KINDS[self.kind][:2])
        for name in sorted(needed - given):
            yield f"Expected {name} for partition {self.kind!r}, got none. Add it."
        # A number that the kind does not use is refused: the author of the study expects an effect of it.
        for name in sorted(given - needed - taken):
            yield f"Expected no {name} for partition {self.kind!r}, got one. Remove it."
        if ("mean" in given) != ("deviation" in given):
            yield "Expected both mean and deviation of client sizes, got one. Add the other."

    def in_words(self) -> str:
        """The partition in a few words, for a figure's legend."""
        return _KINDS[self.kind][2].format(self, "es" if self.per_client != 1 else "")

    def split(self, dataset: Dataset, clients: int | None, rng: np.random.Generator) -> tuple[Index, ...]:
        """Divide the records of a data set between clients.

        Args:
            dataset: Its n records are divided. It needs labels or groups if the kind reads them.
            clients: The number of clients. None is permitted for "natural" and takes every group.
            rng: The source of the random draws.

        Returns:
            For each client, the sorted positions of its records, int64 of shape (records,).

        Raises:
            ConfigError: The data set lacks labels or groups, or its records do not suffice.
        """
        n = len(dataset)
        if self.kind == "natural":
            if dataset.groups is None:
                raise ConfigError(
                    f"Expected groups for a natural partition, got data set {dataset.name!r}, which names no "
                    "client of a record. Divide it under [data], such as by clients = 10 and partition = "
                    '{ kind = "iid" }, or name the client_column.'
                )
            return natural(dataset.groups, clients, rng, dataset.holders)
        if clients is None:
            raise ConfigError(f"Expected a number of clients for partition {self.kind!r}, got none. Add it.")
        numbers = {name: getattr(self, name) for name in self._given()}
        if self.kind == "iid":
            return iid(n, clients, rng)
        if self.kind == "normal":
            return sized(n, normal_sizes(n, clients, rng=rng, **numbers), rng)
        if not dataset.classes:
            raise ConfigError(
                f"Expected class labels for partition {self.kind!r}, got {dataset.name!r} with "
                f"{TARGETS[dataset.task]}. Choose another kind."
            )
        labels: Index = np.maximum(dataset.y, 0)  # an unusable record has the label -1 and counts as a 0
        if self.kind == "dominant":
            share = numbers.pop("share")
            sizes = normal_sizes(n, clients, rng=rng, **numbers) if numbers else None
            return dominant_class(labels, clients, share, rng, sizes)
        deal: Mapping[str, Callable[..., tuple[Index, ...]]] = {
            "shards": shards,
            "classes": by_classes,
            "dirichlet": dirichlet,
            "fedcor": fedcor,
        }
        return deal[self.kind](labels, clients, rng=rng, **numbers)

    def _given(self) -> set[str]:
        """The names of the numbers that are set."""
        return {one.name for one in fields(self) if getattr(self, one.name) is not None} - {"kind"}


# Class imbalance as in FedProf -----------------------------------------------------------------------


def dominant_class(
    labels: Index,
    clients: int,
    share: float,
    rng: np.random.Generator,
    sizes: NDArray[np.int64] | None = None,
) -> tuple[Index, ...]:
    """Give each client round(share * size) records of one class. The rest is uniform over the others.

    sizes: records per client, as `normal_sizes` draws them. The default is n // clients each.

    No record is used twice, and no client has more of its dominant class than its share. A dominant class is
    drawn with probability proportional to its remaining records.

    Raises ConfigError if the classes have too few records.
    """
    n = len(labels)
    _enough(n, clients)
    if sizes is None:
        sizes = np.full(clients, n // clients)
    main = np.rint(share * sizes).astype(np.int64)
    classes, codes = np.unique(labels, return_inverse=True)
    favourite = _favourites(np.bincount(codes), main, rng)

    stock = [rng.permutation(np.flatnonzero(codes == code)) for code in range(len(classes))]
    own: list[Index] = []
    for client in range(clients):
        stack = stock[favourite[client]]
        own.append(stack[: main[client]])
        stock[favourite[client]] = stack[main[client] :]
    # Each open place of a client refuses the client's dominant class. Spare places refuse no class: -1.
    owner = np.repeat(np.arange(clients), sizes - main)
    pool = rng.permutation(np.concatenate(stock))
    refused = np.pad(favourite[owner], (0, len(pool) - len(owner)), constant_values=-1)
    pool = _resolved(pool, codes, refused, rng)[: len(owner)]
    return _joined((own[k], pool[owner == k]) for k in range(clients))


def _favourites(supply: Index, main: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw a dominant class for each client, in proportion to the remaining records of each class.

    supply: records of each class. main: the client's number of records of its dominant class.
    """
    left = supply.copy()
    favourite = np.empty(len(main), np.int64)
    # Large clients come first, in random order among equals: the fewest classes suffice for them.
    order = rng.permutation(len(main))
    for client in order[np.argsort(-main[order], kind="stable")]:
        weight = np.where(left >= main[client], left, 0).astype(np.float64)
        if weight.sum() == 0:
            raise ConfigError(
                f"Expected a class with {main[client]} records left for the dominant class of a client, got "
                "none. Use fewer or smaller clients, or a smaller share."
            )
        favourite[client] = rng.choice(len(supply), p=weight / weight.sum())
        left[favourite[client]] -= main[client]
    return favourite


def _resolved(pool: Index, codes: Index, refused: Index, rng: np.random.Generator) -> Index:
    """Swap records of `pool` at random until no place holds the class that it refuses."""
    pool = pool.copy()
    for place in np.flatnonzero(codes[pool] == refused):
        held = codes[pool[place]]
        if held != refused[place]:
            continue  # an earlier swap has already fixed this place
        partners = np.flatnonzero((codes[pool] != refused[place]) & (refused != held))
        if not len(partners):
            raise ConfigError(
                "Expected enough records of other classes than a client's dominant one, got too few. "
                "Use fewer or smaller clients, or a larger share."
            )
        partner = rng.choice(partners)
        pool[[place, partner]] = pool[[partner, place]]
    return pool


# FedCor's unbalanced Dirichlet partition -------------------------------------------------------------


Floats = NDArray[np.float64]


def class_counts(
    totals: NDArray[np.int64], clients: int, concentration: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw each client's number of records of each class, shape (clients, classes). No record is left over.

    Appendix C.2 of FedCor (Tang et al., CVPR 2022): client k draws a label distribution q_k ~ Dir(alpha p),
    where p is the label distribution of the whole set. The sizes x solve

        min |x|^2  subject to  Q x = d,  x >= 0,        Q = [q_1 ... q_N], d = records per class.

    The paper demands x > 0. We demand instead that every client gets a record.

    totals: records per class, each positive, shape (classes,).

    Counts are Q x rounded down. The remaining records of a class go to random clients, at most one each, with
    probability proportional to the part that was rounded off. Q is drawn again if the problem has no solution
    or leaves a client without a record.

    Raises ConfigError if none of DRAWS draws of Q succeeds: the clients are too few for the concentration.
    """
    prior = totals / totals.sum()
    for _ in range(DRAWS):
        mix = rng.dirichlet(concentration * prior, size=clients).T
        sizes = smallest_sizes(mix, totals.astype(np.float64))
        if sizes is None:
            continue
        counts = _rounded(mix * sizes, totals, rng).T
        if (counts.sum(axis=1) > 0).all():
            return counts
    raise ConfigError(
        f"Expected a FedCor partition in which every one of the {len(totals)} classes finds clients, got "
        f"none in {DRAWS} draws with concentration {concentration} over {clients} clients. Use more clients "
        "(never fewer than classes) or a larger concentration."
    )


def smallest_sizes(mix: Floats, totals: Floats) -> Floats | None:
    """The x of least norm with mix @ x = totals and x >= 0, or None if there is none.

    mix: label distributions as columns, shape (classes, clients). The dual problem is solved, since it has
    only one unknown a class: x = max(0, mix^T y) where y minimises 0.5 |max(0, mix^T y)|^2 - totals . y.
    """
    from scipy.optimize import nnls

    _, distance = nnls(mix, totals)
    if distance > 1e-6 * totals.sum():
        return None
    scale = totals.sum() / mix.shape[1]

    def objective(dual: Floats) -> tuple[float, Floats]:
        x = np.maximum(0.0, mix.T @ dual)
        return 0.5 * float(x @ x) - float(totals @ dual) / scale, mix @ x - totals / scale

    def curvature(dual: Floats) -> Floats:
        active = mix[:, mix.T @ dual > 0]
        return np.asarray(active @ active.T)

    # At dual = 1 every client is active with size `scale`: this is the balanced partition.
    start = np.ones(len(totals))
    options = {"gtol": 1e-9, "maxiter": 200}
    from scipy.optimize import minimize

    found = minimize(objective, start, jac=True, hess=curvature, method="trust-exact", options=options)
    sizes = scale * np.maximum(0.0, mix.T @ found.x)
    # If the solution lies on the edge of feasibility, the dual diverges. It counts as no solution.
    return sizes if np.abs(mix @ sizes - totals).max() < 1e-3 else None


def _rounded(wanted: Floats, totals: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Integer counts of shape (classes, clients) whose rows sum to `totals`, each within one of `wanted`."""
    # The solver's error is below 1e-3. Without this margin a whole number could be rounded down by one.
    floor = np.floor(wanted + 1e-3)
    counts = floor.astype(np.int64)
    parts = np.maximum(wanted - floor, 1e-9)
    for row, left in enumerate(totals - counts.sum(axis=1)):
        if left > 0:
            chosen = rng.choice(wanted.shape[1], size=left, replace=False, p=parts[row] / parts[row].sum())
            counts[row, chosen] += 1
    return counts
