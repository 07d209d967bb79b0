"""Local accuracy: each client's own held-out records, by the model that the client would use.

The records are those of `[data] holdout`. They are never trained on, and an observer of a simulation has
them; the server does not. A client without such records has no local accuracy (nan). Without a hold-out there
is no figure at all.

Where all clients have one model, each would use the newest one. If a study tests models as they were trained
(`Problem.tested_at`), a client keeps the one that it trained last. No later value reads that state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import ClientState, Device, Evaluation, Float32s, Floats
from securefl.errors import DataError
from securefl.training import Problem
from securefl.training.jobs import TrainingResult

LOCAL: Final = "local accuracy"
"""The name of the observer's figure."""
TRAINED: Final = "trained"
"""The name of a trained model in the state of a client that shares its model with all others."""
Tested = Callable[[int, ClientState, NDArray[Any], NDArray[Any]], Evaluation]
"""The evaluation, on records (x, y), of the model of a client: by its number and its state."""


def kept_trained(problem: Problem, trained: TrainingResult) -> Mapping[str, Float32s]:
    """The trained model as client state, if a study tests it. Else, and if the training failed, nothing."""
    if problem.tested_at == "averaged" or isinstance(trained, DataError):
        return {}
    return {TRAINED: trained.copy()}


def local_accuracy(devices: Sequence[Device], tested: Tested) -> dict[str, Floats]:
    """The figure `LOCAL` of all clients, float64 (N,), nan for a client without held-out records.

    Empty if there is no hold-out.
    """
    if not len(devices) or devices[0].held is None:
        return {}
    found = np.full(len(devices), np.nan)
    for client, device in enumerate(devices):
        if device.held is not None and len(device.held[0]):
            found[client] = tested(client, device.kept, *device.held).accuracy
    return {LOCAL: found}
