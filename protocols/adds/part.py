"""ADDS' indexed aggregation: the sum of the subnets' maps, and then that of their updates (Eq. 19).

    w_j <- w_j + sum_k I_k[j] (theta_k - w)_j / sum_k I_k[j],       and w_j if no client has entry j

A round has two cohort queries. For the first one clients train, and their maps are summed. The server then
publishes the groups of entries that will be summed. For the second one the updates at those entries are
summed. If one client alone trained an entry, its sum is that client's value. So under hidden sums a group
with few contributors is left out of the second sum (`Population.fewest`), and its entries keep their values.

Limits: the sum of maps is opened, so the server learns how many clients have each pair of units. A client
cannot check the counts behind the public mask. It signs the mask, and all clients sign the same one, with the
digest of the model that they trained: a client that trained another one abstains. A client
that is lost between the two queries counts with the old model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    Algorithm,
    ByDraws,
    ClientState,
    CohortQuery,
    Contribution,
    Device,
    Evaluation,
    Float32s,
    Floats,
    Sum,
    Total,
)
from securefl.core.ranges import Count
from securefl.protocols.adds.contributions import MASK, Map, SubnetUpdate, packed
from securefl.protocols.adds.subnet_search import Search, fixed_masks, masked
from securefl.protocols.adds.supernet import Mask, Supernet, supernet_of
from securefl.protocols.averaging import Averaging, Options
from securefl.protocols.client_state import FIRST, digest_of
from securefl.protocols.contributions import Sampling
from securefl.protocols.local_accuracy import TRAINED, local_accuracy
from securefl.protocols.parts import Gathering, Part, ServerContext
from securefl.training import Problem, evaluate


@dataclass(frozen=True, kw_only=True)
class Adds(Search, Options):
    """ADDS (Gong et al.): each client trains a subnet that fits its records.

    min_clients_per_entry: the least number of clients that an entry is averaged over. Other entries keep
        their values. Hidden sums may need more.

    Raises ValueError for options out of range.

    >>> from securefl.protocols.adds import Adds
    >>> Adds(fraction=0.1, initial=0.8).importance
    'lrp'
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"resample_per_pass": True, "scaled": False, "local": {"epochs": 3}},
    }
    min_clients_per_entry: Count = 1

    def build(self, problem: Problem) -> Algorithm:
        part = Subnets(problem, options=self)
        part.supernet  # noqa: B018 -- raises the error of a problem without one
        return Averaging(problem=problem, fraction=self.fraction, part=part)


@dataclass(frozen=True, eq=False)
class OfSupernet(Part):
    """The part of a model of which clients train subnets.

    Raises ConfigError for a problem without a supernet.
    """

    tests_trained = True

    @cached_property
    def supernet(self) -> Supernet:
        return supernet_of(self.problem)

    @property
    def scaled(self) -> bool:
        """Whether the masks of a subnet are divided by their means."""
        return False

    def used(self, kept: ClientState) -> Mask:
        """The units that a client uses: those of its newest subnet, and all if that one was not found."""
        units = kept.get("units", self.supernet.whole)
        return units if units.any() else self.supernet.whole

    def figures(self, shared: Float32s, devices: Sequence[Device]) -> dict[str, Floats]:
        # A client's units have the newest values, or those that it trained if they are tested.
        supernet = self.supernet

        def tested(client: int, kept: ClientState, x: NDArray[Any], y: NDArray[Any]) -> Evaluation:
            units, vector = self.used(kept), shared.copy()
            if len(own := kept.get(TRAINED, shared[:0])):
                vector[supernet.entries(supernet.kept_groups(units))] = own
            model = supernet.problem.to_read(vector)
            masks = fixed_masks(supernet, units, scaled=self.scaled)
            with masked(model, supernet, lambda: masks):
                return evaluate(model, x, y, supernet.problem.kind)

        return {**figures(supernet, devices), **local_accuracy(devices, tested)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Subnets(OfSupernet):
    """Every client trains a subnet of its own choice."""

    options: Adds

    @property
    def scaled(self) -> bool:
        return self.options.scaled

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        return (
            Map(self.supernet, self.options, sampling),
            SubnetUpdate(self.supernet, sampling),
        )

    def gather(self, query: CohortQuery, here: ServerContext) -> Gathering:
        maps, updates = (contribution.spec for contribution in here.contributions)
        first = yield replace(query, sums=(Sum(maps, self.supernet.groups),))
        if not first.survivors:
            return None, first
        counts = first.totals[maps.name].value
        summed = counts >= max(self.options.min_clients_per_entry, here.population.fewest(len(query.cohort)))
        if not summed.any():
            return None, replace(first, survivors=(), totals={})
        there = self.supernet.entries(summed)
        assert isinstance(query.weights, ByDraws)  # subnets are averaged, and never weigh n_k / n
        second = yield CohortQuery(
            cohort=first.survivors,
            broadcast=query.broadcast[:0],
            sums=(Sum(updates, int(there.sum())),),
            public={MASK: packed(summed), FIRST: digest_of(query.broadcast)},
            weights=ByDraws({k: query.weights.draws[k] for k in first.survivors}),
        )
        answers = replace(first, survivors=second.survivors, totals=second.totals)
        if not second.survivors:
            return None, answers
        step = np.zeros(len(there))
        contributors = self.supernet.entries(counts)[there]
        step[there] = quotient(second.totals[updates.name], contributors, len(second.survivors))
        return step, answers


def quotient(total: Total, contributors: Floats, survivors: int) -> Floats:
    """The sum of updates over the weight of their contributors, entry by entry.

    contributors: the number of clients that have each entry, at least 1.
    survivors: the number of clients in the sum.
    """
    # In this order: if all survivors have an entry, the divisor is exactly the weight of all of them, and the
    # quotient is that of plain averaging.
    return total.value / (total.weight * (contributors / survivors))


def figures(supernet: Supernet, devices: Sequence[Device]) -> dict[str, Floats]:
    """An observer's numbers of the clients' newest subnets, (N,) each, nan for a client without one.

    They are the shares of the supernet's parameters and MACs, the skew of the labels, and each layer's rate.
    """
    names = ["parameters", "macs", "skew", *(f"rate of {layer.name}" for layer in supernet.sampled)]
    found = {name: np.full(len(devices), np.nan) for name in names}
    whole = supernet.whole
    for client, device in enumerate(devices):
        if "units" not in device.kept or not device.kept["units"].any():
            continue
        units = device.kept["units"]
        found["parameters"][client] = supernet.parameters(units) / supernet.parameters(whole)
        found["macs"][client] = supernet.macs(units) / supernet.macs(whole)
        found["skew"][client] = device.kept.get("skew", [np.nan])[0]
        for name, rate in supernet.rates(units).items():
            found[f"rate of {name}"][client] = rate
    return found
