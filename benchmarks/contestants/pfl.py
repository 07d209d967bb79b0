"""pfl-research: its simulated backend with federated averaging, as lean as its documentation allows.

Its data sets are made once and hold tensors, so that it cuts each client's batches once; it shuffles none. It
weighs nobody, as all have as many records. It evaluates in its first round, which is not timed, and sends no
metrics.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy

from contestants.models import built, records, vector
from contestants.turns import Cell, Turns, Work

PACKAGES = ("pfl", "torch")


class _Clock(TrainingProcessCallback):
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._turns.next()
        return False, Metrics()


def play(cell: Cell, work: Work, turns: Turns) -> NDArray[np.float32]:
    module = built(cell, work)
    module.loss = lambda x, y: cross_entropy(module(x), y)
    module.metrics = lambda x, y: {"loss": Weighted(float(module.loss(x, y)) * len(y), len(y))}
    clients = [Dataset(own, user_id=str(number)) for number, own in enumerate(records(cell, work))]
    data = FederatedDataset(clients.__getitem__, get_user_sampler("minimize_reuse", range(cell.clients)))
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    turns.begin()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=cell.rounds,
            evaluation_frequency=cell.rounds,
            train_cohort_size=cell.cohort,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=cell.epochs, local_learning_rate=cell.rate, local_batch_size=cell.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=cell.batch),
        callbacks=[_Clock(turns)],
        send_metrics_to_platform=False,
    )
    return vector(module)
