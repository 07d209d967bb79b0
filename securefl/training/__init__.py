"""Models, local training, evaluation and profiles in torch, on plain arrays.

Nothing here protects anything: what leaves a client goes through a release first.
"""

from securefl.training.chunks import record_losses
from securefl.training.devices import single_thread
from securefl.training.evaluation import Task, evaluate, mean_loss, pooled, relative_accuracy
from securefl.training.local import LocalTraining, Penalty, train
from securefl.training.losses import Loss
from securefl.training.models import ModelConfig
from securefl.training.profile import outputs, probe_profile, profile
from securefl.training.vector import load_vector, size, to_vector

__all__ = [
    "LocalTraining",
    "Loss",
    "ModelConfig",
    "Penalty",
    "Task",
    "evaluate",
    "load_vector",
    "mean_loss",
    "outputs",
    "pooled",
    "probe_profile",
    "profile",
    "record_losses",
    "relative_accuracy",
    "single_thread",
    "size",
    "to_vector",
    "train",
]
