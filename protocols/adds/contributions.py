"""The two contributions of an ADDS client: the map of its subnet, and then the subnet's update.

A subnet keeps some units of the model. A group is a set of model entries that connect the same two units, so
a subnet has all entries of a group or none (`supernet`). The map says which groups a client's subnet has. The
server sums the maps, drops the groups that too few clients have, and asks for the update of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import ClientContext, Floats, Grid, Value, ValueSpec
from securefl.errors import DataError
from securefl.protocols.adds.subnet_search import Search, search_job, subnet_of
from securefl.protocols.adds.supernet import Mask, Supernet
from securefl.protocols.client_state import FIRST, made_in, require_made_in
from securefl.protocols.contributions import (
    CLIPPED,
    SMALL_WHOLE,
    UNSAMPLED,
    Sampling,
    bounded,
    trainable,
    update_sends,
)
from securefl.protocols.local_accuracy import kept_trained
from securefl.training.jobs import TrainingJob, TrainingResult, with_model
from securefl.training.run_jobs import FromTraining

MAP = ValueSpec(
    name="map",
    reduction="sum",
    reveals="which units of the model it trained",
    form="map",
    depends_on="trained-state",
    reads_state="none",
    packed=True,
    bounded_by=CLIPPED,
)
MASK: Final = "mask"
"""The name of the public array in the query for the update. It says which groups are summed."""
LASTING: Final = ("round", "units", "alpha", "skew")
"""The client state that outlasts a round. An observer of a study reads it."""
_WORD: Final = 32
"""The groups whose bits one number of the mask holds."""
_EXACT: Final = Grid(step=1.0, bound=1.0)


@dataclass(frozen=True, eq=False)
class Map(FromTraining):
    """The map of a client's subnet: 1 for each group of entries that it has, else 0, (G,).

    The client finds the subnet by training it, and keeps it until the server asks for the update.
    """

    supernet: Supernet
    search: Search
    sampling: Sampling = UNSAMPLED

    @property
    def spec(self) -> ValueSpec:
        """The spec. A map has 0 or 1 for each group, so one client moves it by sqrt(G) at most."""
        problem, sensitivity = self.supernet.problem, sqrt(self.supernet.groups)
        # Without an update bound, the update cannot be noised. The map then needs no grid for noise.
        noisy = problem.local.update_bound is not None
        return replace(
            self.sampling.of(with_model(MAP, problem)),
            sensitivity={("client", "zero-out"): sensitivity, ("client", "replace-one"): sensitivity},
            grid=SMALL_WHOLE if noisy else _EXACT,
        )

    def fit(self, context: ClientContext) -> TrainingJob:
        return search_job(self.supernet, self.search, trainable(self.supernet.problem, context))

    def value(self, context: ClientContext, trained: TrainingResult) -> Value:
        supernet, nothing = self.supernet, np.zeros(0, np.float32)
        # It is kept until the server asks for the update, here after a training that failed.
        kept = {"units": np.zeros(supernet.units, np.bool_), "before": nothing, "after": nothing}
        groups = np.zeros(supernet.groups, np.bool_)
        try:
            found = subnet_of(supernet, trainable(supernet.problem, context), trained)
        except DataError:
            # Under a bound the client sends an empty map: silence would reveal something about its records.
            if supernet.problem.local.update_bound is None:
                raise
        else:
            groups = supernet.kept_groups(found.units)
            entries, rates = supernet.entries(groups), {"alpha": found.alpha, "skew": np.array([found.skew])}
            before, after = context.broadcast[entries], found.model[entries]
            kept = {"units": found.units, **rates, "before": before, "after": after}
        kept, step = {**made_in(context), **kept}, self.spec.grid.step
        return Value(integers=(groups / step).astype(np.int64), step=step, new_state=kept)


@dataclass(frozen=True, eq=False)
class SubnetUpdate:
    """The update of a client's subnet at the entries of the groups that are summed. It is 0 at all others."""

    supernet: Supernet
    sampling: Sampling = UNSAMPLED

    @property
    def spec(self) -> ValueSpec:
        own = update_sends(self.supernet.problem, self.sampling)
        # Each round sums other entries, over other numbers of clients.
        own = replace(own, on_model=False, accumulates=False, packed=True)
        own = replace(own, bounded_by=CLIPPED, reads_state="bound")
        return with_model(own, self.supernet.problem)

    def compute(self, context: ClientContext) -> Value:
        supernet, kept = self.supernet, context.kept
        require_made_in(context, context.public.get(FIRST))
        summed = supernet.entries(unpacked(context.public.get(MASK, np.zeros(0)), supernet.groups))
        own = supernet.entries(supernet.kept_groups(kept["units"]))
        before, after = np.zeros((2, len(own)), np.float32)
        if len(kept["before"]):  # else the training failed
            before[own], after[own] = kept["before"], kept["after"]
        value = bounded(supernet.problem, before[summed], after[summed])
        lasting = {name: kept[name] for name in LASTING if name in kept}
        return replace(value, new_state={**lasting, **kept_trained(supernet.problem, kept["after"])})


def packed(groups: Mask) -> Floats:
    """The bits of all groups as whole numbers below 2^32, which float64 holds exactly."""
    bits = np.zeros(-(-len(groups) // _WORD) * _WORD, np.bool_)
    bits[: len(groups)] = groups
    return np.packbits(bits).view(">u4").astype(np.float64)


def unpacked(words: NDArray[Any], groups: int) -> Mask:
    """The inverse of `packed`. Raises DataError for words that `packed` never returns.

    The words come from the server, which may send anything.
    """
    expected = -(-groups // _WORD)
    whole = words.shape == (expected,) and bool(((words >= 0) & (words < 2**_WORD)).all())
    if not whole or (words != np.floor(words)).any():
        raise DataError(
            f"Expected {expected} whole numbers from 0 to 2^{_WORD} - 1 for {groups} groups, got an array "
            f"{words.shape} with others: the client abstains. Make the array with `packed`."
        )
    found: Mask = np.unpackbits(words.astype(">u4").view(np.uint8))[:groups].astype(np.bool_)
    return found
