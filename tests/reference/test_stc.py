"""STC in torch, as its paper and as its authors' code have it: that one compresses each tensor by itself, and
sends all equals of the last entry.

Three rounds of all clients. The transcription takes the clients' updates and the initial model, and does the
rest by itself: residuals of clients and server, ternary values, means, and the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

import numpy as np
import torch
from support.every import every
from support.tiny_problem import tiny_problem
from torch import Tensor

from securefl.algorithm.clients import ClientContext, Population, State
from securefl.algorithm.queries import Answers, Total
from securefl.protocols.stc import STC

P, CLIENTS, ROUNDS = 0.3, 3, 3
SHAPES: list[tuple[int, ...]] = [(8, 6), (8,), (3, 8), (3,)]


def of_authors(tensor: Tensor) -> Tensor:
    sizes = tensor.abs()
    top, _ = torch.topk(sizes.flatten(), ceil(tensor.numel() * P))
    # The authors' code writes -mu for each 0 if the last one is 0. Such a 0 stays 0 here.
    return torch.where(sizes >= top[-1], top.mean() * tensor.sign(), 0.0)


def of_paper(whole: Tensor) -> Tensor:
    """Algorithm 1, of the whole model. Of equals the first are sent."""
    top = torch.sort(whole.abs(), descending=True, stable=True).indices[: int(whole.numel() * P)]
    return torch.zeros_like(whole).index_put((top,), whole[top].abs().mean() * whole[top].sign())


def tensors(vector: Any, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    split = torch.split(torch.from_numpy(np.array(vector, np.float64)), [int(np.prod(s)) for s in shapes])
    return [part.view(shape) for part, shape in zip(split, shapes, strict=True)]


def flat(parts: list[Tensor]) -> Any:
    return torch.cat([part.flatten() for part in parts]).numpy()


WHOLE = sum(int(np.prod(shape)) for shape in SHAPES)
VARIANTS: Mapping[str, tuple[dict[str, bool], Callable[[Tensor], Tensor], list[tuple[int, ...]]]] = {
    "paper": ({}, of_paper, [(WHOLE,)]),
    "authors": ({"per_tensor": True, "ties": True}, of_authors, SHAPES),
}


@every("name", VARIANTS)
def test_three_rounds_are_those_of_a_transcription(name: str) -> None:
    options, compressed, shapes = VARIANTS[name]
    here = tiny_problem()
    algorithm: Any = STC(fraction=1.0, p=P, **options).build(here)
    (update,) = algorithm.contributions
    state: State = algorithm.start()
    kept: list[Any] = [{} for _ in range(CLIENTS)]
    model = tensors(here.initial, shapes)
    residuals = [[torch.zeros(shape, dtype=torch.float64) for shape in shapes] for _ in range(CLIENTS + 1)]
    rng, many = np.random.default_rng(3), []
    everybody = Population(clients=CLIENTS, seconds=np.ones(CLIENTS))
    for number in range(1, ROUNDS + 1):
        turn = algorithm.round(state, everybody, number, np.random.default_rng(number))
        query = next(turn)
        values, sent = [], []
        for client in range(CLIENTS):
            step = rng.normal(scale=0.01, size=len(here.initial))
            own = ClientContext(
                client=client,
                round=number,
                x=np.zeros((1, 6), np.float32),
                y=np.zeros(1, np.int64),
                broadcast=query.broadcast,
                public={},
                kept=kept[client],
                rng=np.random.default_rng(0),
            )
            start = update.fit(own).start
            np.testing.assert_allclose(start, flat(model), atol=1e-5)
            value = update.value(own, (start + step).astype(np.float32))
            kept[client] = value.new_state
            values.append(value.clear)
            whole = [a + b for a, b in zip(residuals[client], tensors(step, shapes), strict=True)]
            sent.append([compressed(part) for part in whole])
            residuals[client] = [a - b for a, b in zip(whole, sent[-1], strict=True)]
        total = Total(value=np.sum(values, axis=0, dtype=np.float64), weight=CLIENTS)
        answers = Answers(survivors=tuple(range(CLIENTS)), totals={"update": total}, per_client={})
        try:
            turn.send(answers)
        except StopIteration as ended:
            state = ended.value.state
        mean = [sum(parts) / CLIENTS for parts in zip(*sent, strict=True)]
        whole = [a + b for a, b in zip(residuals[-1], mean, strict=True)]
        change = [compressed(part) for part in whole]
        residuals[-1] = [a - b for a, b in zip(whole, change, strict=True)]
        model = [a + b for a, b in zip(model, change, strict=True)]
        np.testing.assert_allclose(state.broadcast, flat(model), atol=1e-5)
        many.append(np.count_nonzero(flat(change)))
    if name == "paper":
        assert {*many} == {int(WHOLE * P)}
        return
    fewest = sum(ceil(np.prod(shape) * P) for shape in SHAPES)
    assert min(many) >= fewest
    assert max(many) > fewest, "the mean of ternary values has equals of the last one"
