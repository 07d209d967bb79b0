"""DP-SGD: training with record-level differential privacy, partly by the per-record gradients of Opacus.

The guarantee is for data sets that differ by one record added or removed. For all records, the trained model
is the output of `steps` compositions of the Poisson-sampled Gaussian mechanism with noise multiplier z
(`DPSGD.event`), because

- each record enters a step with probability q, independently of all others,
- its gradient has norm at most C, or counts as zero if it is not finite,
- Gaussian noise of deviation z C is added to the sum in every step, even to an empty one,
- nothing else reads the records: no size, no batch norm, no schedule.

Sampling and noise come from `securefl.dp.noise.Source`, keyed by the operating system. They are drawn on the
CPU for models on any device. The seeds of torch and numpy have no effect. Opacus' own noise is not used: it
repeats under one `torch.manual_seed`, and a generator takes a seed of 64 bits. Its `secure_mode` needs a
package that no longer installs.

The sum of clipped gradients keeps this guarantee in floating point. Kernels depend on the number of rows, and
so one record could move others: without a countermeasure, records on the kink of a ReLU flipped together and
moved the sum by 22 C. So gradients are computed in chunks of a fixed, public number of rows (`chunks`), where
a record's gradient has the same bits in every batch. They are clipped and summed in float64 (`clipped`). One
record moves the sum by at most C, whatever the weights are. `securefl audit` tests it.

Caveat: noise is added in float64 and not on a grid. The last bits of a noised float can reveal more than the
mechanism permits (Mironov, CCS 2012). Time and memory also depend on the records, and a process on the client
can measure them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from dp_accounting import DpEvent
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.training.devices import device_of, in_mode, one_thread, records_apart
from securefl.training.draws import Tape, tape_of
from securefl.training.isolation import (
    length_of,
    lone_gradients,
    require_apart,
    require_slopes_apart,
    scheme_of,
)
from securefl.training.losses import Loss, records
from securefl.training.per_record import LoneSum, Sum, clipped_sums
from securefl.training.private_steps import DPSGD, Records, diverged, lone_rows, private_steps
from securefl.training.vector import views_of

_HANDLERS: Final = list(logging.root.handlers)
from opacus.grad_sample import GradSampleModule  # noqa: E402

# Importing opacus sends the log of every library to standard error. Restoring the handlers undoes that.
logging.root.handlers[:] = _HANDLERS


def train_privately(
    model: nn.Module, x: NDArray[Any], y: NDArray[Any], config: DPSGD, loss: Loss, source: Source
) -> DpEvent:
    """Train the model by DP-SGD, in place. The returned event does not depend on the records.

    Parameters that require a gradient are trained. A record counts as zero if it, its loss or its gradient is
    not finite, or if the model has no output for its label. The modes of all modules are restored and no hook
    stays. Weights that your own `forward` uses outside of their layer are not trained.

    Args:
        x: Records, shape (n, *shape). n may be 0 or 1.
        y: Targets as for `train`.
        source: `Source()`. Only tests give it a key.

    Returns:
        `config.event`, the privacy cost of the training.

    Raises:
        ConfigError: The model is frozen, a layer or a `forward` mixes records (see `make_private`), or a
            layer gives no gradients per record.
        DataError: The arrays do not fit, or the model is no longer finite. The latter depends on the noised
            steps alone, so raising it costs no further privacy.
    """
    device = device_of(model)
    inputs, targets = records(x, y, loss, device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with in_mode(model, training=True):
        _require_private(model, trained)
    values = torch.cat([parameter.detach().reshape(-1) for parameter in trained])
    with (
        in_mode(model, training=True),
        one_thread(),
        records_apart(device),
        views_of(values, trained),
        _summing(model, inputs, targets, config, loss) as clipped_sum,
    ):

        def clipped_sums_of(batches: Sequence[Records]) -> Tensor:
            ((x, y),) = batches
            return clipped_sum(x, y, _tape(clipped_sum, x, y, source))[None]

        private_steps(values, config, [(inputs, targets)], [source], clipped_sums_of, torch.flatten)
    if not bool(torch.isfinite(values).all()):
        raise diverged(config.learning_rate)
    return config.event


@contextmanager
def _summing(model: nn.Module, x: Tensor, y: Tensor, config: DPSGD, loss: Loss) -> Iterator[Sum]:
    """The function that sums this model's clipped gradients, after the public passes of `isolation`.

    x, y: only their shapes, types and device are used.
    """
    if scheme_of(model).alone:
        free = {name: one for name, one in model.named_parameters() if one.requires_grad}
        rows = lone_rows(config.chunk, sum(one.numel() for one in free.values()))
        yield LoneSum(lone_gradients(model, x, y, loss, rows), free, config.clip_norm, rows)
        return
    trained = [one for one in model.parameters() if one.requires_grad]
    with torch.no_grad():
        require_apart(model, "outputs", model, x, rows=config.chunk)
    require_slopes_apart(model, x, y, loss, config.chunk)
    length = length_of(model, x, config.chunk)
    layers = [
        layer
        for layer in model.modules()
        if any(one.requires_grad for one in layer.parameters(recurse=False))
    ]
    with clipped_sums(
        model, layers, trained, config.clip_norm, loss, _gradients, config.chunk, length
    ) as clipped_sum:
        yield clipped_sum


def _tape(clipped_sum: Sum, x: Tensor, y: Tensor, source: Source) -> Tape | None:
    """The random values of a step's records. If the model draws none, it is None and reads no source."""
    if not clipped_sum.length:
        return None
    return tape_of(x, y, clipped_sum.length, SecretKey(source.words(4).tobytes()))


def _require_private(model: nn.Module, trained: list[nn.Parameter]) -> None:
    if not trained:
        raise ConfigError("Expected a parameter to train, got a model that is all frozen. Leave one free.")
    if any(one._backward_hooks or one._post_accumulate_grad_hooks for one in trained):
        raise ConfigError(
            "Expected parameters without hooks, got one with a hook. It would not be called for "
            "gradients of single records. Take it away by the handle that registering it returned."
        )
    mixing = [f"{name}: {layer}" for name, layer in model.named_modules() if _mixes_records(layer)]
    if mixing:
        raise ConfigError(
            f"Expected layers that keep records apart, got {', '.join(mixing)}. Replace batch norm by "
            "`make_private`, on the server and on all clients."
        )
    whole = [f"{name}: {layer}" for name, layer in model.named_modules() if isinstance(layer, nn.RNNBase)]
    if whole:
        raise ConfigError(
            f"Expected layers that torch follows record by record, got {', '.join(whole)}. `make_private` "
            "replaces them by layers of this package with the same values, unless they have a `proj_size`."
        )


def _mixes_records(layer: nn.Module) -> bool:
    return isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats)


# Gradients per record, from Opacus --------------------------------------------------------------------


def _gradients(layer: nn.Module, taken: Tensor, slope: Tensor) -> dict[nn.Parameter, Tensor]:
    """A `Sampler`. The input is made contiguous, since Opacus' convolutions misread a strided one."""
    found: dict[nn.Parameter, Tensor] = GradSampleModule.GRAD_SAMPLERS[type(layer)](
        layer, [taken.contiguous()], slope
    )
    return found
