"""Class imbalance as in FedProf: each client has one class that makes up a fixed share of its records."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError

Index = NDArray[np.int64]
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
