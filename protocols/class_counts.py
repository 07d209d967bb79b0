"""The numbers of records by class, as a value of their own beside sums of features by class.

They are the same in every round. Within a hidden sum without noise, two rounds over cohorts that differ in
one client would give its label histogram exactly. So there the counts are a value of their own that each
client sends `once`, and what it sends in a round is

    sum over its records of class j of (phi - c_j),    c_j the class mean that was broadcast, 0 before one was

on the grid, where the arithmetic is exact: the server adds (sum of counts) x c_j, and has the sums that it
has in the open, bit for bit. A client that is counted and absent counts with c_j.

That holds against a server that follows the protocol. One that lies may broadcast means so large that n_j c_j
is nearly all of a sum, and has the counts in each round again. Without noise the rule on kept state refuses
these protocols there, unless the owner accepts that single values are opened.

If the first sum is lost after clients agreed to its survivors, so are their counts, like every value that is
sent once: they answer no further query for them, and a new session is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    Answers,
    ClientContext,
    CohortQuery,
    Float32s,
    Floats,
    Grid,
    Population,
    Schedule,
    State,
    Sum,
    Value,
    ValueSpec,
)
from securefl.protocols.parts import absent, including

Centres = Callable[[Float32s], Floats]
"""The class means of a broadcast, (C, width): nan for a class without one, and for all before the first."""
COUNTS: Final = ValueSpec(
    name="counts",
    reduction="sum",
    reveals="its numbers of records by class",
    form="real",
    reads_state="none",
    on_model=False,
    schedule=Schedule(once=True),
    bounded_by={"client": "`client_bound` in its arm, and noise"},
    grid=Grid(step=1.0, bound=2.0**20),
)


_NOTHING: Final = np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class Counts:
    """A client's contribution: its number of records of each of `classes` classes."""

    classes: int
    spec: ValueSpec = COUNTS

    def compute(self, context: ClientContext) -> Value:
        labels = np.asarray(context.y)
        known = labels[(labels >= 0) & (labels < self.classes)]
        return Value(integers=np.bincount(known, minlength=self.classes).astype(np.int64), step=1.0)


def on_grid(centres: Floats, grid: Grid) -> NDArray[np.int64]:
    """Class means (C, width) in steps of the grid, 0 for nan. Client and server round alike."""
    steps = np.rint(np.nan_to_num(centres) / grid.step)
    return np.clip(steps, -grid.limit, grid.limit).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Counting:
    """The server's side: it asks each client once for its counts, and completes totals by them.

    The first counts are asked for beside the first statistic, so both are of the same clients. A state's
    memory has `counts` (C,), and by client whether it is `counted`.
    """

    counts: Counts
    centres: Centres
    grid: Grid

    def late(self, state: State, population: Population) -> Generator[CohortQuery, Answers, State]:
        """Ask clients that come after the first sum."""
        cohort = absent(state.memory["counted"], population)
        if not cohort or not state.memory["counted"].any():
            return state
        return self.learn(state, (yield CohortQuery(cohort=cohort, broadcast=_NOTHING, sums=(self._sum,))))

    def query(self, state: State, population: Population, statistic: Sum, initial: int = 0) -> CohortQuery:
        """The query for the statistic of those that are counted, or of all, who are then counted by it."""
        counted = state.memory["counted"]
        sums = (statistic,) if counted.any() else (statistic, self._sum)
        cohort = tuple(k for k in population.everyone() if counted[k] or not counted.any())
        return CohortQuery(cohort=cohort, broadcast=state.broadcast, sums=sums, initial=initial)

    def learn(self, state: State, answers: Answers) -> State:
        """The state with the counts among these answers."""
        total = answers.totals.get(self.counts.spec.name)
        if total is None:
            return state
        counted = including(state.memory["counted"], answers.survivors)
        return state.remember(counts=state.memory["counts"] + total.value, counted=counted)

    def whole(self, state: State, answers: Answers, sums: Floats) -> Floats:
        """Totals (C, width) as sums of (1, phi) over the records of all counted clients, (C, 1 + width).

        A class without a mean has no place for who is absent, so it then stays without one: its row is 0.
        """
        centres = self.centres(state.broadcast)
        counts = state.memory["counts"][:, None]
        found = np.column_stack([counts, sums + counts * on_grid(centres, self.grid) * self.grid.step])
        if len(answers.survivors) < state.memory["counted"].sum():
            found[np.isnan(centres).any(1)] = 0.0
        return found

    @property
    def _sum(self) -> Sum:
        return Sum(self.counts.spec, self.counts.classes)
