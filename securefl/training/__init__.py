"""Models, local and private (DP-SGD) training, evaluation and profiles in torch, on plain arrays.

Nothing here masks or encrypts a value. A client's value leaves it only through a release.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.training.chunks import record_losses
    from securefl.training.devices import single_thread
    from securefl.training.evaluation import Task, evaluate, mean_loss, pooled, relative_accuracy
    from securefl.training.learnt import Learnt
    from securefl.training.local import LocalTraining, Penalty, train
    from securefl.training.losses import Loss
    from securefl.training.models import ModelConfig
    from securefl.training.private_steps import DPSGD
    from securefl.training.profiling import outputs, probe_profile, profile
    from securefl.training.task import Problem
    from securefl.training.vector import load_vector, size, to_vector

__all__ = [
    "DPSGD",
    "Learnt",
    "LocalTraining",
    "Loss",
    "ModelConfig",
    "Penalty",
    "Problem",
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
_HOMES = {
    "DPSGD": "securefl.training.private_steps",
    "Learnt": "securefl.training.learnt",
    "LocalTraining": "securefl.training.local",
    "Loss": "securefl.training.losses",
    "ModelConfig": "securefl.training.models",
    "Penalty": "securefl.training.local",
    "Problem": "securefl.training.task",
    "Task": "securefl.training.evaluation",
    "evaluate": "securefl.training.evaluation",
    "load_vector": "securefl.training.vector",
    "mean_loss": "securefl.training.evaluation",
    "outputs": "securefl.training.profiling",
    "pooled": "securefl.training.evaluation",
    "probe_profile": "securefl.training.profiling",
    "profile": "securefl.training.profiling",
    "record_losses": "securefl.training.chunks",
    "relative_accuracy": "securefl.training.evaluation",
    "single_thread": "securefl.training.devices",
    "size": "securefl.training.vector",
    "to_vector": "securefl.training.vector",
    "train": "securefl.training.local",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
