"""FedCor's MLP with Dropout(0.5) twice, as its authors have it: a client's training in torch's own loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from support.tiny_problem import tiny_problem
from torch import nn
from torch.nn.functional import cross_entropy

from securefl.algorithm.clients import ClientContext
from securefl.protocols.fedavg import FedAvg
from securefl.training import ModelConfig

HIDDEN, BATCH, EPOCHS, RATE = (8, 7), 5, 3, 0.1


def test_a_training_under_dropout_is_that_of_a_transcription() -> None:
    """The masks follow from the client's stream alone, and not from torch's generator of the process."""
    rng = np.random.default_rng(40)
    x, y = rng.normal(size=(13, 6)).astype(np.float32), rng.integers(3, size=13)
    here = replace(
        tiny_problem(learning_rate=RATE, epochs=EPOCHS),
        model=ModelConfig(kind="mlp", hidden=HIDDEN, dropout=0.5),
    )
    (update,) = FedAvg(fraction=1.0, aggregation="partial").build(here).contributions
    own = {"kept": {}, "rng": np.random.default_rng(7)}
    torch.manual_seed(11)
    before = torch.get_rng_state()
    value = update.compute(
        ClientContext(client=0, round=1, x=x, y=y, broadcast=here.initial, public={}, **own)  # type: ignore[arg-type]
    )
    assert torch.equal(torch.get_rng_state(), before)

    dense = [nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, 3)]
    dropped = [nn.Sequential(nn.ReLU(), nn.Dropout(0.5)) for _ in HIDDEN]
    model = nn.Sequential(dense[0], dropped[0], dense[1], dropped[1], dense[2])
    nn.utils.vector_to_parameters(torch.from_numpy(here.initial.copy()), model.parameters())
    stream, optimizer = np.random.default_rng(7), torch.optim.SGD(model.parameters(), lr=RATE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream.integers(2**63)))
        for _ in range(EPOCHS):
            order = stream.permutation(len(x))
            for batch in np.array_split(order, range(BATCH, len(x), BATCH)):
                optimizer.zero_grad()
                cross_entropy(model(torch.from_numpy(x[batch])), torch.from_numpy(y[batch])).backward()
                optimizer.step()
    trained = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    np.testing.assert_allclose(here.initial + value.clear, trained, atol=1e-5)

    # Tests have none.
    found, model = here.module(trained).eval(), model.eval()
    with torch.no_grad():
        torch.testing.assert_close(found(torch.from_numpy(x)), model(torch.from_numpy(x)))
