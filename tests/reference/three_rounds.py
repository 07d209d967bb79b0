"""Three rounds of a protocol in the clear, and what its transcriptions in torch's own loop share.

A transcription starts from the initial model and draws each client's order of records from the same stream.
Of the protocol's run it takes cohorts that were drawn at random, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.algorithm import (
    Answers,
    ByCount,
    ByDraws,
    ClientContext,
    ClientState,
    CohortQuery,
    Population,
    State,
    Total,
    Value,
)

CLIENTS, ROUNDS, BATCH, EPOCHS, RATE = 4, 3, 5, 2, 0.1
SECONDS = np.array([3.0, 1.0, 2.0, 4.0])
"""What each device takes."""
Vector = NDArray[np.float32]


def records(client: int, count: int | None = None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A client's records. By default each client has another number of them."""
    rng, count = np.random.default_rng(40 + client), count or 13 + client
    return rng.normal(size=(count, 6)).astype(np.float32), rng.integers(3, size=count)


def stream(client: int, number: int) -> np.random.Generator:
    return np.random.default_rng((client, number))


# The protocol -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """What is there after a round. drawn: how often each client was drawn. kept: each client's state."""

    state: State
    drawn: dict[int, int]
    kept: list[ClientState]


def played(algorithm: Any) -> list[Round]:
    """The rounds of an algorithm whose values are sent as they are."""
    contributions = {one.spec.name: one for one in algorithm.contributions}
    state: State = algorithm.start()
    kept: list[ClientState] = [{} for _ in range(CLIENTS)]

    def factors(query: CohortQuery) -> dict[int, float]:
        match query.weights:
            case ByDraws(draws):
                return {**draws}
            case ByCount(total):
                return {client: len(records(client)[0]) / total for client in query.cohort}
        return dict.fromkeys(query.cohort, 1.0)

    def answered(query: CohortQuery, number: int) -> Answers:
        totals, numbers, news, weights = {}, {}, dict[int, Any](), factors(query)
        for asked in (*query.sums, *query.per_client):
            found: dict[int, Value] = {}
            for client in query.cohort:
                x, y = records(client)
                own = ClientContext(
                    client=client,
                    round=number,
                    x=x,
                    y=y,
                    broadcast=query.broadcast,
                    public=query.public,
                    kept=kept[client],
                    rng=stream(client, number),
                    count=len(x),
                )
                found[client] = contributions[asked.spec.name].compute(own)
                if found[client].new_state is not None:
                    news[client] = found[client].new_state
            if asked in query.sums:
                whole = sum(weights[client] * value.floats() for client, value in found.items())
                totals[asked.spec.name] = Total(value=whole, weight=sum(weights.values()))
            elif asked.query is None:
                numbers[asked.spec.name] = {k: float(value.floats()[0]) for k, value in found.items()}
            else:
                asks = asked.query.hidden
                numbers[asked.spec.name] = {k: float(value.hidden @ asks) for k, value in found.items()}
        for client, new in news.items():
            kept[client] = new
        return Answers(survivors=query.cohort, totals=totals, per_client=numbers)

    found = []
    for number in range(1, ROUNDS + 1):
        everybody = Population(clients=CLIENTS, seconds=SECONDS, last=number == ROUNDS)
        turn = algorithm.round(state, everybody, number, np.random.default_rng(number))
        query = next(turn)
        while True:
            try:
                query = turn.send(answered(query, number))
            except StopIteration as ended:
                state = ended.value.state
                found.append(Round(state, dict(ended.value.drawn), [*kept]))
                break
    return found


# Transcriptions -----------------------------------------------------------------------------------


def of_vector(vector: Vector, hidden: tuple[int, ...] = (8,)) -> nn.Sequential:
    widths = (6, *hidden)
    body = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*body, nn.Linear(widths[-1], 3))
    nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), model.parameters())
    return model


def vector(model: nn.Module) -> Vector:
    return np.asarray(nn.utils.parameters_to_vector(model.parameters()).detach().numpy())


def batches(x: Any, y: Any, rng: np.random.Generator, size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    order = rng.permutation(len(x))
    for part in np.array_split(order, range(size, len(x), size)):
        yield torch.from_numpy(x[part]), torch.from_numpy(y[part])


def descend(
    parameters: Any,
    of: tuple[Any, Any],
    rng: np.random.Generator,
    loss: Callable[[Tensor, Tensor], Tensor],
    epochs: int = EPOCHS,
    size: int = BATCH,
    rate: float = RATE,
) -> None:
    optimizer = torch.optim.SGD(list(parameters), lr=rate)
    for _ in range(epochs):
        for x, y in batches(*of, rng, size):
            optimizer.zero_grad()
            loss(x, y).backward()
            optimizer.step()
