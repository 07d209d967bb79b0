"""STC as its authors' code has it, in torch: each tensor by itself, with all equals of the last one sent.

Three rounds of all clients. The transcription takes the clients' updates and the initial model, and does the
rest by itself: residuals of clients and server, ternary values, means, and the model.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import torch
from support.tiny_problem import tiny_problem
from torch import Tensor

from securefl.algorithm.clients import ClientContext, Population, State
from securefl.algorithm.queries import Answers, Total
from securefl.protocols.stc import STC

P, CLIENTS, ROUNDS = 0.3, 3, 3
SHAPES = [(8, 6), (8,), (3, 8), (3,)]


def compressed(tensor: Tensor) -> Tensor:
    sizes = tensor.abs()
    top, _ = torch.topk(sizes.flatten(), ceil(tensor.numel() * P))
    # The authors' code writes -mu for each 0 if the last one is 0. Such a 0 stays 0 here.
    return torch.where(sizes >= top[-1], top.mean() * tensor.sign(), 0.0)


def tensors(vector: Any) -> list[Tensor]:
    split = torch.split(torch.from_numpy(np.array(vector, np.float64)), [int(np.prod(s)) for s in SHAPES])
    return [part.view(shape) for part, shape in zip(split, SHAPES, strict=True)]


def flat(parts: list[Tensor]) -> Any:
    return torch.cat([part.flatten() for part in parts]).numpy()


def test_three_rounds_are_those_of_a_transcription() -> None:
    here = tiny_problem()
    algorithm: Any = STC(fraction=1.0, p=P, per_tensor=True, ties=True).build(here)
    (update,) = algorithm.contributions
    state: State = algorithm.start()
    kept: list[Any] = [{} for _ in range(CLIENTS)]
    model = tensors(here.initial)
    residuals = [[torch.zeros(shape, dtype=torch.float64) for shape in SHAPES] for _ in range(CLIENTS + 1)]
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
            whole = [a + b for a, b in zip(residuals[client], tensors(step), strict=True)]
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
    fewest = sum(ceil(np.prod(shape) * P) for shape in SHAPES)
    assert min(many) >= fewest
    assert max(many) > fewest, "the mean of ternary values has equals of the last one"
