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
from scipy.optimize import minimize, nnls

from securefl.core.errors import ConfigError
from securefl.data.dataset import Dataset

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
    """FedCor's unbalanced Dirichlet partition (see `securefl.data.partitions`). Every record is handed out.

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


# Class imbalance as in FedProf -----------------------------------------------------------------------


_SPARE = -1


def dominant_class(
    labels: Index,
    clients: int,
    share: float,
    rng: np.random.Generator,
    sizes: NDArray[np.int64] | None = None,
) -> tuple[Index, ...]:
    """Indices per client: round(share * size) records of one class, the rest uniform over the others.

    sizes: records per client. The default is n // clients each. No record is used twice, and no client has
    more of its dominant class than its share. Dominant classes are drawn in proportion to the records they
    have left.

    Raises ConfigError if the classes cannot supply this.
    """
    n = len(labels)
    if sizes is None:
        sizes = np.full(clients, n // clients if clients else 0)
    if len(sizes) != clients or clients < 1 or sizes.min() < 1 or sizes.sum() > n:
        raise ConfigError(
            f"Expected {clients} client sizes of at least one record and at most {n} in all, "
            f"got {len(sizes)} with sum {sizes.sum()}."
        )
    main = np.rint(share * sizes).astype(np.int64)
    classes, codes = np.unique(labels, return_inverse=True)
    favourite = _favourites(np.bincount(codes), main, rng)

    stock = [rng.permutation(np.flatnonzero(codes == code)) for code in range(len(classes))]
    own: list[Index] = []
    for client in range(clients):
        stack = stock[favourite[client]]
        own.append(stack[: main[client]])
        stock[favourite[client]] = stack[main[client] :]
    # every open place of a client refuses that client's own class; spare places refuse nothing
    owner = np.repeat(np.arange(clients), sizes - main)
    pool = rng.permutation(np.concatenate(stock))
    refused = np.full(len(pool), _SPARE)
    refused[: len(owner)] = favourite[owner]
    pool = _resolved(pool, codes, refused, rng)[: len(owner)]
    return tuple(np.sort(np.concatenate([own[k], pool[owner == k]])) for k in range(clients))


def _favourites(supply: Index, main: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A class for each client that has `main` records left, drawn in proportion to what it has left."""
    left = supply.copy()
    favourite = np.empty(len(main), np.int64)
    # large clients first, in random order among equals: they are the hardest to serve
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
    """`pool` with records swapped at random until no place holds a class that it refuses."""
    pool = pool.copy()
    for place in np.flatnonzero(codes[pool] == refused):
        held = codes[pool[place]]
        if held != refused[place]:
            continue  # an earlier swap has served this place
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


DRAWS = 100
"""Draws of Q after which a set-up counts as infeasible."""

Floats = NDArray[np.float64]


def class_counts(
    totals: NDArray[np.int64], clients: int, concentration: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Records of each class for each client, shape (clients, classes). Every record is handed out.

    Appendix C.2 of FedCor (Tang et al., CVPR 2022): client k draws a label distribution q_k ~ Dir(alpha p),
    where p is the label distribution of the whole set. The sizes x solve

        min |x|^2  subject to  Q x = d,  x >= 0,        Q = [q_1 ... q_N], d = records per class.

    The paper asks for x > 0; we ask that every client ends with a record.

    totals: records per class, each positive, shape (classes,).
    Counts are Q x rounded down. The rest of a class goes to random clients, at most one record each, with
    probability proportional to the part that was rounded off. Q is drawn again if the programme has no
    solution or leaves a client without a record.

    Raises ConfigError if none of DRAWS draws will do: there are too few clients for so small a concentration.
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
        f"Expected a Dirichlet partition in which every one of the {len(totals)} classes finds clients, got "
        f"none in {DRAWS} draws with concentration {concentration} over {clients} clients. Use more clients "
        "(never fewer than classes) or a larger concentration."
    )


def smallest_sizes(mix: Floats, totals: Floats) -> Floats | None:
    """The x of least norm with mix @ x = totals and x >= 0, or None if there is none.

    mix: label distributions as columns, shape (classes, clients). It is solved in the dual, which has only
    one
    unknown a class: x = max(0, mix^T y) where y minimises 0.5 |max(0, mix^T y)|^2 - totals . y.
    """
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

    # at dual = 1 every client is active, with size `scale`: the balanced partition
    start = np.ones(len(totals))
    options = {"gtol": 1e-9, "maxiter": 200}
    found = minimize(objective, start, jac=True, hess=curvature, method="trust-exact", options=options)
    sizes = scale * np.maximum(0.0, mix.T @ found.x)
    # a solution on the edge of feasibility sends the dual to infinity: as good as none
    return sizes if np.abs(mix @ sizes - totals).max() < 1e-3 else None


def _rounded(wanted: Floats, totals: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Integer counts of shape (classes, clients) whose rows sum to `totals`, each within one of `wanted`."""
    # the solver is exact to less than this; without it a whole number may land below itself
    floor = np.floor(wanted + 1e-3)
    counts = floor.astype(np.int64)
    parts = np.maximum(wanted - floor, 1e-9)
    for row, left in enumerate(totals - counts.sum(axis=1)):
        if left > 0:
            chosen = rng.choice(wanted.shape[1], size=left, replace=False, p=parts[row] / parts[row].sum())
            counts[row, chosen] += 1
    return counts
