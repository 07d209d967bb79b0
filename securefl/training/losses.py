"""The losses cross-entropy and mean squared error, declared changes of them, and checks of their arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from securefl.core.errors import ConfigError, DataError
from securefl.data.dataset import Task
from securefl.training.devices import CPU, as_tensor

Loss = Literal["cross_entropy", "mse", "binary_cross_entropy"]
"""A loss by name: cross-entropy of int64 labels (n,), squared error of float32 targets (n, targets), or the
mean of each label's cross-entropy with logits, of float32 labels 0 and 1 (n, labels)."""
LOSS_OF: Final[Mapping[Task, Loss]] = {
    "classification": "cross_entropy",
    "regression": "mse",
    "multi-label": "binary_cross_entropy",
}
"""The loss of each kind of problem."""
PerRecord = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, outputs), targets) -> each record's loss (n,), which depends on that record alone."""


@dataclass(frozen=True, kw_only=True)
class DeclaredLoss:
    """A loss that a study declares. Its mean over a mini-batch is minimised.

    Attributes:
        of: The loss that takes the same targets.
        class_weights: Factors of the classes' cross-entropies, or none. Of several labels, they are factors
            of each label's positives, as torch's `pos_weight`. They are declared, not counted from records.
            The mean over a batch divides by its records, and not by their weights as torch does.
        function: A loss of the study's own, or None. `require_per_record` tests it.
    """

    of: Loss
    class_weights: tuple[float, ...] = ()
    function: PerRecord | None = None


TrainingLoss = Loss | DeclaredLoss
"""A loss by name, or one that a study declares."""


def name_of(loss: TrainingLoss) -> Loss:
    """The name of the loss that takes the same targets."""
    return loss.of if isinstance(loss, DeclaredLoss) else loss


def has_code(loss: TrainingLoss) -> bool:
    """Whether the loss runs code that is not this package's."""
    return isinstance(loss, DeclaredLoss) and loss.function is not None


def criterion_of(loss: TrainingLoss) -> PerRecord:
    """The function (outputs, targets) -> mean loss."""
    if isinstance(loss, DeclaredLoss):
        return lambda outputs, targets: losses_of(outputs, targets, loss).mean()
    match loss:
        case "cross_entropy":
            return cross_entropy
        case "mse":
            return mse_loss
        case "binary_cross_entropy":
            return binary_cross_entropy_with_logits


def losses_of(outputs: Tensor, y: Tensor, loss: TrainingLoss) -> Tensor:
    """Each record's loss (n,). A label without an output of the model, or a target nan, gives nan."""
    declared = loss if isinstance(loss, DeclaredLoss) else DeclaredLoss(of=loss)
    own = declared.function
    match declared.of:
        case "cross_entropy":
            # torch raises if any record has an unknown label, and so would reveal that record. nan drops it
            # alone.
            known = (y >= 0) & (y < outputs.shape[1])
            labels = torch.where(known, y, 0)
            losses = own(outputs, labels) if own else cross_entropy(outputs, labels, reduction="none")
            if declared.class_weights:
                losses = losses * outputs.new_tensor(declared.class_weights)[labels]
        case "mse" | "binary_cross_entropy":
            known = torch.isfinite(y).all(1)
            of: Any = mse_loss if declared.of == "mse" else binary_cross_entropy_with_logits
            # A copy: the function may write into it, and the client's next pass would read that. Made-up
            # labels are any numbers, which torch's loss of probabilities does not take.
            copy = y.clone() if declared.of == "mse" else (y > 0.5).to(y.dtype)
            weights = declared.class_weights
            more = {"pos_weight": outputs.new_tensor(weights)} if weights else {}
            losses = own(outputs, copy) if own else of(outputs, y, reduction="none", **more).mean(1)
    return torch.where(known, losses, torch.nan)


PROBES: Final = 4
"""The number of records on which a loss is tested."""


def require_per_record(loss: DeclaredLoss, name: str, outputs: Tensor) -> None:
    """Test a loss of a study's own on made-up targets.

    Args:
        loss: The loss.
        name: Its name, for errors.
        outputs: The model's outputs for PROBES drawn records, (PROBES, outputs): the function may take
            probabilities alone.

    Raises:
        ConfigError: The function fails, does not return one float for each record, or returns nan. Or a
            record's loss, or its gradient, depends on another record.
    """
    scores = outputs.detach().clone().requires_grad_()
    targets = torch.rand(outputs.shape, generator=torch.Generator().manual_seed(0))
    if loss.of == "cross_entropy":
        targets = torch.arange(PROBES) % outputs.shape[1]
    elif loss.of == "binary_cross_entropy":
        targets = targets.round()
    said = f"Expected {name} to give the loss of each record, of shape ({PROBES},) for {PROBES} records"
    own: Any = loss.function

    def tried(compute: Callable[..., Any], *given: Any) -> Any:
        try:
            return compute(*given)
        except Exception as error:  # the function is the study's own code: it can raise any exception
            raise ConfigError(f"{said}, got {type(error).__name__}: {error}. Correct it.") from error

    found = tried(own, scores, targets.clone())
    alone = [tried(own, scores[at : at + 1], targets[at : at + 1].clone()) for at in range(PROBES)]
    if not isinstance(found, Tensor) or found.shape != (PROBES,) or not found.is_floating_point():
        came = f"shape {tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found)
        raise ConfigError(
            f'{said}, got {came}. Take no mean over records (torch\'s losses have reduction="none"), and '
            "the mean over a record's own values: .mean(1)."
        )
    if not found.requires_grad:
        raise ConfigError(f"{said}, got losses without a gradient. Compute them from the outputs by torch.")
    if (bad := found.isnan()).any():
        raise ConfigError(
            f"{said}, got nan for outputs such as {outputs[bad][0].tolist()[:3]}. Correct it for any output "
            "of the model: outputs.softmax(1) and outputs.sigmoid() are probabilities."
        )
    (slope,) = tried(torch.autograd.grad, found[0], scores)
    if slope[1:].count_nonzero() or not torch.allclose(found, torch.cat(alone), rtol=1e-4, atol=1e-6):
        raise ConfigError(
            f"{said}, got one that depends on other records. Take no mean, maximum or count over them."
        )


def records(
    x: NDArray[Any], y: NDArray[Any], loss: TrainingLoss, device: torch.device = CPU
) -> tuple[Tensor, Tensor]:
    """Records and targets as tensors on the device. Raises DataError as `require_records` does."""
    require_records(x, y, loss)
    return as_tensor(x).to(device), as_tensor(y).to(device)


def require_records(x: NDArray[Any], y: NDArray[Any], loss: TrainingLoss) -> None:
    """Raises DataError if the lengths of records and targets, or the targets' type, do not fit."""
    if len(x) != len(y):
        raise DataError(f"Expected one target a record, got {len(x)} records and {len(y)} targets.")
    match name_of(loss):
        case "cross_entropy":
            fits, expected = y.ndim == 1 and y.dtype == np.int64, "int64 labels of shape (n,)"
        case "mse" | "binary_cross_entropy":
            fits, expected = y.ndim == 2 and y.dtype == np.float32, "float32 targets of shape (n, targets)"
    if not fits:
        raise DataError(f"Expected {expected} for loss {name_of(loss)!r}, got {y.dtype} of shape {y.shape}.")
