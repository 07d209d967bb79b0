"""The world of one seed: every client's records and data quality, the devices, and the learning problem.

All arms of a study run in the same world, so their results differ only by their protocols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefl.algorithm.clients import Population
from securefl.algorithm.queries import Floats
from securefl.data.schema import Schema
from securefl.engine.party.computing import Records
from securefl.study import cost
from securefl.training.local import LocalTraining
from securefl.training.task import Problem


@dataclass(frozen=True, kw_only=True)
class Digests:
    """Digests and notes about the records and the model of a run that are not packaged.

    bound: digests by name. A resumed run goes on only if they equal those at its start. words: descriptions
    of the same things for the report, without digests of records. private: digests of records and their real
    numbers by side, for the person at this machine. notes: sentences that a person should read before the
    run. outside: sentences on data that no epsilon covers. records: a digest of the records for a shared
    ledger; empty if the study names no ledger. behind: the identity of the run that trained the initial
    weights, as their card says; empty without one. This ledger must have it, or lack it if it is public.
    """

    bound: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    private: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    records: str = ""
    behind: str = ""

    def __or__(self, other: Digests) -> Digests:
        return Digests(
            bound={**self.bound, **other.bound},
            words={**self.words, **other.words},
            private={**self.private, **other.private},
            notes=(*self.notes, *other.notes),
            outside=(*self.outside, *other.outside),
            records=self.records or other.records,
            behind=self.behind or other.behind,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """The part of a run that does not depend on the arm. The same seed gives the same world.

    records: each client's training records. held: the records that each client tests on and never trains
    on; None without a hold-out. quality: the name of the corruption of each client's data, or "clean".
    unscaled_x: the server's test records before `[data] scaling`; None without it. schema: how a record
    becomes the model's input. marks: see `Digests`.
    """

    seed: int
    problem: Problem
    schema: Schema
    records: Sequence[Records]
    quality: tuple[str, ...]
    cost_model: cost.CostModel
    devices: cost.Devices
    held: Sequence[Records] | None = None
    unscaled_x: NDArray[Any] | None = None
    marks: Digests = field(default_factory=Digests)

    def under(self, local: LocalTraining | None) -> World:
        """This world with an arm's own settings of training, if it has any."""
        return self if local is None else replace(self, problem=replace(self.problem, local=local))

    @cached_property
    def tests(self) -> Sequence[Records]:
        """Test records (x, y) of each client, for an observer's figures. They are dealt from the server's.

        The records of a class go to the clients that have this class, in proportion to their numbers of
        records of it. If targets are not classes, each client gets an equal share.
        """
        problem = self.problem
        if problem.kind == "classification":
            held = np.array(
                [[np.sum(y == k) for k in range(problem.outputs)] for _, y in self.records], float
            )
        else:
            held = np.ones((len(self.records), 1))
        classes = problem.server_y if problem.kind == "classification" else np.zeros(len(problem.server_x))
        mine: list[list[NDArray[np.int64]]] = [[] for _ in self.records]
        for label, share in enumerate(held.T):
            if share.sum() == 0:
                continue
            members = np.flatnonzero(classes == label)
            cuts = np.rint(np.cumsum(share) / share.sum() * len(members)).astype(np.int64)
            for part, own in zip(mine, np.split(members, cuts[:-1]), strict=True):
                part.append(own)
        none = np.empty(0, np.int64)  # of a client that has no class of the server's records
        taken = [np.sort(np.concatenate([none, *parts])) for parts in mine]
        return [(problem.server_x[own], problem.server_y[own]) for own in taken]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([len(x) for x, _ in self.records], dtype=np.int64)

    def population(self) -> Population:
        """All clients, with the seconds that each device takes to receive a model, train it and send it.

        The times assume the mean number of records for every client, so they are public.
        """
        size = 4.0 * len(self.problem.initial)
        # If a time depended on a client's own records, a selection by time would depend on them, and no
        # ledger would charge for that.
        nominal = np.full(len(self.records), self.problem.records / len(self.records))
        passes = self.passes(nominal)
        costs = cost.client_costs(self.cost_model, self.devices, nominal, passes, down=size, up=size)
        return Population(clients=len(self.records), seconds=costs.seconds)

    def passes(self, sizes: ArrayLike) -> Floats:
        """Passes of local training over each client's records, (N,).

        sizes: each client's number of records. With a preset of the cost model, the passes are the papers' E.
        """
        local, samples = self.problem.local, np.maximum(sizes, 1)
        if self.cost_model.model_megabytes is not None:
            return np.full(samples.shape, float(self.cost_model.epochs))
        if local.epochs is not None:
            return np.full(samples.shape, float(local.epochs))
        assert local.steps is not None
        return local.steps * np.minimum(local.batch_size / samples, 1.0)
