"""Model updates of a foreign app: the vectors that its clients contribute, and the mean that their sum gives.

The vector of a client with n examples holds

    w (trained - broadcast),  w metrics,  w          with w = n / max_num_examples

For an evaluation it holds the last two parts. n counts steps of `weight_step`, by default whole examples. It
is clipped to the plan's `min_num_examples` and `max_num_examples`. The vector has w only if the plan weighs
the value by "counts". Otherwise every client weighs 1, and the vector has no w. This is also so if the plan
has a `public_num_examples`, or if a bound is set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from securefl.algorithm.clients import ClientContext, ClientFunction, Contribution
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Floats, Total, Value, ValueSpec
from securefl.core.errors import ConfigError, DataError
from securefl.core.formats import prefix
from securefl.core.grid import Grid
from securefl.core.text_safety import require_legible
from securefl.deployment.computing import Outside
from securefl.deployment.messages import Compute, Computed
from securefl.deployment.session_store import BLANK, CUT
from securefl.mechanisms.charges import Protection, grid_within

UPDATE: Final = "update"
EVALUATION: Final = "evaluation"
TASK: Final = "task"
"""The public array of a query that carries its task, one byte an entry."""
_MOST_COUNT = 2**20
# 64 for a weighted entry, in steps that round a mean of weights above 1/16 by less than 5e-7
GRID: Final = Grid(step=2.0**-24, bound=2.0**6)
"""The grid of values without a bound. A hidden sum cuts an entry beyond it; else its client abstains."""


@dataclass(frozen=True, kw_only=True)
class Updates:
    """The values that clients of a foreign app may be asked for. All parties have the same.

        >>> from securefl.algorithm import Plan
        >>> from securefl.deployment import Updates
        >>> updates = Updates(metrics=("train_loss",), evaluation=("accuracy",))
        >>> sorted(updates.spec(Plan(delta=1e-5, max_rounds=1))), len(updates.digest)
        (['evaluation', 'update'], 32)

    Attributes:
        metrics: names of the training metrics that are summed. No other metric leaves a client.
        evaluation: names of the metrics of an evaluation. Without any, evaluation is refused.
        update_bound: L2 norm that an update is scaled down to. None is no bound.
        evaluation_bound: the same for the metrics of an evaluation.
        cohort: the least number of clients that are asked for one sum. Distributed noise needs it.
        weight_step: what one of the plan's `num_examples` stands for. With 0.01 an app may return weights of
            two decimals, such as 0.25, and the plan bounds 25.

    A bound declares the sensitivity of a whole client (`unit = "client"`). Under a bound a client weighs 1.
    Under a bound or in a hidden sum it is never silent: if its app fails, it contributes 0.

    Raises:
        ConfigError: a metric is named twice or illegibly, a bound or the step is not from 1e-6 to 1e6, or
            training metrics stand beside `update_bound`.
    """

    metrics: tuple[str, ...] = ()
    evaluation: tuple[str, ...] = ()
    update_bound: float | None = None
    evaluation_bound: float | None = None
    cohort: int = 0
    weight_step: float = 1.0

    def __post_init__(self) -> None:
        for names in (self.metrics, self.evaluation):
            for name in names:
                require_legible(name, "the name of a metric")
            if len(set(names)) < len(names):
                raise ConfigError(f"Expected each metric once, got {', '.join(names)}.")
        for bound in (self.update_bound, self.evaluation_bound):
            if bound is not None and not 1e-6 <= bound <= 1e6:
                raise ConfigError(f"Expected a bound from 1e-6 to 1e6, got {bound}.")
        if not 1e-6 <= self.weight_step <= 1e6:
            raise ConfigError(f"Expected weight_step from 1e-6 to 1e6, got {self.weight_step}.")
        if self.update_bound is not None and self.metrics:
            raise ConfigError(
                f"Expected no training metrics beside update_bound, got {', '.join(self.metrics)}: they "
                "would leave without noise. Name them in `evaluation`, with evaluation_bound."
            )

    @property
    def digest(self) -> bytes:
        """32 bytes, which parties compare when they enter a session."""
        return hashlib.sha256(prefix("updates") + self.text().encode()).digest()

    def text(self) -> str:
        """The terms as canonical JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__dataclass_fields__}, sort_keys=True)

    def spec(self, plan: Plan) -> Mapping[str, ValueSpec]:
        """The specs of the values that clients may be asked for under a plan, by name."""
        update = self._spec(plan, UPDATE, "its model update, its metrics and its number of examples")
        if not self.evaluation:
            return {UPDATE: update}
        tells = "metrics of the model on its records, and their number"
        return {UPDATE: update, EVALUATION: self._spec(plan, EVALUATION, tells)}

    def _spec(self, plan: Plan, name: str, reveals: str) -> ValueSpec:
        spec = ValueSpec(
            name=name,
            reduction="sum",
            reveals=reveals,
            depends_on="trained-state",
            accumulates=name == UPDATE,
            grid=GRID,
            cohort=self.cohort,
        )
        if (bound := self.bound(name)) is None:
            return spec
        spec = replace(
            spec, sensitivity={("client", "zero-out"): bound, ("client", "replace-one"): 2 * bound}
        )
        return replace(spec, grid=grid_within(bound, spec, plan))

    def bound(self, name: str) -> float | None:
        """The L2 bound of these values."""
        return self.update_bound if name == UPDATE else self.evaluation_bound

    def weighted(self, plan: Plan, name: str) -> bool:
        """Whether clients weigh by their number of examples, and contribute it to the sum."""
        counts = plan.weights.get(name) == "counts"
        return counts and plan.public_num_examples is None and self.bound(name) is None

    def named(self, name: str) -> tuple[str, ...]:
        """The metrics of these values."""
        return self.metrics if name == UPDATE else self.evaluation

    def size(self, plan: Plan, name: str, values: int) -> int:
        """Length of the summed vector, for a model of `values` parameters."""
        own = values if name == UPDATE else 0
        return own + len(self.named(name)) + self.weighted(plan, name)

    def check(self, plan: Plan) -> None:
        """Raise ConfigError if these values can never be released under the plan."""
        for name, spec in self.spec(plan).items():
            if plan.weights.get(name, "equal") == "draws":
                raise ConfigError(f"Expected {name!r} to weigh equally or by counts, got by draws.")
            if self.weighted(plan, name) and plan.max_num_examples > _MOST_COUNT:
                raise ConfigError(
                    f"Expected max_num_examples of at most {_MOST_COUNT}, the most examples that a client "
                    f"counts with, or a public_num_examples, got {plan.max_num_examples}. Take a number "
                    "near the examples of your clients: values of one with far fewer are rounded coarsely."
                )
            Protection(plan, spec).charge()

    def contributions(self, plan: Plan, outside: Outside) -> list[Contribution]:
        """The contributions of a client whose values are computed outside the party."""
        spec = self.spec(plan)
        return [_Offered(own, _Protected(self, plan, own, outside)) for own in spec.values()]

    def read(self, plan: Plan, name: str, total: Total, values: int) -> Mean:
        """The mean of updates and metrics that a total gives, and the number of examples behind it.

        Raises DataError if the total's weights add up to 0.
        """
        own = values if name == UPDATE else 0
        # Without counts and without a public count, a client counts as one example.
        own_count = 1 if plan.public_num_examples is None else plan.count(plan.public_num_examples)
        weight, examples = total.weight, total.weight * own_count
        if self.weighted(plan, name):
            weight = float(total.value[-1])
            examples = weight * plan.max_num_examples * self.weight_step
        if not weight > 0:
            raise DataError("Expected examples behind a sum, got none.")
        mean = total.value / weight
        metrics = dict(zip(self.named(name), mean[own:].tolist(), strict=False))
        if self.weight_step == 1.0:
            examples = max(1, round(examples))
        return Mean(update=mean[:own], metrics=metrics, examples=examples)

    def vector(self, plan: Plan, name: str, found: Computed, broadcast: Floats) -> Floats:
        """Return the vector that a client contributes for an app's result, before it is clipped to a bound.

        Args:
            plan: the session's plan.
            name: UPDATE or EVALUATION.
            found: the app's result.
            broadcast: the model that was sent, float64 (d,). An update is the trained model less this one.

        Returns:
            float64 (size,), see `size`: the update, the metrics, and the weight if clients weigh by counts.
            The weight multiplies what stands before it.

        Raises:
            DataError: in words for the client's owner, if the result has another layout, values that are not
                finite, or a weight that the terms do not declare.
        """
        train = name == UPDATE
        own = found.values - broadcast if train and found.values.shape == broadcast.shape else found.values
        wanted, metrics = len(broadcast) if train else 0, len(self.named(name))
        if own.shape != (wanted,) or found.metrics.shape != (metrics,):
            raise DataError(
                f"Expected {wanted} values and {metrics} metrics of the app, got {own.size} and "
                f"{found.metrics.size}: it abstains. Return the model in the layout that came."
            )
        vector = np.concatenate([own, found.metrics])
        if not np.isfinite(vector).all():
            raise DataError(
                "Expected finite values of the app, got nan or infinity: it abstains. Lower its learning "
                "rate, or clean its data."
            )
        if not self.weighted(plan, name):
            return vector
        weight = self._weight(plan, found.examples)
        return np.concatenate([vector * weight, [weight]])

    def beyond(self, plan: Plan, name: str, vector: Floats) -> str:
        """Tell the party's owner, and nobody else, which value is beyond the grid, and what to do.

        Args:
            plan: the session's plan.
            name: UPDATE or EVALUATION.
            vector: as `vector` returns it, float64 (size,).

        Returns:
            A sentence. Empty if no value is beyond the grid, or if values are clipped to a bound.
        """
        beyond = np.flatnonzero(np.abs(vector) > GRID.bound)
        if self.bound(name) is not None or not len(beyond):
            return ""
        values = len(vector) - len(self.named(name)) - self.weighted(plan, name)
        update, times = beyond[0] < values, ""
        what = "an entry of the update" if update else f"the metric {self.named(name)[beyond[0] - values]!r}"
        remedies = ["Lower the app's learning rate", "scale its data"] if update else ["Scale the metric"]
        if self.weighted(plan, name):
            times = f" times num-examples / {plan.max_num_examples}"
            remedies.append("have all parties agree on a larger `max_num_examples`")
        if update:
            remedies.append("have all parties agree on an `update_bound`, to which longer updates are scaled")
        *most, last = remedies
        did = "it was cut to the bound, since silence would tell" if plan.hidden else "it abstains"
        return (
            f"Expected {what}{times} within +-{GRID.bound:g}, the bound of the grid of sums, got a larger "
            f"one: {did}. {', '.join(most)}{', or ' if most else ''}{last}."
        )

    def _weight(self, plan: Plan, examples: float) -> float:
        """n / max_num_examples, with n clipped as the plan says. DataError if n is no number of steps."""
        step, steps = self.weight_step, examples / self.weight_step
        near = round(min(steps, 2.0**53)) if np.isfinite(steps) else 0
        # A decimal fraction is no exact multiple of a step such as 0.01.
        tolerance = 0.0 if step == 1.0 else 1e-6 * near
        if near < 1 or (steps < 2**53 and abs(steps - near) > tolerance):
            what = "a whole number" if step == 1.0 else f"a multiple of {step:g}"
            raise DataError(
                f"Expected num-examples, {what} of at least {step:g}, got one below or between two: it "
                "abstains. Return it in "
                "the MetricRecord. For fractional weights all parties declare their step in the terms, such "
                "as weight_step = 0.01, or leave the plan's `weights` out, so that clients weigh equally."
            )
        return plan.count(near) / plan.max_num_examples


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of a sum: update float64 (d,), metrics by name, and examples, exact or of equal clients."""

    update: Floats
    metrics: Mapping[str, float]
    examples: float


@dataclass(frozen=True)
class _Offered(ClientFunction):
    """A contribution that is computed outside. Its value without records is zeros, computed here."""

    compute: _Protected

    def nothing(self, context: ClientContext) -> Value:
        return self.compute.value(np.zeros(self.compute.size(context)))


@dataclass(frozen=True)
class _Protected:
    """Has one kind of value computed outside, and turns the result into the summed vector."""

    updates: Updates
    plan: Plan
    spec: ValueSpec
    outside: Outside

    def __call__(self, context: ClientContext) -> Value:
        """The summed vector. If the result is invalid, raises DataError, or under a bound gives 0.

        In a hidden sum the party that asked then sends `_Offered.nothing`: zeros.
        """
        try:
            vector = self._vector(context)
        except DataError as error:
            # Under a bound the client must not be silent: silence would reveal records and is not charged.
            if self.updates.bound(self.spec.name) is None:
                raise
            self.outside.note(BLANK, str(error))
            vector = np.zeros(self.size(context))
        bound = self.updates.bound(self.spec.name)
        if bound is not None and np.linalg.norm(vector) > bound:
            self.outside.note(CUT, _cut(self.spec.name, bound))
        if why := self.updates.beyond(self.plan, self.spec.name, vector):
            if not self.plan.hidden:
                raise DataError(why)
            self.outside.note(CUT, why)
            vector = np.clip(vector, -GRID.bound, GRID.bound)
        return self.value(vector)

    def size(self, context: ClientContext) -> int:
        """Length of the vector, from the broadcast alone."""
        return self.updates.size(self.plan, self.spec.name, len(context.broadcast))

    def value(self, vector: Floats) -> Value:
        """The vector as the value that is protected."""
        bound = self.updates.bound(self.spec.name)
        if bound is None:
            return Value(clear=vector)
        return Value.summed(vector[None], self.spec.grid, bound)

    def _vector(self, context: ClientContext) -> Floats:
        kind = "train" if self.spec.name == UPDATE else "evaluate"
        found = self.outside.compute(
            Compute(
                kind=kind,
                round=context.round,
                metrics=self.updates.named(self.spec.name),
                task=_bytes(context.public.get(TASK, np.zeros(0))),
                broadcast=context.broadcast,
            )
        )
        return self.updates.vector(
            self.plan, self.spec.name, found, np.asarray(context.broadcast, np.float64)
        )


def _cut(name: str, bound: float) -> str:
    """Why a result was scaled down, for the party's owner."""
    return (
        f"Expected {name!r} with a norm of at most {bound:g} ({name}_bound), got a longer one: it was scaled "
        "down to the bound, as agreed. If that is often so, lower the app's learning rate. A larger clip or "
        "bound needs a new plan, to which all parties agree."
    )


def _bytes(entries: Floats) -> bytes:
    if not ((entries >= 0) & (entries <= 255)).all():
        raise DataError("Expected a task of bytes, got other numbers: it abstains.")
    return entries.astype(np.uint8).tobytes()


def as_public(task: bytes) -> Mapping[str, Floats]:
    """A task as the public array of a query."""
    return {TASK: np.frombuffer(task, np.uint8).astype(np.float64)}
