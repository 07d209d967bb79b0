"""Computes clients' values: each once for a query, from one set of records and one client state.

Lengths and kinds come from the server's call, values from the client. If they do not fit together, the client
abstains. A server that calls for other lengths or kinds gets silence, and loses only its own sum.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import ClientContext, Contribution
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState, Float32s, Value
from securefl.core.abstaining import Abstains, Reason
from securefl.core.agreement import Question
from securefl.core.entropy import derived, long_fingerprint
from securefl.core.errors import DataError, SecureFLError
from securefl.core.hiding import Conceal
from securefl.core.keys import SecretKey
from securefl.core.linear import LinearBounds
from securefl.core.messages import Broadcast, client_name
from securefl.core.wire import Header, encode
from securefl.dp.noise import Source
from securefl.engine.exchange import Contribute
from securefl.engine.observer import Log
from securefl.training.jobs import TrainedContribution, Trainer, TrainingJob, TrainingResult

Records = tuple[NDArray[Any], NDArray[Any]]
Streams = Callable[[int, int, int], np.random.Generator]
"""Gives a client's own stream, from the round, the client, and the number of the query within the round."""
Wave = Sequence[tuple[Contribute, SecretKey | None]]
"""The tasks of many clients, each with its secret of noise and private training."""


def of_records(error: Exception) -> bool:
    """Whether the records may have caused an error. Deliberate errors and a lack of memory are not such."""
    if isinstance(error, SecureFLError):
        return isinstance(error, DataError)
    # Who has not loaded torch gets no error of it, and does not wait for it.
    torch = sys.modules.get("torch")
    return not isinstance(error, MemoryError if torch is None else (MemoryError, torch.OutOfMemoryError))


def one_by_one(fits: Sequence[TrainingJob]) -> Sequence[TrainingResult]:
    """The trainer that runs the fits one after the other. Who trains nothing does not wait for torch."""
    from securefl.training import run_jobs

    return run_jobs.one_by_one(fits)


class Computing:
    """Holds the records, streams and states of this machine's clients, and computes their values.

    `kept` has each client's state before the current query. New states of the query count from `settle` on.
    """

    def __init__(
        self,
        plan: Plan,
        contributions: Mapping[str, Contribution],
        records: Mapping[int, Records],
        *,
        held: Mapping[int, Records] | None,
        rng: Streams,
        kept: Mapping[int, ClientState],
        log: Log,
        trainer: Trainer,
    ) -> None:
        self._plan = plan
        self._contributions = contributions
        self._specs = {name: contribution.spec for name, contribution in contributions.items()}
        self._fits = {
            name: contribution
            for name, contribution in contributions.items()
            if isinstance(contribution, TrainedContribution)
        }
        self._records = records
        self._held = held
        self._rng = rng
        self._log = log
        self._trainer = trainer
        self.kept: dict[int, ClientState] = dict(kept)
        self._news: dict[int, ClientState] = {}
        self._values: dict[tuple[int, Question], Value] = {}
        self._made: dict[tuple[int, Question], Callable[[], Value]] = {}
        self._seen: dict[int, list[bytes]] = {}
        # Nobody is shown it, not even the other parties of this process.
        self._mark = SecretKey(os.urandom(32))

    def settle(self, answered: Container[int]) -> None:
        """End the current query: the new states of these clients count from here on."""
        self.kept |= {client: state for client, state in self._news.items() if client in answered}
        self.drop()

    def drop(self) -> None:
        """Abandon the current query and its session. Its new client states are dropped."""
        self.forget()
        self._seen = {}

    def forget(self) -> None:
        """Forget what one order gave, before another order of the same query is taken.

        All who sign a sum agree on one order. A value of another would be one on which nobody agreed.
        """
        self._news = {}
        self._values = {}
        self._made = {}

    def has_records(self, client: int) -> bool:
        """Whether a client has any record to train on."""
        return len(self._records[client][0]) > 0

    def require_unchanged(self, client: int) -> None:
        """Raise Abstains if a client's records changed since the first value of this query.

        A query with a hidden sum takes several waves. Its values must come from one set of records, since one
        charge was made for them.
        """
        if not self._plan.hidden:  # one wave, in which every value is computed
            return
        parts = (*self._records[client], *(() if self._held is None else self._held[client]))
        found = [long_fingerprint(self._mark, b"records", _bytes(part)) for part in parts]
        if self._seen.setdefault(client, found) != found:
            raise Abstains(
                Reason.CHANGED,
                "Expected one set of records in a query, but the records changed: it abstains. Ask again in "
                "another round.",
            )

    def count(self, client: int) -> int:
        """A client's number of records, as the plan lets other parties learn it."""
        held = 0 if self._held is None else len(self._held[client][0])
        return self._plan.count(len(self._records[client][0]) + held)

    def train(self, wave: Wave, speaking: Container[int] = ()) -> None:
        """Begin a wave: run the training behind its values, for all clients at once. `value` uses the result.

        speaking: clients that must answer. An error from their records stops neither their training nor that
            of the others.
        """
        self._made = {}
        fits: dict[tuple[int, Question], tuple[ClientContext, TrainingJob]] = {}
        for task, secret in wave:
            try:
                for name in task.wants:
                    contribution, place = self._fits.get(name), (task.client, _question(task, name))
                    if contribution is not None and place not in self._values:
                        context = self._job(task, name, secret)
                        if (fit := contribution.fit(context)) is not None:
                            fits[place] = context, fit
            except Exception as error:
                # Not raised here: making the client's values fails in the same way, and raises there.
                if not isinstance(error, DataError) and not (task.client in speaking and of_records(error)):
                    raise
        try:
            came = self._trainer([fit for _, fit in fits.values()]) if fits else ()
        except Exception as error:
            if not of_records(error) or not any(client in speaking for client, _ in fits):
                raise
            return  # Values are made one after the other, which shows whose records failed.
        # Each result is read when its value is made, so that it is still in the cache for what follows.
        self._made = {
            place: partial(self._trained, place[1].name, context, came, number)
            for number, (place, (context, _)) in enumerate(fits.items())
        }

    def _trained(
        self, name: str, context: ClientContext, came: Sequence[TrainingResult], number: int
    ) -> Value:
        """The value that follows from one of these results of training."""
        return self._fits[name].value(context, came[number])

    def value(self, task: Contribute, name: str, secret: SecretKey | None) -> Value:
        """The client's value, computed once for an order and used in all its stages and attempts."""
        place = (task.client, _question(task, name))
        if place in self._values:
            return self._values[place]
        if (made := self._made.pop(place, None)) is not None:
            return self._noted(task, name, made())
        return self._noted(task, name, self._contributions[name].compute(self._job(task, name, secret)))

    def blank(self, task: Contribute, name: str, secret: SecretKey | None) -> Value:
        """The value of a client without records, sent if the client's own could not be computed."""
        self._made.pop((task.client, _question(task, name)), None)
        return self._noted(task, name, nothing(self._contributions[name], self._job(task, name, secret)))

    def _noted(self, task: Contribute, name: str, value: Value) -> Value:
        """Store the value for the rest of this query, and return it."""
        place = (task.client, _question(task, name))
        value = self._counted(task.client, value)
        # The new state counts from `settle` on: later values of this query must start from the same state.
        if value.new_state is not None:
            self._news[task.client] = value.new_state
        if self._plan.hidden:  # otherwise the query has one wave, and the value is not needed again
            self._values[place] = value
        return value

    def _job(self, task: Contribute, name: str, secret: SecretKey | None) -> ClientContext:
        """The client's context, from which it computes this value."""
        at, order, broadcast = task.header, task.order, task.broadcast
        x, y = self._records[task.client]
        stateless = self._specs[name].reads_state == "none"
        return ClientContext(
            client=task.client,
            round=at.round,
            x=x,
            y=y,
            broadcast=broadcast.model,
            public=dict(zip(broadcast.names, broadcast.arrays, strict=True)),
            rng=self._rng(at.round, task.client, order.number),
            kept={} if stateless else self.kept.get(task.client, {}),
            count=self.count(task.client),
            initial=order.initial,
            number=order.number,
            held=None if self._held is None else self._held[task.client],
            source=self._source(task, name, secret),
            session=at.session,
        )

    def _source(self, task: Contribute, name: str, secret: SecretKey | None) -> Source | None:
        """The randomness of private training for one query and one broadcast."""
        if secret is None or self._specs[name].training is None:
            return None
        at, order = task.header, task.order
        # Session and round need no label here, because the journal has a secret for each of them.
        # The label has the query and not the attempt, so every attempt draws the same noise and has the same
        # value. It has the broadcast, because two models under one draw of noise reveal their difference.
        told = hashlib.sha256(encode(Header(at.session, at.round, 0, 0), task.broadcast)).digest()
        which = b"training|%d|%d|%d|" % (order.initial, order.number, order.again)
        return Source(derived(secret, which + told + name.encode()))

    def _counted(self, client: int, value: Value) -> Value:
        """Return the value, and note in the log how many entries were moved into public bounds, and whether
        it is blank. If the value is made after noise, the note is taken after noise too.
        """
        if value.clipped or value.floored:
            self._log.moved[client_name(client)] = (value.clipped, value.floored)
        if value.blank:
            self._log.blank[client_name(client)] = value.blank
        if (then := value.after_noise) is None:
            return value
        return replace(value, after_noise=lambda noised: self._counted(client, then(noised)))


@runtime_checkable
class OfNothing(Contribution, Protocol):
    """A contribution that defines the value of a client without records."""

    def nothing(self, context: ClientContext) -> Value:
        """The value without records. It depends on the order and the broadcast alone."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A contribution that answers linear queries."""

    def linear_bounds(self, broadcast: Float32s, public: Mapping[str, NDArray[Any]]) -> LinearBounds | None:
        """The client's own copy of their bounds. It sees no record, so silence after it reveals none."""
        ...


def require_own_bounds(contribution: Contribution, asked: LinearBounds, broadcast: Broadcast) -> None:
    """Raise Abstains unless a call asks within the bounds that the client declares for this broadcast.

    Keys and pads follow from the bounds of the call. Under looser ones the key holder would accept weights
    that single out one entry of the vector.
    """
    name, own = contribution.spec.name, None
    if isinstance(contribution, Bounded):
        public = dict(zip(broadcast.names, broadcast.arrays, strict=True))
        try:
            own = contribution.linear_bounds(broadcast.model, public)
        except DataError as error:
            raise Abstains(Reason.ORDER, f"{error} It abstains, and is not charged.") from None
    if own != asked:
        raise Abstains(
            Reason.ORDER,
            f"Expected a query of {name!r} in the bounds that this client declares, got bounds "
            f"{_said(asked)} where it declares {_said(own)}: it abstains, and is not charged.",
        )


def _said(bounds: LinearBounds | None) -> str:
    return "none (linear_bounds)" if bounds is None else bounds.text()


def nothing(contribution: Contribution, context: ClientContext) -> Value:
    """The value of a client without records, of the same length as any other client's value."""
    held = None if context.held is None else (context.held[0][:0], context.held[1][:0])
    empty = replace(context, x=context.x[:0], y=context.y[:0], held=held)
    return contribution.nothing(empty) if isinstance(contribution, OfNothing) else contribution.compute(empty)


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _question(task: Contribute, name: str) -> Question:
    at, order = task.header, task.order
    number = 0 if order.initial else at.round
    return Question(at.session, number, name, order.initial or order.number, order.again)


def of_size(name: str, size: int, conceal: Conceal) -> Conceal:
    """Wrap `conceal`: the client abstains if it has another number of integers than the call says."""

    def checked(integers: NDArray[Any]) -> NDArray[np.generic] | bytes:
        if integers.shape != (size,):
            raise Abstains(
                Reason.ORDER,
                f"It was called for {size} values of {name!r} and has {integers.size}, so it abstains.",
            )
        return conceal(integers)

    return checked
