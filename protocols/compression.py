"""Federated averaging of compressed updates, with error feedback, up and down.

A client adds its residual to its update, sends a compressed part, and keeps the rest as its next residual.
The server moves its model by a compressed change. It does not send the model but the changes since the
oldest model that a client of the cohort has. Each client adds those that it lacks to the model that it keeps.
So the models of server and clients are equal bit for bit.

A round has one phase (STC) or two (CS-FL). In each, all clients of the cohort train from the newest model.
Phases differ in their `Compression` alone.

A client that was not in a sum counts as having the model of the last sum that it was in. After three sums
without it, or one without any client, it counts as having the initial one: it may have lost its state. If the
changes that the cohort lacks are longer than the model, the model itself is sent.

A client does not learn whether its value came into the sum. If it was lost on the way, the part that the
client sent is in no residual either: that much of its update is lost.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import floor
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    Answers,
    ClientContext,
    ClientState,
    CohortQuery,
    Device,
    Float32s,
    Floats,
    State,
    Value,
    ValueSpec,
)
from securefl.core.sparse import dense, sparse
from securefl.errors import ConfigError, DataError
from securefl.protocols.contributions import (
    Sampling,
    training_job,
    update_sends,
)
from securefl.protocols.local_accuracy import kept_trained
from securefl.protocols.parts import NOBODY, Part, ServerContext, ServerUpdate, gather_mean
from securefl.training import Problem
from securefl.training.jobs import TrainingJob, TrainingResult, kept_values
from securefl.training.run_jobs import FromTraining


class Compression(Protocol):
    """How an update becomes the numbers that a client sends, and their mean becomes a change of the model.

    `size` is the number of numbers, for a model of d values. At most `nonzero` of them are not 0.
    """

    @property
    def size(self) -> int: ...

    @property
    def nonzero(self) -> int: ...

    def spec(self, update: ValueSpec) -> ValueSpec:
        """The spec of the numbers, from the one of an update. No two phases of a round share a name."""
        ...

    def sent(self, whole: Floats) -> tuple[Float32s, Floats]:
        """The numbers of update and residual together, (size,), and the part (d,) for which they stand."""
        ...

    def value(self, numbers: Float32s | DataError) -> Value:
        """The value of a client's numbers. An error of the training is raised, or sent as zeros."""
        ...

    def change(self, mean: Floats, residual: Floats) -> tuple[Float32s, Floats]:
        """The change of the model that goes down, (d,), and the server's next residual, (d,).

        mean: of the clients' numbers, (size,). residual: the server's, 0 at first.
        """
        ...


def entries(share: float, size: int) -> int:
    """The number of entries that a share of `size` is, at least 1."""
    # 0.29 * 100 is a little below 29 in floats, and must not become 28
    return max(1, floor(share * size + 1e-9))


def largest(values: Floats, count: int) -> NDArray[np.int64]:
    """The places of the `count` values with the largest magnitudes, ascending. Of equal ones the first."""
    sizes = np.abs(values)
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    above = np.flatnonzero(sizes > least)
    return np.sort(np.append(above, np.flatnonzero(sizes == least)[: count - len(above)]))


def thresholded(values: Floats, count: int) -> Floats:
    """The values with all but the `count` largest set to 0."""
    found, top = np.zeros(len(values)), largest(values, count)
    found[top] = values[top]
    return found


# The server --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Compressed(Part):
    """The whole model, which moves by means of compressed updates.

    phases: of a round, in this order. All have the round's cohort.
    """

    tests_trained = True
    phases: tuple[Compression, ...]

    def contributions(self, sampling: Sampling) -> tuple[CompressedUpdate, ...]:
        """One for each phase. Raises ConfigError for clients that draw whether they take part."""
        plan = self.problem.bare_plan
        if plan is not None and plan.sampling_rate < 1:
            raise ConfigError(
                "Expected no `sampling_rate` under [privacy] beside a model that clients follow by its "
                f"changes, got {plan.sampling_rate:g}: a client that is not drawn keeps an older one, and "
                "nobody may know which client that is. Leave `sampling_rate` out, or take a protocol that "
                "broadcasts the model, such as fedavg."
            )
        # Signs, or mostly 0: a total tells more of them than of the updates themselves.
        spec = replace(
            update_sends(self.problem, sampling), form="discrete", reads_state="unbound", accumulates=False
        )
        return tuple(CompressedUpdate(self.problem, phase, phase.spec(spec)) for phase in self.phases)

    @property
    def memory(self) -> Mapping[str, NDArray[Any]]:
        counts = {name: np.zeros(self.problem.clients, np.int64) for name in ("has", "silent")}
        return {
            **counts,
            "residual": np.zeros(len(self.initial)),
            "version": np.zeros(1, np.int64),
            "changes": np.zeros(0, np.uint8),
            "lengths": np.zeros(0, np.int64),
        }

    def advance(
        self, server: ServerUpdate, state: State, query: CohortQuery, here: ServerContext
    ) -> Generator[CohortQuery, Answers, tuple[State, Answers]]:
        answers = NOBODY
        for phase, contribution in zip(self.phases, here.contributions, strict=True):
            asked = replace(query, broadcast=download(state, query.cohort))
            mean, answers = yield from gather_mean(asked, contribution, phase.size)
            state = _answered(state, query.cohort, answers.survivors)
            if mean is not None:
                change, residual = phase.change(mean, state.memory["residual"])
                variances = self.problem.averaged[1]  # of batch norm: none falls below zero
                change[variances] = np.maximum(change[variances], -state.broadcast[variances])
                state = moved(state, change, residual)
        return state, answers

    def figures(self, shared: Float32s, devices: Sequence[Device]) -> dict[str, Floats]:
        share = sum(phase.nonzero for phase in self.phases) / len(shared)
        return {"parameters": np.full(len(devices), share), **super().figures(shared, devices)}


def moved(state: State, change: Float32s, residual: Floats) -> State:
    """The state after a change of the model, with the server's next residual."""
    change = change + np.float32(0)  # clients read -0.0 as 0.0
    coded = np.frombuffer(sparse(_as_integers(change)), np.uint8)
    lengths, changes = state.memory["lengths"], np.concatenate([state.memory["changes"], coded])
    lengths = np.append(lengths, len(coded))
    # Older changes would take more bytes than the model, so they are never sent.
    while lengths.sum() > 4 * len(change):
        changes, lengths = changes[lengths[0] :], lengths[1:]
    return State(state.broadcast + change, state.memory).remember(
        residual=residual,
        version=state.memory["version"] + 1,
        changes=changes,
        lengths=lengths,
    )


# The way down ------------------------------------------------------------------------------------

_SILENT: Final = 3
"""After as many queries without an answer a client counts as one that lost its state."""


def _answered(state: State, cohort: Sequence[int], survivors: Sequence[int]) -> State:
    """The state with the versions of the model that these clients have after a query."""
    has, silent = state.memory["has"].copy(), state.memory["silent"].copy()
    silent[list(cohort)] += 1
    silent[list(survivors)] = 0
    has[list(survivors)] = state.memory["version"]
    has[silent >= _SILENT] = 0
    if not survivors:
        has[list(cohort)] = 0
    return state.remember(has=has, silent=silent)


_CHANGES, _MODEL = 0, 1
_HEAD: Final = 3
"""The numbers before changes or model: the form, and the versions before and after the changes."""


def download(state: State, cohort: Sequence[int]) -> Float32s:
    """The broadcast to this cohort: the changes since the oldest version among its clients, or the model.

    A float32 holds 24 bits of the changes, which it represents exactly.
    """
    memory, version = state.memory, int(state.memory["version"][0])
    before = min((int(memory["has"][k]) for k in cohort), default=version)
    missed = version - before
    lengths = memory["lengths"]
    if missed <= len(lengths):
        lengths = lengths[len(lengths) - missed :]
        changes = memory["changes"][len(memory["changes"]) - int(lengths.sum()) :]
        words = _words(lengths.astype("<u4").tobytes() + changes.tobytes())
        if len(words) < len(state.broadcast):
            return np.concatenate([np.array([_CHANGES, before, version], np.float32), words])
    return np.concatenate([np.array([_MODEL, before, version], np.float32), state.broadcast])


def received(problem: Problem, broadcast: Float32s, kept: ClientState) -> tuple[Float32s, int]:
    """The model (d,) and its version, from a broadcast and the client's state. No record is read.

    Raises DataError for a broadcast that `download` never makes, or that leaves out changes that the client
    lacks.
    """
    d, head, content = len(problem.initial), broadcast[:_HEAD], broadcast[_HEAD:]
    if len(head) < _HEAD or not _whole(head) or len(content) > d:
        raise DataError(
            f"Expected {_HEAD} whole numbers and at most {d} others in a broadcast, got {head.tolist()} and "
            f"{len(content)}: the client abstains. Send what `download` makes."
        )
    form, before, version = (int(number) for number in head)
    if form == _MODEL:
        if len(content) < d or not np.isfinite(content).all():
            raise DataError(
                f"Expected a model of {d} finite values, got {len(content)}, {np.isfinite(content).sum()} of "
                "them finite: the client abstains. Send the whole model."
            )
        return content.copy(), version
    model = kept_values(kept, "model", problem.initial)
    own = int(kept_values(kept, "version", np.zeros(1, np.int64))[0])
    if form != _CHANGES or not before <= own <= version:
        raise DataError(
            f"Expected the changes since version {own} of the model, got those from {before} to {version}: "
            "the client abstains. If its state was lost, start the run anew."
        )
    try:
        # all are read, so that the answer does not depend on the version that the client has
        changes = _changes(content.tobytes(), version - before, d)
        with np.errstate(over="ignore"):  # refused below
            for change in changes[own - before :]:
                model += change
    except ValueError as error:
        raise DataError(f"{error} The client abstains.") from None
    if not np.isfinite(model).all():
        raise DataError(
            "Expected changes that leave a finite model, got some beyond float32: the client abstains. Lower "
            "the learning rate, or start the run anew."
        )
    return model, version


@lru_cache(maxsize=8)
def _changes(words: bytes, count: int, d: int) -> tuple[Float32s, ...]:
    """The `count` changes (d,) in these words, read-only. Raises ValueError for other words.

    All clients of a process decode the same ones.
    """
    data = _bytes(np.frombuffer(words, np.float32))
    lengths = np.frombuffer(data[: 4 * count], np.uint8)
    ends = 4 * count + np.cumsum(lengths[: len(lengths) // 4 * 4].view("<u4"), dtype=np.int64)
    whole = int(ends[-1]) if len(ends) else 0
    if len(ends) != count or len(data) - whole not in (0, 1, 2) or any(data[whole:]):
        raise ValueError(f"Expected {count} changes, got {len(data)} bytes of others.")
    coded = (data[start:end] for start, end in pairwise([4 * count, *ends.tolist()]))
    changes = tuple(_as_floats(dense(change, d)) for change in coded)
    for change in changes:
        change.setflags(write=False)
    return changes


def _words(data: bytes) -> Float32s:
    """Bytes as whole numbers below 2^24. Zeros fill the last one."""
    padded = np.frombuffer(data + bytes(-len(data) % 3), np.uint8).reshape(-1, 3).astype(np.int64)
    words: Float32s = (padded @ np.array([1, 2**8, 2**16])).astype(np.float32)
    return words


def _bytes(words: Float32s) -> bytes:
    """The inverse of `_words`, with the zeros. Raises ValueError for other numbers."""
    if not _whole(words):
        raise ValueError("Expected whole numbers from 0 to 2^24 - 1, got a fraction or a larger one.")
    numbers = words.astype(np.int64)
    return np.stack([numbers & 255, (numbers >> 8) & 255, numbers >> 16], axis=1).astype(np.uint8).tobytes()


def _whole(numbers: Float32s) -> bool:
    """Whether these are whole numbers from 0 to 2^24 - 1. False for nan."""
    return bool(((numbers >= 0) & (numbers < 2**24) & (numbers == np.floor(numbers))).all())


def _as_integers(change: Float32s) -> NDArray[np.int32]:
    """The bits of finite floats as int32 of the same sign: values of one magnitude keep one magnitude."""
    bits = change.view(np.int32)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits).astype(np.int32)


def _as_floats(integers: NDArray[np.int32]) -> Float32s:
    """The inverse of `_as_integers`. Raises ValueError for bits that are no finite float."""
    sizes = np.abs(integers.astype(np.int64)).astype(np.int32)
    found = np.copysign(sizes.view(np.float32), integers)
    if not np.isfinite(found).all():
        raise ValueError("Expected a change of finite values, got infinity or nan.")
    return found.astype(np.float32)


# A client ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CompressedUpdate(FromTraining):
    """The compressed part of a client's update and residual. The client keeps the model and the rest."""

    problem: Problem
    compression: Compression
    spec: ValueSpec

    def fit(self, context: ClientContext) -> TrainingJob:
        model, _ = received(self.problem, context.broadcast, context.kept)
        return training_job(self.problem, context, model)

    def value(self, context: ClientContext, trained: TrainingResult) -> Value:
        model, version = received(self.problem, context.broadcast, context.kept)
        before = kept_values(context.kept, "residual", np.zeros(len(model), np.float32))
        numbers, residual = self._compressed(trained, model, before)
        new_state = {"model": model, "version": np.array([version]), "residual": residual}
        new_state |= kept_trained(self.problem, trained)
        return replace(self.compression.value(numbers), new_state=new_state)

    def _compressed(
        self, trained: TrainingResult, model: Float32s, residual: Float32s
    ) -> tuple[Float32s | DataError, Float32s]:
        """The numbers to send, and the new residual. After a training that failed the residual stays."""
        if isinstance(trained, DataError):
            return trained, residual
        with np.errstate(over="ignore"):
            whole = (residual + (trained.astype(np.float64) - model)).astype(np.float32)
        if not np.isfinite(whole).all():
            return DataError("Expected an update within float32, got a larger one. Lower the rate."), residual
        numbers, part = self.compression.sent(whole.astype(np.float64))
        return numbers, (whole - part).astype(np.float32)
