"""Training with record-level differential privacy. Opacus gives the gradients of layers that are not dense.

The guarantee is for data sets that differ by one record added or removed. The trained model is the output of
`steps` compositions of the Poisson-sampled Gaussian mechanism with noise multiplier z (`DPSGD.event`),
whatever the records are, because

- each record enters a step with probability q, independently of all others,
- its gradient has norm at most C, or counts as zero if it is not finite,
- Gaussian noise of deviation z C is added to the sum in every step, even to an empty one,
- nothing else reads the records: no size, no batch norm, no schedule.

Sampling and noise come from `securefl.dp.noise.Source`, keyed by the operating system. They are drawn on the
CPU, whatever the model's device. The seeds of torch and numpy play no part. Opacus' own noise is not used: it
repeats under one `torch.manual_seed`, and a generator takes a seed of 64 bits. Its `secure_mode` needs a
package that no longer installs.

The sum of clipped gradients keeps this guarantee in floating point. Kernels change with the number of rows,
and without care one record moves the others: records on the kink of a ReLU flipped together, which moved the
sum by 22 C. So gradients come from chunks of a fixed, public number of rows (`chunks`), where a record's
gradient has the same bits whatever the batch. They are summed in float64. One record moves the sum by at most
(1 + 1e-12) C. `securefl audit` tries it.

Caveat: noise is added in float64 and not on a grid. The last bits of a noised float can tell more than the
mechanism should (Mironov, CCS 2012). Time and memory also depend on the records, for whoever can measure them
on the client.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import gcd
from typing import Any, Final

import numpy as np
import torch
from dp_accounting import DpEvent
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from securefl.core.abstaining import Abstains, Reason
from securefl.core.errors import ConfigError, DataError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.training.devices import device_of, records_apart
from securefl.training.dpsgd_config import DPSGD, lone_rows
from securefl.training.draws import Tape, tape_of
from securefl.training.isolation import (
    length_of,
    lone_gradients,
    require_apart,
    require_slopes_apart,
    way_of,
)
from securefl.training.local import views_of
from securefl.training.losses import Loss, records
from securefl.training.optimizers import SGD, Adam
from securefl.training.per_record import LoneSum, Sum, clipped_sums
from securefl.training.recurrent import record_by_record
from securefl.training.tensors import in_mode
from securefl.training.threads import one_thread

_HANDLERS: Final = list(logging.root.handlers)
from opacus.grad_sample import GradSampleModule  # noqa: E402
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer  # noqa: E402
from opacus.validators import ModuleValidator  # noqa: E402

# importing opacus sends every library's log to standard error
logging.root.handlers[:] = _HANDLERS


def make_private(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy that `train_privately` accepts, and a line for each layer that was changed in it.

    Batch norm mixes a batch's records and keeps their statistics. Group norm (Wu and He, ECCV 2018) takes its
    place: 32 groups, or fewer so that each has two channels, and one group behind dense layers. Its scales
    and shifts start at 1 and 0. torch's LSTM, GRU and RNN become ones that train record by record, with the
    same values (`recurrent`). The result depends on the model alone, and all parties of a round must make it.
    """
    made = copy.deepcopy(model)
    changes = []
    for name, layer in list(made.named_modules()):
        fresh: nn.Module | None = record_by_record(layer)
        if isinstance(layer, _BatchNorm):
            fresh = _group_norm(layer).train(layer.training)
            fresh.requires_grad_(any(parameter.requires_grad for parameter in layer.parameters()))
        if fresh is None:
            continue
        changes.append(f"{name or 'the model'}: {layer} became {fresh}")
        if name:
            made.set_submodule(name, fresh)
        else:
            made = fresh
    return made, tuple(changes)


def _group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    # Not ModuleValidator.fix of Opacus: it copies through pickle, skips frozen layers, and gives each of up
    # to 32 channels a group of its own. Behind a dense layer such a group normalises every value to 0.
    channels = layer.num_features
    single = isinstance(layer, nn.BatchNorm1d)
    groups = 1 if single else min(gcd(32, channels), max(1, channels // 2))
    return nn.GroupNorm(groups, channels, affine=layer.affine)


def train_privately(
    model: nn.Module, x: NDArray[Any], y: NDArray[Any], config: DPSGD, loss: Loss, source: Source
) -> DpEvent:
    """Train the parameters that require a gradient, in place. Returns `config.event`, whatever the records.

    x: (n, *shape), y as for `train`; n may be 0 or 1. `source` is `Source()`; only tests key it. A record
    counts as zero if it, its loss or its gradient is not finite, or if the model does not know its label. The
    modes of all modules are restored and no hook stays. Weights that a `forward` of your own uses outside of
    their layer are not trained.

    Raises:
        ConfigError: the model is frozen, a layer or a `forward` mixes records (see `make_private`), or a
            layer gives no gradients per record.
        DataError: the arrays do not fit, or the model is no longer finite. The noised steps decide the
            latter, so this refusal costs nothing more.
    """
    device = device_of(model)
    inputs, targets = records(x, y, loss, device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with in_mode(model, training=True):
        _require_private(model, trained)
    values = torch.cat([parameter.detach().reshape(-1) for parameter in trained])
    start = values.clone() if config.proximal else None
    optimizer = optimizer_of(config)
    with (
        in_mode(model, training=True),
        one_thread(),
        records_apart(device),
        views_of(values, trained),
        _summing(model, inputs, targets, config, loss) as clipped_sum,
    ):
        for _ in range(config.steps):
            chosen = poisson(len(inputs), config.sampling_rate, source).to(device)
            drawn = inputs[chosen], targets[chosen]
            noised = clipped_sum(*drawn, _tape(clipped_sum, *drawn, source))
            noise = _noise(len(values), source).to(device)
            noised.add_(noise, alpha=config.noise_multiplier * config.clip_norm)
            # divided by the public number: the number of drawn records is private
            gradient = noised.div_(config.expected_batch).float()
            if config.weight_decay:
                gradient.add_(values, alpha=config.weight_decay)
            if start is not None:
                gradient.add_(values - start, alpha=config.proximal)
            optimizer.step(values, gradient)
    if not bool(torch.isfinite(values).all()):
        raise diverged(config.learning_rate)
    return config.event


@contextmanager
def _summing(model: nn.Module, x: Tensor, y: Tensor, config: DPSGD, loss: Loss) -> Iterator[Sum]:
    """The clipped sums of this model, the way that it goes (`isolation`), once public passes are done.

    x, y: only their shapes, types and device are used.
    """
    if way_of(model).alone:
        free = {name: one for name, one in model.named_parameters() if one.requires_grad}
        rows = lone_rows(config.chunk, sum(one.numel() for one in free.values()))
        yield LoneSum(lone_gradients(model, x, y, loss, rows), free, config.clip_norm, rows)
        return
    trained = [one for one in model.parameters() if one.requires_grad]
    with torch.no_grad():
        require_apart(model, model, x, rows=config.chunk)
    require_slopes_apart(model, x, y, loss, config.chunk)
    length = length_of(model, x, config.chunk)
    with (
        _layers(model) as layers,
        clipped_sums(
            model, layers, trained, config.clip_norm, loss, _gradients, config.chunk, length
        ) as clipped_sum,
    ):
        yield clipped_sum


def _tape(clipped_sum: Sum, x: Tensor, y: Tensor, source: Source) -> Tape | None:
    """What the records of a step draw. Without draws nothing is taken of the source."""
    if not clipped_sum.length:
        return None
    return tape_of(x, y, clipped_sum.length, SecretKey(source.words(4).tobytes()))


def diverged(rate: float) -> DataError:
    """The error of a private training whose model stopped being finite."""
    return Abstains(
        Reason.DIVERGED,
        f"Expected a finite model after private training at learning rate {rate:g}, got one that diverged. "
        "Lower the learning rate, or raise expected_batch.",
    )


def poisson(n: int, rate: float, source: Source) -> Tensor:
    """Which of n records are in a step. Each is with probability floor(q 2^64) / 2^64, independently."""
    # A stream of its own: the noise would otherwise begin at a place of the stream that depends on n.
    words = Source(SecretKey(source.words(4).tobytes())).words(n)
    drawn = words < np.uint64(int(rate * 2**64)) if rate < 1 else np.ones(n, np.bool_)
    return torch.from_numpy(np.flatnonzero(drawn))


def _noise(length: int, source: Source) -> Tensor:
    return torch.from_numpy(source.normal(length))


def optimizer_of(config: DPSGD) -> SGD | Adam:
    match config.optimizer:
        case "sgd":
            return SGD(rate=config.learning_rate, momentum=config.momentum)
        case "adam":
            return Adam(rate=config.learning_rate)


def _require_private(model: nn.Module, trained: list[nn.Parameter]) -> None:
    if not trained:
        raise ConfigError("Expected a parameter to train, got a model that is all frozen. Leave one free.")
    mixing = [f"{name}: {layer}" for name, layer in model.named_modules() if _mixes_records(layer)]
    if mixing:
        raise ConfigError(
            f"Expected layers that keep records apart, got {', '.join(mixing)}. Replace batch norm by "
            "`make_private`, on all sides."
        )
    whole = [f"{name}: {layer}" for name, layer in model.named_modules() if isinstance(layer, nn.RNNBase)]
    if whole:
        raise ConfigError(
            f"Expected layers that torch follows record by record, got {', '.join(whole)}. `make_private` "
            "puts "
            "this package's in its place, with the same values. It has none for a `proj_size`."
        )
    if way_of(model).alone:
        return
    invalid = [
        f"{name}: {layer}"
        for name, layer in model.named_modules()
        if any(p.requires_grad for p in layer.parameters(recurse=False)) and _refused(layer)
    ]
    if invalid:
        raise ConfigError(
            f"Expected layers that record-level privacy can train, got {', '.join(invalid)}. Freeze it, or "
            "use another model."
        )


def _mixes_records(layer: nn.Module) -> bool:
    return isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats)


def _refused(layer: nn.Module) -> bool:
    check = ModuleValidator.VALIDATORS.get(type(layer))
    return bool(next(layer.buffers(), None) is not None or (check is not None and check(layer)))


# Gradients per record, from Opacus --------------------------------------------------------------------


@contextmanager
def _layers(model: nn.Module) -> Iterator[list[nn.Module]]:
    """The outermost layers that hold trained parameters of their own, made ready for `_gradients`."""
    layers = list(_trained_layers(model))
    generic = [layer for layer in layers if not _has_sampler(layer)]
    try:
        for layer in generic:
            prepare_layer(layer)
        yield layers
    finally:
        for layer in generic:
            vars(layer).pop("ft_compute_sample_grad", None)


def _trained_layers(module: nn.Module) -> Iterator[nn.Module]:
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        yield module
        if not _has_sampler(module):
            return  # its own computation is repeated for each record, with its children in it
    for child in module.children():
        yield from _trained_layers(child)


def _has_sampler(layer: nn.Module) -> bool:
    # the sampler of convolutions pads with zeros
    padded = getattr(layer, "padding_mode", "zeros")
    return type(layer) in GradSampleModule.GRAD_SAMPLERS and padded == "zeros"


def _gradients(layer: nn.Module, taken: Tensor, slope: Tensor) -> dict[nn.Parameter, Tensor]:
    """A `Sampler`. Opacus' convolutions read their input by strides, and wrongly unless it is contiguous."""
    if not _has_sampler(layer):
        found: dict[nn.Parameter, Tensor] = ft_compute_per_sample_gradient(layer, [taken], slope)
        return found
    found = GradSampleModule.GRAD_SAMPLERS[type(layer)](layer, [taken.contiguous()], slope)
    return found
