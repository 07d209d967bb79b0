"""The closed list of row-wise layers: layers of torch that compute each row of a batch on its own.

A model of these layers alone keeps records apart by construction. A layer counts by its exact type, since a
subclass may compute anything. Hooks, parametrizations and replaced forwards may too, so a layer with one of
them is not listed.

| layers | condition |
|---|---|
| `Sequential`, and this package's own models (`of_rows`) | all of their layers are listed |
| `Linear`, `Embedding` | no `max_norm` and no `scale_grad_by_freq`: both read a batch as a whole |
| convolutions, pooling, padding, `PixelShuffle`, `Upsample`, norms | none |
| `InstanceNorm` | no running statistics |
| `BatchNorm` | only in evaluation mode, with running statistics |
| `LSTM`, `GRU`, `RNN` | only in evaluation mode, `batch_first` |
| layers without a sampler of Opacus, such as `PReLU` | only in evaluation mode, or frozen |
| activations of single values, `Identity`, dropout, crops | none. Draws come from the secret source |
| `Flatten`, `Unflatten`, `Softmax`, `LogSoftmax`, `Softmin`, `GLU` | a dimension is set |

A layer may take rows for another dimension all the same, as `Softmax(0)` does. Then a batch is not computed
as its records one by one, and `isolation` refuses the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.nn.modules.dropout import _DropoutNd

from securefl.training.augmentation import Augmented

Kind = TypeVar("Kind", bound=type[nn.Module])

_MODELS: Final[set[type[nn.Module]]] = set()
_SEALED: Final[set[type[nn.Module]]] = set()


def of_rows(kind: Kind) -> Kind:
    """Declare that a model of this package computes each row by the same function and by itself."""
    _MODELS.add(kind)
    return kind


def sealed(kind: Kind) -> Kind:
    """Declare that a model computes each row by itself in evaluation mode.

    This is for a model with layers of another package, which a person has reviewed.
    """
    _SEALED.add(kind)
    return kind


@dataclass(frozen=True, eq=False)
class RowHook:
    """A hook of this package that reads or changes each row on its own."""

    call: Callable[..., Any]

    def __call__(self, *given: Any) -> Any:
        return self.call(*given)


_OF_DIMENSIONS: Final = (
    "AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "CircularPad", "ConstantPad", "Conv", "ConvTranspose",
    "Dropout", "InstanceNorm", "LPPool", "MaxPool", "ReflectionPad", "ReplicationPad", "ZeroPad",
)  # fmt: skip
"""Kinds of layers that torch has for one, two and three dimensions: `nn.Conv1d`, `nn.Conv2d`, `nn.Conv3d`."""

_LISTED: Final = frozenset(
    {
        nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity,
        nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus,
        nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold, nn.PReLU,
        nn.AlphaDropout, nn.Dropout, nn.FeatureAlphaDropout, Augmented,
        nn.Embedding, nn.Linear, nn.GroupNorm, nn.LocalResponseNorm, nn.LayerNorm, nn.RMSNorm,
        nn.Flatten, nn.Unflatten, nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU, nn.Softmax2d,
        nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.Upsample,
        *(getattr(nn, f"{kind}{dimensions}d") for kind in _OF_DIMENSIONS for dimensions in (1, 2, 3)),
    }
)  # fmt: skip
"""Layers that compute each row of an input with rows on its own, or by a draw for each value."""

_READ_ALONE: Final = frozenset(
    {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LSTM, nn.GRU, nn.RNN},
)
"""Layers that keep rows apart in evaluation mode."""

_SAMPLED: Final = frozenset(
    {
        nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.GroupNorm, nn.LayerNorm,
        nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
    }
)  # fmt: skip
"""Layers for which Opacus has a sampler: it computes each row's gradient of their parameters."""


def outside(model: nn.Module) -> str | None:
    """A text that names the model's first layer that is not listed, with the reason. None if all are listed.

    The mode of every layer counts: batch norm in training mode is not listed. `isolation` tests that the
    layers' inputs have rows.
    """
    if any(
        getattr(torch_modules, f"_global_{kind}_hooks")
        for kind in ("forward", "forward_pre", "backward", "backward_pre")
    ):
        return "hooks are registered for all modules of the process"
    return next(_outside(model, ""), None)


def _outside(layer: nn.Module, name: str) -> Iterator[str]:
    place = f"layer {name!r} ({type(layer).__name__})" if name else f"the model ({type(layer).__name__})"
    if (reason := _altered(layer)) is not None:
        yield f"{place} {reason}"
        return
    if type(layer) in _SEALED and not layer.training:
        return
    if type(layer) is nn.Sequential or type(layer) in _MODELS:
        for key, child in layer.named_children():
            yield from _outside(child, f"{name}.{key}" if name else key)
        return
    if (reason := _refused(layer)) is not None:
        yield f"{place} {reason}"


def _altered(layer: nn.Module) -> str | None:
    """The reason why this layer may compute something else than its type does, or None."""
    hooks = [layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks]
    if any(type(hook) is not RowHook for kept in hooks for hook in kept.values()):
        return "has a hook"
    if {"forward", "__call__", "_call_impl"} & vars(layer).keys():
        return "has a replaced forward"
    for key, entry in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
        if type(entry) not in (nn.Parameter, Tensor):
            return f"holds {key!r} of type {type(entry).__name__}"
        if entry._backward_hooks or getattr(entry, "_post_accumulate_grad_hooks", None):
            return f"has a hook on {key!r}"
    return None


def _refused(layer: nn.Module) -> str | None:
    """The reason why a layer without child layers is not listed, for any inputs. None if it is listed."""
    kind = type(layer)
    if kind in _READ_ALONE:
        if layer.training:
            return "mixes rows in training, or has no gradients row by row"
        if kind in (nn.LSTM, nn.GRU, nn.RNN) and not layer.batch_first:
            return "takes rows for places, since batch_first is not set"
        return None if getattr(layer, "track_running_stats", True) else "has no running statistics"
    if kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d) and layer.track_running_stats:
        return "keeps statistics of all rows"
    if kind is nn.Embedding and (layer.max_norm is not None or layer.scale_grad_by_freq):
        return "reads the codes of a batch as a whole (max_norm, scale_grad_by_freq)"
    if kind in (nn.Softmax, nn.LogSoftmax, nn.Softmin) and layer.dim is None:
        return "has no dimension set, and may work along the rows"
    trained = layer.training and any(one.requires_grad for one in layer.parameters(recurse=False))
    # Opacus' sampler of convolutions pads with zeros alone.
    if trained and (kind not in _SAMPLED or getattr(layer, "padding_mode", "zeros") != "zeros"):
        return "has no gradients row by row"
    return None if kind in _LISTED else "is not on the list of row-wise layers"


def drawing(model: nn.Module) -> list[nn.Module]:
    """The layers of dropout or `Augmented` that draw in their present mode."""
    return [layer for layer in model.modules() if layer.training and _draws(layer)]


def _draws(layer: nn.Module) -> bool:
    return isinstance(layer, Augmented) or (isinstance(layer, _DropoutNd) and layer.p > 0)
