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
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final

import torch
from dp_accounting import DpEvent
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.training.clipped import Outer, Whole
from securefl.training.devices import device_of, in_mode, norms, one_thread, records_apart
from securefl.training.draws import Drawing, RecordRandomness, TapeReader, tape_of
from securefl.training.isolation import (
    length_of,
    lone_gradients,
    require_apart,
    require_slopes_apart,
)
from securefl.training.losses import TrainingLoss, has_code, losses_of, records
from securefl.training.per_record import ClippedSum, Gradients, Part
from securefl.training.private_steps import DPSGD, Records, diverged, lone_rows, private_steps
from securefl.training.products import RowsAlike
from securefl.training.row_wise import outside
from securefl.training.vector import views_of

_HANDLERS: Final = list(logging.root.handlers)
from opacus.grad_sample import GradSampleModule  # noqa: E402
from opacus.validators import ModuleValidator  # noqa: E402

# Importing opacus sends the log of every library to standard error. Restoring the handlers undoes that.
logging.root.handlers[:] = _HANDLERS


def train_privately(
    model: nn.Module, x: NDArray[Any], y: NDArray[Any], config: DPSGD, loss: TrainingLoss, source: Source
) -> DpEvent:
    """Train the model by DP-SGD, in place. The returned event does not depend on the records.

    Parameters that require a gradient are trained. A record counts as zero if it, its loss or its gradient is
    not finite, or if the model has no output for its label. The modes of all modules are restored and no hook
    stays.

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
def _summing(
    model: nn.Module, x: Tensor, y: Tensor, config: DPSGD, loss: TrainingLoss
) -> Iterator[ClippedSum]:
    """The function that sums this model's clipped gradients, after the public passes of `isolation`.

    x, y: only their shapes, types and device are used.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    # A loss of own code sees each record alone, as code of a model does.
    if outside(model) is not None or has_code(loss):
        rows = lone_rows(config.chunk, sum(one.numel() for one in trained))
        gradients, length = lone_gradients(model, x, y, loss, rows)
        yield ClippedSum(gradients, trained, config.clip_norm, rows, length)
        return
    with torch.no_grad():
        require_apart(model, "outputs", model, x, rows=config.chunk)
    require_slopes_apart(model, x, y, loss, config.chunk)
    length = length_of(model, x, config.chunk)
    with _by_layers(model, loss) as by_layers:
        yield ClippedSum(by_layers, trained, config.clip_norm, config.chunk, length)


def _tape(clipped_sum: ClippedSum, x: Tensor, y: Tensor, source: Source) -> RecordRandomness | None:
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
    # Opacus refuses torch's attention for its own gradients' sake. `vmap` follows it.
    known = {**ModuleValidator.VALIDATORS, nn.RNN: ModuleValidator.VALIDATORS[nn.LSTM]}
    del known[nn.MultiheadAttention]
    held = norms(model, frozen=True)  # in evaluation mode
    refused = [
        f"{name}: {layer}"
        for name, layer in model.named_modules()
        if name not in held and (validate := known.get(type(layer))) is not None and validate(layer)
    ]
    if refused:
        raise ConfigError(
            f"Expected layers that keep records apart, got {', '.join(refused)}. `make_private` replaces "
            "batch norm, and an LSTM, GRU or RNN without `proj_size`: on the server and on all clients."
        )


# Gradients per record, from Opacus --------------------------------------------------------------------


@contextmanager
def _by_layers(model: nn.Module, loss: TrainingLoss) -> Iterator[Gradients]:
    """A context with the gradients of a model of listed layers. Its hooks are removed at the end.

    Only gradients with respect to the layers' outputs are propagated. With a layer's input they give each
    record's gradient of the layer's parameters. For a dense layer it is an outer product, whose norm needs no
    product (Goodfellow, arXiv 1510.01799), and the clipped sum of such gradients is one matrix product (the
    book-keeping of Bu et al., ICML 2023). A sampler of Opacus computes those of other layers. With its
    sampler for dense layers too, a step takes 1.3 times (LeNet-5) to 8 times (784-200-10) as long, on kernels
    of AVX-512 and AVX2: `python benchmarks/dpsgd.py`, "alone over hooks".
    """
    trained = {
        layer: tuple(layer.parameters(recurse=False))
        for layer in model.modules()
        if any(one.requires_grad for one in layer.parameters(recurse=False))
    }
    uses: list[tuple[nn.Module, Tensor, GradientEdge]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        # The edge is that of the output before a later layer changes it in place.
        uses.append((layer, inputs[0].detach(), get_gradient_edge(output)))

    def gradients(x: Tensor, y: Tensor, tape: RecordRandomness | None) -> tuple[list[Part], Tensor]:
        uses.clear()
        with RowsAlike(), nullcontext() if tape is None else Drawing(TapeReader(tape, len(x))):
            outputs = model(x)
        losses = losses_of(outputs, y, loss)
        slopes = torch.autograd.grad(losses.sum(), [edge for *_, edge in uses])
        dense, whole = list[Part](), dict[nn.Parameter, Tensor]()
        times = Counter(one for layer, *_ in uses for one in trained[layer])
        with torch.no_grad():
            for (layer, taken, _), slope in zip(uses, slopes, strict=True):
                alone = all(times[one] == 1 for one in trained[layer])
                if type(layer) is nn.Linear and taken.ndim == 2 and alone:
                    both = layer.weight, layer.bias
                    free = (one is not None and one.requires_grad for one in both)
                    dense.append((both, Outer.of(taken, slope, *free)))
                    continue
                # Contiguous, since Opacus' convolutions misread a strided input.
                found = GradSampleModule.GRAD_SAMPLERS[type(layer)](layer, [taken.contiguous()], slope)
                if type(layer) is nn.Embedding and layer.padding_idx is not None:
                    found[layer.weight][:, layer.padding_idx] = 0  # as torch's own gradient
                for one, own in found.items():  # gradients of two uses are added before the norm
                    if one.requires_grad:
                        whole[one] = whole[one] + own if one in whole else own
        return [*dense, *(((one,), Whole(own)) for one, own in whole.items())], losses.detach()

    with ExitStack() as hooks:
        for layer in trained:
            hooks.enter_context(layer.register_forward_hook(note))
        yield gradients
