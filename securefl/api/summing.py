"""`securefl.masked_sum`: the secure sum of clients' vectors, in one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import ArrayLike, NDArray

from securefl.accounting.named_ledger import Id
from securefl.algorithm.plan import NO_NOISE, Plan
from securefl.algorithm.queries import Sum, Value, ValueSpec
from securefl.api.ledgers import ask
from securefl.api.vectors import Vectors, vectors
from securefl.core.arguments import checked
from securefl.core.errors import BudgetExceeded, ConfigError, DataError, ProtocolError
from securefl.core.grid import Grid
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.distributed import Distributed

_COARSE: Final = 2.0**-16
"""Step of the grid over the clip, with noise. It is negligible beside the noise."""
_ROOM: Final = 2.0**14
"""Bound of the grid over the clip, with noise: a value and its share of the noise."""
_LARGEST: Final = 1e100
"""The largest bound; its inverse is the smallest. Grids of such bounds neither overflow nor underflow."""
_NAME: Final = "vector"


@dataclass(frozen=True, eq=False)
class MaskedSum:
    """The sum of the survivors' vectors, and what each party learnt.

    Attributes:
        total: in the shape of one vector, float64. With `clip` it is the total of the clipped vectors, and
            with noise it is noised.
        survivors: the ids of the clients in the total.
        absent: the reason for each other client.
        learns: what each party learnt, in words, by "server", "key-holder" and "others".
        event: the release's cost for a client against the server, as an event of dp-accounting.
        epsilon: for each party, the largest epsilon that any client of the ledger has spent. Without noise it
            is infinite. Without a ledger it covers this release alone.
        error: the largest error of an entry of the total, without noise and clipping.
    """

    total: NDArray[np.float64]
    survivors: tuple[Any, ...]
    absent: Mapping[Any, str]
    learns: Mapping[str, str]
    event: DpEvent
    epsilon: Mapping[str, float]
    error: float


@checked
def masked_sum(
    vectors_of: Mapping[Any, ArrayLike] | Sequence[ArrayLike] | NDArray[Any],
    *,
    corrupt: float,
    min_honest: int,
    max_client_weight: float,
    bound: float | None = None,
    clip: float | None = None,
    dropout: float = 0.0,
    silent: Collection[Any] = (),
    noise_multiplier: float = 0.0,
    delta: float | None = None,
    budget: float | None = None,
    ledger: Path | str | None = None,
) -> MaskedSum:
    """Add clients' vectors by secure aggregation: the server learns the total and no single vector.

        >>> import securefl
        >>> updates = {"ann": [1.0, 2.0], "bob": [0.5, 0.0], "eve": [0.25, 1.0], "joe": [9.0, 9.0]}
        >>> trust = {"corrupt": 0.25, "dropout": 0.25, "min_honest": 2, "max_client_weight": 0.5}
        >>> found = securefl.masked_sum(updates, bound=10, silent=["joe"], **trust)
        >>> found.total.round(6), found.survivors, found.epsilon["server"]
        (array([1.75, 3.  ]), ('ann', 'bob', 'eve'), inf)

    All parties run in this process, and every message passes as bytes. A client's whole vector is one
    release, with unit "client" and adjacency "zero-out": the client's vector against zeros.

    Args:
        vectors_of: each client's vector by its id, a text, a whole number or a tuple of these; or a list,
            whose clients are called 0, 1 and so on. All have one shape.
        corrupt: the largest fraction of the clients that may collude with the server. 0 means none.
        min_honest: the least number of honest clients in the sum.
        max_client_weight: the largest fraction that one client's variance may have of the variance of the
            honest clients that surely remain in the sum, 1 / (1 + m) beside m others. The RMS error of a
            guess of the client's vector from the sum is at least sqrt(1 - max_client_weight) of the vector's
            standard deviation. Take 0.5 or less.
        bound: the largest absolute value of an entry. A larger entry is an error.
        clip: in place of `bound`: a vector with a larger L2 norm is scaled down to it. Noise needs `clip`.
        dropout: the largest fraction of the clients that may fall silent.
        silent: ids of clients that fall silent, for experiments.
        noise_multiplier: deviation of the noise in the total over `clip`. Each client adds a share of the
            noise, and the shares of the honest survivors are enough. 0 is no noise, and epsilon is infinite.
        delta: of epsilon, needed with noise or a ledger.
        budget: the largest epsilon of a client, over all calls with this ledger.
        ledger: the file in which charges are committed before any vector leaves; needed with a budget. All
            calls with it, and those of `select_by_profile` and `SecureAggregator`, have one budget for each
            client. They may have other clients in any order. Without a ledger this release is accounted
            alone, and the caller must compose `event`.

    Without noise, the sums of two calls reveal their difference.

    Returns:
        The total, its survivors, and the release's cost.

    Raises:
        ConfigError: parameters are not valid, or a sum under them needs more clients.
        DataError: vectors are not finite, are out of bounds, or have different shapes; then no client was
            charged.
        BudgetExceeded: too many clients' budgets do not bear the release. No sum was opened; charges stay.
        ProtocolError: too many clients fell silent. No sum was opened; charges stay.
    """
    given = vectors(vectors_of)
    trust = {"corrupt": corrupt, "dropout": dropout, "max_client_weight": max_client_weight}
    spec = _sends(given, bound, clip, noise_multiplier)
    plan = _plan(given, noise_multiplier, delta, budget, ledger, min_honest=min_honest, **trust)
    if not isinstance(silent, Collection) or isinstance(silent, str):
        raise ConfigError(f"Expected `silent` as a list of ids, got {silent!r}.")
    if strange := [name for name in silent if name not in given.names]:
        raise ConfigError(f"Expected silent clients among {list(given.names)}, got {strange[0]!r}.")
    # Clipped to the declared sensitivity itself, so that no charge is of another norm.
    clip = next(iter(spec.sensitivity.values()), None)
    rows = dict(zip(given.names, given.rows, strict=True))

    def compute(name: Id) -> Value:
        if name in silent:
            raise DataError("It fell silent, as it was told to.")
        return Value(clear=rows[name]) if clip is None else Value.summed(rows[name][None], spec.grid, clip)

    sums = (Sum(spec, given.rows.shape[1]),)
    answers, there, told, refused = ask(plan, spec, given.names, compute, ledger, sums=sums)
    if not there:
        allowed = len(given.names) - plan.survivors(len(given.names))
        reasons = "; ".join(f"{name}: {why}" for name, why in told["absent"].items() if why)
        raise (BudgetExceeded if refused else ProtocolError)(
            f"Expected at most {allowed} of {len(given.names)} clients to be absent from the sum, got more: "
            f"{reasons or 'no client gave a reason'}"
        )
    return MaskedSum(
        total=answers.totals[_NAME].value.reshape(given.shape),
        survivors=tuple(there),
        event=Protection(plan, spec).charge().server,
        error=len(there) * spec.grid.step * (0.5 if clip is None else 1.0),
        **told,
    )


def _sends(given: Vectors, bound: float | None, clip: float | None, noise: float) -> ValueSpec:
    """The spec of a client's vector, with its grid."""
    if (bound is None) == (clip is None):
        raise ConfigError("Expected `bound` or `clip`, one of the two, got both or none.")
    largest = bound if clip is None else clip
    assert largest is not None
    if not 1 / _LARGEST <= largest <= _LARGEST:
        raise ConfigError(
            f"Expected a finite bound or clip above 0, from {1 / _LARGEST:g} to {_LARGEST:g}, got {largest}."
        )
    if noise and clip is None:
        raise ConfigError("Expected `clip` with noise, the largest norm of a vector, got `bound`.")
    if bound is not None:
        for name, row in zip(given.names, given.rows, strict=True):
            if np.abs(row).max() > bound:
                raise DataError(f"Expected entries of {name} within +-{bound:g}, got a larger one.")
    grid = Grid(step=largest * _COARSE, bound=largest * _ROOM) if noise else Grid.within(largest)
    return ValueSpec(
        name=_NAME,
        reduction="sum",
        reveals="its vector",
        on_model=False,
        sensitivity={("client", "zero-out"): largest} if clip else {},
        grid=grid,
        cohort=len(given.names),
    )


def _plan(
    given: Vectors,
    noise: float,
    delta: float | None,
    budget: float | None,
    ledger: Path | str | None,
    **trust: Any,
) -> Plan:
    """The plan of one sum over all clients. trust: what it assumes of them."""
    if delta is None and (noise or ledger is not None):
        raise ConfigError("Expected `delta` with noise or a ledger: epsilon has no meaning without it.")
    if budget is not None and (ledger is None or not noise):
        raise ConfigError(
            "Expected `ledger` and a noise_multiplier with `budget`: without a ledger charges do not add up, "
            "and without noise no budget is enough."
        )
    return Plan(
        sum="masked",
        noise=Distributed.word if noise else NO_NOISE,
        noise_multiplier=noise,
        min_cohort_size=len(given.names),
        max_cohort_size=len(given.names),
        unit="client",
        adjacency="zero-out",
        # Without noise epsilon is infinite at every delta.
        delta=0.5 if delta is None else delta,
        budget=budget,
        non_private=() if noise else (_NAME,),
        max_rounds=1,
        **trust,
    )
