"""The values of clients: each computed once a question, from one set of records and one kept state.

What a client conceals has to fit what the server called for. Where it does not, the client abstains. Lengths
and kinds come from the server's call, values from the client. A server that calls for others gets silence,
and costs nobody anything but its own sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from securefl.algorithm.clients import ClientContext, Contribution
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState, Value, ValueSpec
from securefl.core.abstaining import Abstains, Reason
from securefl.core.agreement import Question
from securefl.core.entropy import derived
from securefl.core.errors import DataError, LocalProtocolError, SecureFLError
from securefl.core.hiding import Conceal, Concealed
from securefl.core.keys import SecretKey
from securefl.core.messages import client_name
from securefl.core.wire import Header, encode
from securefl.dp.noise import Source
from securefl.engine.exchange import Contribute
from securefl.engine.observer import Log
from securefl.training.fit import Fit, Fits, Fitted, Trainer

Records = tuple[NDArray[Any], NDArray[Any]]
Streams = Callable[[int, int, int], np.random.Generator]
"""A client's own stream, from the round, the client, and the number of the Ask within the round."""


def of_records(error: Exception) -> bool:
    """Whether an error may follow from the records. Those on purpose, and of memory, do not."""
    if isinstance(error, SecureFLError):
        return isinstance(error, DataError)
    return not isinstance(error, MemoryError | torch.OutOfMemoryError)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one client is to release in one exchange. conceal: by name, how a value is hidden."""

    client: int
    header: Header
    wants: tuple[str, ...]
    order: Contribute
    conceal: Mapping[str, Conceal] = field(default_factory=dict)


class Computing:
    """Records, streams and kept state of the clients at hand.

    `kept` is what each had on its device before the Ask at hand. What it makes in that Ask counts from
    `settle` on.
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
        self._fits = {
            name: contribution
            for name, contribution in contributions.items()
            if isinstance(contribution, Fits)
        }
        self._records = records
        self._held = held
        self._rng = rng
        self._log = log
        self._trainer = trainer
        self.kept: dict[int, ClientState] = dict(kept)
        self._news: dict[int, ClientState] = {}
        self._values: dict[tuple[int, Question], Value] = {}
        self._trained: dict[tuple[int, Question], tuple[ClientContext, Fitted]] = {}
        self._seen: dict[int, bytes] = {}

    def settle(self) -> None:
        """The Ask is over: clients keep what they made of it."""
        self.kept |= self._news
        self.drop()

    def drop(self) -> None:
        """The Ask came to nothing, and its session with it: clients keep nothing of it."""
        self._news = {}
        self._values = {}
        self._trained = {}
        self._seen = {}

    def records(self, client: int) -> Records:
        """A client's records. Abstains if they changed while an Ask was at hand.

        An Ask with a hidden sum takes several waves. Its values must be of one set of records, since one
        charge was made for them.
        """
        x, y = self._records[client]
        if not self._plan.hidden:  # one wave, in which every value is computed
            return x, y
        found = hashlib.sha256()
        for part in (x, y, *(() if self._held is None else self._held[client])):
            found.update(np.ascontiguousarray(part).data)
        if self._seen.setdefault(client, found.digest()) != found.digest():
            raise Abstains(
                Reason.CHANGED,
                "Expected one set of records in an Ask, but the records changed: it abstains. Ask in another "
                "round.",
            )
        return x, y

    def count(self, client: int) -> int:
        """A client's number of records as others may know it."""
        held = 0 if self._held is None else len(self._held[client][0])
        return self._plan.count(len(self._records[client][0]) + held)

    def train(self, wave: Sequence[tuple[Task, SecretKey | None]], speaking: Container[int] = ()) -> None:
        """Run the local training behind these values, all clients' at once. `value` goes on from there.

        speaking: clients whose records may stop nothing, neither their own training nor the others'.
        """
        fits: dict[tuple[int, Question], tuple[ClientContext, Fit]] = {}
        for task, secret in wave:
            try:
                for name in task.wants:
                    contribution, place = self._fits.get(name), (task.client, _question(task, name))
                    if contribution is not None and place not in self._values:
                        context = self._job(task, name, secret)
                        if (fit := contribution.fit(context)) is not None:
                            fits[place] = context, fit
            except Exception as error:
                # said where the client's values are made, which fails in the same way
                if not isinstance(error, DataError) and not (task.client in speaking and of_records(error)):
                    raise
        try:
            came = self._trainer([fit for _, fit in fits.values()]) if fits else []
        except Exception as error:
            if not of_records(error) or not any(client in speaking for client, _ in fits):
                raise
            # Whose records it was is found where each value is made, one after the other.
            self._trained = {}
            return
        self._trained = {
            place: (context, own) for (place, (context, _)), own in zip(fits.items(), came, strict=True)
        }

    def value(self, task: Task, name: str, secret: SecretKey | None) -> Value:
        """The client's value, computed once for a question, whatever stage or attempt carries it."""
        place = (task.client, _question(task, name))
        if place in self._values:
            return self._values[place]
        if place in self._trained:
            value = self._fits[name].value(*self._trained.pop(place))
        else:
            value = self._contributions[name].compute(self._job(task, name, secret))
        return self._noted(task, name, value)

    def blank(self, task: Task, name: str, secret: SecretKey | None) -> Value:
        """The value of a client without records, in place of one that could not be computed."""
        self._trained.pop((task.client, _question(task, name)), None)
        return self._noted(task, name, nothing(self._contributions[name], self._job(task, name, secret)))

    def _noted(self, task: Task, name: str, value: Value) -> Value:
        """The value, as it counts for the rest of this Ask."""
        place = (task.client, _question(task, name))
        value = self._counted(task.client, value)
        # Not before `settle`: a value of this Ask that is computed later must start from the same state.
        if value.new_state is not None:
            self._news[task.client] = value.new_state
        if self._plan.hidden:  # else there is one wave, and no later one asks for it
            self._values[place] = value
        return value

    def _job(self, task: Task, name: str, secret: SecretKey | None) -> ClientContext:
        """What a client computes this value from."""
        at, order, broadcast = task.header, task.order.order, task.order.broadcast
        x, y = self._records[task.client]
        return ClientContext(
            client=task.client,
            round=at.round,
            x=x,
            y=y,
            broadcast=broadcast.model,
            public=dict(zip(broadcast.names, broadcast.arrays, strict=True)),
            rng=self._rng(at.round, task.client, order.number),
            kept=self.kept.get(task.client, {}),
            count=self.count(task.client),
            initial=order.initial,
            number=order.number,
            held=None if self._held is None else self._held[task.client],
            source=self._source(task, name, secret),
        )

    def _source(self, task: Task, name: str, secret: SecretKey | None) -> Source | None:
        """The randomness of private training for one question and one broadcast."""
        if secret is None or self._contributions[name].spec.training is None:
            return None
        at, order = task.header, task.order.order
        # Session and round bar nothing here: the secret is the journal's own for each of them.
        # By the question, not by the attempt: every attempt at it draws the same noise, and so has the same
        # value. By the broadcast too: of two models under one draw of noise, the difference would be open.
        told = hashlib.sha256(encode(Header(at.session, at.round, 0, 0), task.order.broadcast)).digest()
        which = b"training|%d|%d|%d|" % (order.initial, order.number, order.again)
        return Source(derived(secret, which + told + name.encode()))

    def _counted(self, client: int, value: Value) -> Value:
        """The value. How much of it was moved into public bounds is counted for the observer alone.

        Of a value that is made after noise, the count is taken after noise too.
        """
        if value.clipped or value.floored:
            self._log.moved[client_name(client)] = (value.clipped, value.floored)
        if (then := value.after_noise) is None:
            return value
        return replace(value, after_noise=lambda noised: self._counted(client, then(noised)))


@runtime_checkable
class OfNothing(Protocol):
    """An Offer that says itself what a client without records sends."""

    @property
    def spec(self) -> ValueSpec: ...

    def compute(self, context: ClientContext) -> Value: ...

    def nothing(self, context: ClientContext) -> Value:
        """The value without records. It follows from the order and the broadcast alone."""
        ...


def nothing(contribution: Contribution, context: ClientContext) -> Value:
    """What a client without records sends, of the same length as any other client's value."""
    held = None if context.held is None else (context.held[0][:0], context.held[1][:0])
    empty = replace(context, x=context.x[:0], y=context.y[:0], held=held)
    return contribution.nothing(empty) if isinstance(contribution, OfNothing) else contribution.compute(empty)


def _question(task: Task, name: str) -> Question:
    at, order = task.header, task.order.order
    number = 0 if order.initial else at.round
    return Question(at.session, number, name, order.initial or order.number, order.again)


def of_size(name: str, size: int, conceal: Conceal) -> Conceal:
    """`conceal` for as many integers as were called for. Abstains for others."""

    def checked(integers: NDArray[Any]) -> Concealed:
        if integers.shape != (size,):
            raise Abstains(
                Reason.ORDER,
                f"It was called for {size} values of {name!r} and has {integers.size}, so it abstains.",
            )
        return conceal(integers)

    return checked


def of_kind(conceal: Conceal) -> Conceal:
    """`conceal` for a value of the kind that was called for. Abstains for another kind."""

    def checked(hidden: NDArray[Any]) -> Concealed:
        try:
            return conceal(hidden)
        except LocalProtocolError as error:
            raise Abstains(
                Reason.ORDER, f"It was called for another kind of value, so it abstains: {error}"
            ) from None

    return checked
