"""Closed-form heads on frozen features: their options, the choice of a head, and the algorithm.

The heads are prototypes, ridge regression and linear discriminants. The algorithm asks for one sum, and
solves it for the head of all clients that answered.

The head and the number of its features are chosen from public numbers alone. They follow from the records per
unit of noise, n / s: n is the declared number of records, and s the standard deviation of the noise in an
entry of the total, for a value of sensitivity 1. s follows from epsilon, delta, the noise mechanism and the
dropout that shares of noise are sized for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, isqrt
from typing import Annotated, Literal

import numpy as np

from securefl.algorithm import (
    Algorithm,
    ClientState,
    Device,
    Evaluation,
    Float32s,
    Floats,
    State,
    ValueSpec,
)
from securefl.core.logs import logger
from securefl.core.ranges import Count, Range, Ranged
from securefl.errors import ConfigError, DataError
from securefl.mechanisms import Protection
from securefl.protocols.contributions import ClientBound, require_classes
from securefl.protocols.heads.blocks import Blocks, grid_of
from securefl.protocols.heads.contribution import Bounding, Statistic
from securefl.protocols.heads.solvers import Kind, solve
from securefl.protocols.one_sum import OneSum
from securefl.training import Learnt, Problem
from securefl.training.heads import Bounded, Projection, activated, output_layer
from securefl.training.learnt import common

_log = logger(__name__)


@dataclass(frozen=True, eq=False)
class ClosedForm(OneSum):
    """The clients' sums are added once. The server solves the total for a linear head, and broadcasts it.

    Later rounds ask only the clients that were absent. If a client drops out, the head is that of the other
    clients' records.
    """

    statistic: Statistic
    head: Kind
    strength: float | None

    @property
    def initial(self) -> Float32s:
        blocks = self.statistic.blocks
        return np.zeros(blocks.classes * (1 + blocks.width), np.float32)

    def start(self) -> State:
        return super().start().remember(variance=np.zeros(1))

    def learn(self, state: State, total: Floats, survivors: int) -> State:
        noise = _deviation(self.problem, self.statistic.spec, survivors)
        variance = state.memory["variance"] + noise**2
        state = state.remember(variance=variance)
        try:
            parts = self.statistic.blocks.parts(total, float(np.sqrt(variance[0])))
            head = solve(self.head, parts, self.strength)
        except DataError as error:  # such as noise that outweighs the records
            _log.warning("No head was solved for, and the one before stays: %s", error)
            return state
        return State(head.astype(np.float32).ravel(), state.memory)

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        made = self.learnt(state, None, {})
        with activated(self.problem.layers, made.features):
            found = self.problem.evaluate(made.vector)
        clipped = [float(np.sum(device.kept.get("clipped", np.nan))) for device in devices]
        return replace(found, figures={"clipped": np.array(clipped)})

    def learnt(self, state: State, client: int | None, kept: ClientState) -> Learnt:
        """The public body, with the head behind bounded features."""
        head = state.broadcast.reshape(self.statistic.blocks.classes, -1)
        own, projection = self.statistic.bounding, self.statistic.projection
        features = Bounded(
            kind=own.kind, bound=own.bound, projection=None if projection.kind == "none" else projection
        )
        wide = np.zeros((len(head), 1 + projection.features))
        wide[:, : head.shape[1]] = head
        vector = self.problem.under_head(self.problem.initial, wide)
        return common(self.problem, vector, client, features)


def _deviation(problem: Problem, spec: ValueSpec, clients: int) -> float:
    """The standard deviation of the noise in an entry of one total over so many clients."""
    if problem.planned is None:
        return 0.0
    return Protection(problem.planned((spec,)), spec).mechanism.deviation(clients)


MOST_VALUES = 2**20
"""The most values of one statistic. They take 4 MB a client."""
_MOMENTS_PAY = 200.0
"""Records of a class per unit of noise. From here on second moments are worth their part of the noise."""
_FEW = 1.5
"""The same for each feature if features are few: there is less noise in fewer moments."""
_FEWEST = 64
"""Fewer features count as this many: the ridge (`strength_of`) shrinks no further."""
_HANDFUL = 8
"""Fewer records of a class have no covariance that is worth its moments, without noise too. With 5 of a
class, on digits, breast_cancer, wine and iris (raw, standardised, from 0 to 1; mean of 60 draws), prototypes
are from 0.28 above LDA to 0.02 below it. With 10 they are from 0.23 above to 0.04 below."""
_NARROW = 12.0
"""Prototypes keep features until the noise in a class sum is a share sqrt(1 / 12) of its length."""
_PER_FEATURE = 8.0
"""Records per unit of noise and feature of second moments."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A head, and the number of features that it uses.

    Raises nothing.

    >>> from securefl.protocols.heads import Choice
    >>> Choice(head="lda", width=64).width
    64
    """

    head: Kind
    width: int


def choose(
    *, records: float, deviation: float, classes: int, features: int, ordered: bool, head: Kind | None = None
) -> Choice:
    """The head for this much noise, and the number of features that it uses.

    The rule reads public numbers alone. Its thresholds are measured (docs/results.md), not from a paper.

    Args:
        records: the declared number of records of all clients, above 0.
        deviation: the standard deviation of the noise in an entry of the total, for a value of sensitivity 1.
            It follows from epsilon and delta (`securefl.calibrate`). 0 is no noise.
        classes: C.
        features: k, the length of a record's features.
        ordered: whether features come in order of importance, so that the first of them can be kept.
            Otherwise only features that would make the statistic too large are left out, by a random
            projection.
        head: a head that the caller chose already. Then the rule chooses the width alone.

    Returns:
        The head and its width, from 1 to `features`.

    Raises nothing.

    >>> from securefl.protocols.heads import choose
    >>> [choose(records=10_000, deviation=s, classes=10, features=64, ordered=True).head for s in (4, 60)]
    ['lda', 'prototypes']
    """
    signal = records / deviation if deviation > 0 else inf
    per_client = signal / classes
    if head is None:
        pays = per_client >= min(_MOMENTS_PAY, _FEW * max(features, _FEWEST))
        head = "lda" if pays and records >= _HANDFUL * classes else "prototypes"
    most = features if head == "prototypes" else min(features, widest(classes))
    if not ordered:
        return Choice(head=head, width=most)
    worth = per_client**2 / _NARROW if head == "prototypes" else signal / _PER_FEATURE
    return Choice(head=head, width=int(min(most, max(worth, 2 * classes, 64))))


def widest(classes: int) -> int:
    """The most features whose class sums, counts and second moments fit into a statistic."""
    half = 2 * classes + 1  # k (k + 1) / 2 + C k + C <= MOST
    return max(1, (isqrt(half * half + 8 * (MOST_VALUES - classes)) - half) // 2)


_COUNTS = 0.25
"""The weight of the counts. A count is as large as all features of its class, and needs less accuracy."""


@dataclass(frozen=True, kw_only=True)
class Heads(Ranged):
    """Options of heads in closed form.

    The features are the input of the model's last dense layer. With `kind = "mlp"` and `hidden = []` under
    [model] they are the records themselves, such as features that a public network made.

    head: "auto" takes the head that a rule names for this many records and this much noise (`choose`).
    projection: "leading" keeps the first features, for features in order of importance. "random" is a public
        random matrix. "none" keeps all.
    width: the number of features that are kept. By default the rule's.
    bounding: how the features of a record come to have norm 1.
    strength: of ridge and of LDA, in records. By default it follows from the noise.
    moments: weight of the second moments beside class sums of weight 1.
    client_bound: the largest norm of a client's whole statistic. A longer one is scaled down.

    Raises ValueError for options out of range, and for a width without a projection.

    >>> from securefl.protocols.heads import Heads
    >>> Heads(projection="leading", width=32).head
    'auto'
    """

    head: Literal["auto", "prototypes", "ridge", "lda"] = "auto"
    projection: Literal["none", "leading", "random"] = "none"
    width: Count | None = None
    bounding: Bounding = field(default_factory=Bounding)
    strength: Annotated[float, Range("[1e-6, 2^40]")] | None = None
    moments: Annotated[float, Range("[2^-6, 2^6]")] = 1.0
    client_bound: ClientBound = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width is not None and self.projection == "none":
            raise ValueError(
                f'Expected width with projection "leading" or "random", got width {self.width} with "none".'
            )
        if self.projection == "random" and self.width is None:
            raise ValueError(
                'Expected width with projection "random", got none. Set the number of features to keep.'
            )

    def build(self, problem: Problem) -> Algorithm:
        require_classes(problem, "heads")
        if problem.declared_loss is not None:
            raise ConfigError(
                "Expected no section [loss] for heads, got one: a head is computed in closed form, by no "
                "loss. Leave [loss] out, or take another protocol, such as fedavg."
            )
        width = output_layer(problem.layers, problem.outputs).in_features
        chosen = self._choice(problem, width)
        statistic = self._statistic(problem, width, chosen)
        room = statistic.blocks.grid.bound
        if self.client_bound is not None and self.client_bound > room:
            raise ConfigError(
                f"Expected client_bound of at most {room:g}, which the grid of {problem.records:,} records "
                f"at {problem.clients:,} clients holds, got {self.client_bound:g}. Lower it."
            )
        if statistic.blocks.size > MOST_VALUES:
            raise ConfigError(
                f"Expected a statistic of at most {MOST_VALUES:,} values, got {statistic.blocks.size:,} for "
                f'{chosen.width:,} features. Set projection and width, or take head = "prototypes".'
            )
        return ClosedForm(problem, statistic, chosen.head, self.strength)

    def _choice(self, problem: Problem, features: int) -> Choice:
        """The head and its width: the options if they are set, and else the rule's."""
        named = None if self.head == "auto" else self.head
        ruled = choose(
            # A client with a clipped statistic counts for this many records at most.
            records=min(problem.records, problem.clients * (self.client_bound or problem.records)),
            deviation=self._noise_of_one(problem, features),
            classes=problem.outputs,
            features=features,
            ordered=self.projection == "leading",
            head=named,
        )
        if self.projection == "none" and named is not None:
            return replace(ruled, width=features)
        return ruled if self.width is None else replace(ruled, width=self.width)

    def _noise_of_one(self, problem: Problem, features: int) -> float:
        """The standard deviation of the noise in a total, for a value of sensitivity 1 per record."""
        one = Choice(head="prototypes", width=features)
        return _deviation(problem, self._statistic(problem, features, one).spec, problem.clients)

    def _statistic(self, problem: Problem, features: int, chosen: Choice) -> Statistic:
        # If features have no order, the rule leaves some out at random.
        kind = "random" if self.projection == "none" and chosen.width < features else self.projection
        return Statistic(
            problem,
            self.bounding,
            Projection(kind=kind, features=features, width=chosen.width, seed=problem.seed),
            Blocks(
                classes=problem.outputs,
                width=chosen.width,
                grid=grid_of(problem.records, problem.clients),
                counts=_COUNTS if chosen.head == "lda" else 0.0,
                moments=0.0 if chosen.head == "prototypes" else self.moments,
            ),
            _reveals(chosen, features),
            self.client_bound,
        )


def _reveals(chosen: Choice, features: int) -> str:
    """The privacy card's text of what the server sees. It names the chosen head."""
    what = {
        "prototypes": "the sums of its features by class",
        "ridge": "the sums of its features by class, and their second moments",
        "lda": "the counts and sums of its features by class, and their second moments",
    }[chosen.head]
    width = f"{chosen.width:,} of {features:,}" if chosen.width < features else f"all {features:,}"
    rare = "of a class that it alone holds, its own sums; and which classes nobody holds"
    return f"{what} (head: {chosen.head} on {width} features; {rare})"
