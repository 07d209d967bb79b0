"""The packaged models (MLP, LeNet-5, CNNs, ShuffleNet v2, character LSTM) and the config that builds one.

They are the models of the published systems. Dense layers are named fc1, fc2, ... from the input on, and hold
no activation. A hook on one reads the pre-activation of FedProf's Proposition 1.

`Architecture` is the interface of a model's description, packaged or not. `ModelConfig` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from securefl.core.errors import ConfigError
from securefl.core.ranges import Decay, Range, Ranged
from securefl.core.text_safety import some
from securefl.training.augmentation import Augmentation, Augmented
from securefl.training.devices import CPU, seeded
from securefl.training.exported import MOST_PARAMETERS, fill, weights_of
from securefl.training.heads import TrainedNames, named_layer, train_only
from securefl.training.row_wise import RowHook, of_rows
from securefl.training.vector import local_statistics, running_statistics

_MOST_LAYERS: Final = 100
Buffers = Literal["averaged", "local"]
Origin = Literal["public", "ledger"]
Units = Annotated[int, Range("[1, 10^8]")]
"""Of a hidden layer: MOST_PARAMETERS at most."""
Kind = Literal["mlp", "lenet5", "fedlog_cnn", "fedcor_cnn", "adds_cnn", "shufflenet_v2", "char_lstm"]


@of_rows
class MLP(nn.Module):
    """Dense layers with ReLU between: (n, ...) with `inputs` numbers a record -> (n, outputs).

    FedProf's GasTurbine model is 9-64-32-2, FedCor's for FMNIST 784-64-30-10.
    """

    def __init__(self, inputs: int, outputs: int, hidden: tuple[int, ...] = (64, 32)) -> None:
        super().__init__()
        _add_dense(self, inputs, *hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return _dense(self, x)


def _add_dense(model: nn.Module, *widths: int) -> None:
    """Add dense layers of these widths, from the input on."""
    # Modules by name and not in a list, since hooks and configurations name layers such as "fc1".
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        model.add_module(f"fc{number}", nn.Linear(inputs, outputs))


def _dense(model: nn.Module, x: Tensor) -> Tensor:
    """The outputs (n, outputs) of the model's dense layers, with ReLU between, from values (n, ...).

    A dropout of the model is behind each ReLU.
    """
    *hidden, last = (layer for layer in model.children() if isinstance(layer, nn.Linear))
    dropout = next((layer for layer in model.children() if isinstance(layer, nn.Dropout)), None)
    x = x.flatten(1)
    for layer in hidden:
        x = torch.relu(layer(x))
        if dropout is not None:
            x = dropout(x)
    found: Tensor = last(x)
    return found


def _require_known(size: int, name: str) -> None:
    if size not in (28, 32):
        raise ConfigError(
            f"Expected images of 28x28 or 32x32 pixels for {name}, got {size}x{size}. Resize them."
        )


def _pooled(convolution: nn.Module, x: Tensor) -> Tensor:
    # ReLU commutes with max pooling and is cheaper after it.
    return torch.relu(max_pool2d(convolution(x), 2))


@of_rows
class LeNet5(nn.Module):
    """LeNet-5, 6-16-120-84: (n, channels, size, size) -> (n, outputs). size is 28 (padded by 2) or 32."""

    def __init__(self, channels: int, size: int, outputs: int) -> None:
        super().__init__()
        _require_known(size, "LeNet-5")
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2 if size == 28 else 0)
        self.conv2 = nn.Conv2d(6, 16, 5)
        _add_dense(self, 400, 120, 84, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return _dense(self, _pooled(self.conv2, _pooled(self.conv1, _channels_last(x))))


@of_rows
class FedLogCNN(nn.Module):
    """FedLog's CNNs (table A.1): two convolutions with pooling, then dense layers, with ReLU between all.

    (n, channels, size, size) -> (n, outputs). Size 28 has convolutions 10-20 and by default one hidden layer
    of 50. Size 32 has convolutions 6-16 and by default hidden layers (120, 100).
    """

    def __init__(self, channels: int, size: int, outputs: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        _require_known(size, "FedLog's CNN")
        first, second = (10, 20) if size == 28 else (6, 16)
        self.conv1 = nn.Conv2d(channels, first, 5)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.dense = MLP(second * (4 if size == 28 else 5) ** 2, outputs, hidden)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.dense(_pooled(self.conv2, _pooled(self.conv1, _channels_last(x))))
        return logits


@of_rows
class FedCorCNN(nn.Module):
    """FedCor's CIFAR-10 model: unpadded 3x3 convolutions 32-64-64, pooling after two, then 1024-64-10.

    (n, channels, size, size) -> (n, outputs), size at least 18.
    """

    def __init__(self, channels: int, size: int, outputs: int) -> None:
        side = ((size - 2) // 2 - 2) // 2 - 2
        if side < 1:
            raise ConfigError(
                f"Expected images of at least 18x18 pixels for the FedCor CNN, got {size}x{size}. Resize "
                "them."
            )
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.conv3 = nn.Conv2d(64, 64, 3)
        _add_dense(self, 64 * side * side, 64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = _pooled(self.conv2, _pooled(self.conv1, _channels_last(x)))
        return _dense(self, torch.relu(self.conv3(x)))


@of_rows
class AddsCNN(nn.Module):
    """ADDS's FEMNIST supernet (table II): convolutions 64-128-256, dense 4096-1024-1024-62.

    (n, channels, size, size) -> (n, outputs). `width` scales every hidden layer. The order is ReLU,
    convolution without bias, batch norm, pooling, as in the paper (section 4.1.3). The ReLU before the first
    convolution is left out, since pixels are not negative. The last pooling rounds up.
    """

    def __init__(self, channels: int, size: int, outputs: int, width: float = 1.0) -> None:
        super().__init__()
        first, second, third, dense = (max(1, round(width * units)) for units in (64, 128, 256, 1024))
        side = -(-(size // 4) // 2)
        if side < 1:
            raise ConfigError(
                f"Expected images of at least 4x4 pixels for the ADDS CNN, got {size}x{size}. Resize them."
            )
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(first)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(second)
        self.conv3 = nn.Conv2d(second, third, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(third)
        _add_dense(self, third * side * side, dense, dense, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(self.norm1(self.conv1(_channels_last(x))), 2)
        x = max_pool2d(self.norm2(self.conv2(torch.relu(x))), 2)
        return _dense(self, max_pool2d(self.norm3(self.conv3(torch.relu(x))), 2, ceil_mode=True))


CHANNELS = {0.25: (24, 48, 96), 0.5: (48, 96, 192), 1.0: (116, 232, 464)}
"""Channels of the three stages by width: 0.5 and 1.0 as published, 0.25 is half of 0.5."""

_STEM, _LAST = 24, 1024
_REPEATS = (4, 8, 4)


@of_rows
class ShuffleNetV2(nn.Module):
    """ShuffleNet v2 for small images (Ma et al., "ShuffleNet V2", ECCV 2018, figure 3c-d and table 5).

    (n, channels, height, width) -> (n, outputs). The last convolution `conv5` has 1024 channels. The stem is
    the usual one on CIFAR: a 3x3 convolution of stride 1 without pooling, instead of ImageNet's stride 2 with
    pooling. Nothing else differs, so the parameter counts are the paper's.

    width: a key of CHANNELS.
    """

    def __init__(self, channels: int, outputs: int, width: float = 0.5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, _STEM, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(_STEM)
        first, second, third = CHANNELS[width]
        self.stage2 = _stage(_STEM, first, _REPEATS[0])
        self.stage3 = _stage(first, second, _REPEATS[1])
        self.stage4 = _stage(second, third, _REPEATS[2])
        self.conv5 = nn.Conv2d(third, _LAST, 1, bias=False)
        self.norm5 = nn.BatchNorm2d(_LAST)
        self.fc = nn.Linear(_LAST, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = self.stage4(self.stage3(self.stage2(x)))
        x = torch.relu(self.norm5(self.conv5(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


@of_rows
class Unit(nn.Module):
    """One block. With stride 1, half of the channels skip it. With stride 2, both branches read all."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.branch = nn.Sequential(
            *_pointwise(inputs if stride > 1 else half, half),
            *_depthwise(half, stride),
            *_pointwise(half, half),
        )
        self.shortcut = (
            nn.Sequential(*_depthwise(inputs, stride), *_pointwise(inputs, half)) if stride > 1 else None
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.shortcut is None:
            passed, seen = x.chunk(2, dim=1)
            joined = torch.cat((passed, self.branch(seen)), dim=1)
        else:
            joined = torch.cat((self.shortcut(x), self.branch(x)), dim=1)
        return shuffle(joined)


def shuffle(x: Tensor) -> Tensor:
    """Interleave the two halves of the channels: channels 0, c/2, 1, c/2 + 1, ..."""
    # The next unit splits the channels in the middle again. Without the shuffle the halves would never mix.
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def _stage(inputs: int, outputs: int, repeats: int) -> nn.Sequential:
    return nn.Sequential(Unit(inputs, outputs, 2), *(Unit(outputs, outputs, 1) for _ in range(repeats - 1)))


def _pointwise(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


def _depthwise(channels: int, stride: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)
    return conv, nn.BatchNorm2d(channels)


EMBEDDING = 32


@of_rows
class CharLSTM(nn.Module):
    """ADDS's Shakespeare model (section 4.1.3), on characters: (n, length) int64 -> (n, characters).

    An embedding of 32, two bidirectional LSTM layers of 256 units each way, scaled by `width`, and two dense
    layers after the last position. The paper has one dense layer. ADDS samples units of the hidden dense
    layer here, since it does not sample recurrent layers. A code outside the vocabulary raises IndexError.
    """

    def __init__(self, characters: int, width: float = 1.0) -> None:
        super().__init__()
        units = max(1, round(256 * width))
        self.embedding = nn.Embedding(characters, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, units, num_layers=2, batch_first=True, bidirectional=True)
        _add_dense(self, 2 * units, units, characters)

    def forward(self, x: Tensor) -> Tensor:
        places, _ = self.lstm(self.embedding(x))
        # The state of each direction after its last character.
        forth, back = places.chunk(2, dim=-1)
        return _dense(self, torch.cat([forth[:, -1], back[:, 0]], dim=1))


def _channels_last(x: Tensor) -> Tensor:
    """The images in channels-last memory, with which convolutions train 1.3 to 1.5 times faster on a core."""
    return x.to(memory_format=torch.channels_last)


_SHARE: Final = Range("(0, 1]")
_WIDTHS: Final[Mapping[str, Any]] = {
    "adds_cnn": _SHARE,
    "char_lstm": _SHARE,
    "shufflenet_v2": tuple(CHANNELS),
}


class Choices(Protocol):
    """What a person chooses of a model's values, as `ModelConfig` says."""

    @property
    def train(self) -> TrainedNames: ...

    @property
    def buffers(self) -> Buffers: ...

    @property
    def weights(self) -> str | None: ...


def with_choices(model: nn.Module, choices: Choices) -> nn.Module:
    """The model with these choices, in place. Raises the errors of `weights_of`, `fill` and `train_only`.

    The file of the weights may lack running statistics, as an export of private training does.
    """
    train_only(model, choices.train)  # first: the statistics of a frozen norm stay in the state dict
    if (path := choices.weights) is not None:
        tensors = weights_of(Path(path)).tensors
        if gone := sorted(running_statistics(model, frozen=True).keys() - tensors.keys()):
            raise ConfigError(
                "[model] Expected a file of `weights` with the statistics of the batch norm that stays "
                f"frozen, got {path} without {some(gone, 3)}. If it is a private export, leave `train` out "
                "under [dpsgd]: what is trained there becomes group norm, which has none. If its clients "
                "kept them, export one client's, by --client."
            )
        fill(model, tensors, Path(path), whole=True, but=running_statistics(model))
    return local_statistics(model) if choices.buffers == "local" else model


class Architecture(Protocol):
    """The description of a model. It builds the model any number of times with the same values.

    hidden: units of the hidden layers, if the model is a plain stack of dense layers and they are known.
    reads_text: whether a record is a row of int64 codes. draws: whether training draws from torch's
    generator, as dropout does. layer: the name of the profiled layer.
    """

    @property
    def hidden(self) -> tuple[int, ...] | None: ...

    @property
    def reads_text(self) -> bool: ...

    @property
    def draws(self) -> bool:
        return False

    @property
    def layer(self) -> str: ...

    def blank(self, shape: tuple[int, ...]) -> Tensor:
        """Return one record of zeros.

        Args:
            shape: of a record.

        Returns:
            (1, *shape), int64 if the model reads text, and else float32.
        """
        return torch.zeros((1, *shape), dtype=torch.int64 if self.reads_text else torch.float32)

    def shorter(self) -> Architecture:
        """The model without its first hidden dense layer. Raises ConfigError if it has fewer than two."""
        ...

    def build(self, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
        """Build the model for records of `shape`. Its values depend on `seed` alone."""
        ...


@dataclass(frozen=True)
class Changed(Architecture):
    """The description of a model that `change` makes of another."""

    of: Architecture
    change: Callable[[nn.Module], nn.Module]

    hidden = None

    @property
    def reads_text(self) -> bool:
        return self.of.reads_text

    @property
    def draws(self) -> bool:
        return self.of.draws

    @property
    def layer(self) -> str:
        return self.of.layer

    def shorter(self) -> Architecture:
        return replace(self, of=self.of.shorter())

    def build(self, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
        return self.change(self.of.build(shape, outputs, seed))


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Ranged, Architecture):
    """The choice of a packaged model and of its profiled layer.

    >>> from securefl.training import ModelConfig
    >>> config = ModelConfig(kind="mlp", hidden=(64, 32))
    >>> config.build((1, 28, 28), 10, seed=0).fc1, config.parameters((1, 28, 28), 10)
    (Linear(in_features=784, out_features=64, bias=True), 52650)

    Args:
        kind: The name of the model.
        hidden: Units of the hidden dense layers, for mlp (default (64, 32)) and fedlog_cnn (the default
            depends on the images). Other kinds do not have it.
        width: Scale of the hidden layers, for adds_cnn and char_lstm (in (0, 1], default 1) and shufflenet_v2
            (0.25, 0.5 or 1, default 0.5). Other kinds do not have it.
        dropout: The probability with which training sets an output of a hidden dense layer to 0, in [0, 1);
            the others are divided by 1 - dropout. Tests have none. FedCor's MLP has 0.5. shufflenet_v2 has no
            such layer. Clients with dropout are not trained side by side.
        augment: What training does to images. "crops": each pass sees an image at another place, up to four
            pixels away. "crops-flips": and every second one mirrored (FedLog's appendix, on CIFAR). Tests and
            statistics see images as they are. Clients that augment are not trained side by side.
        profiled_layer: Name of a layer. The default is the first dense layer ("fc1", in fedlog_cnn
            "dense.fc1"), and for ShuffleNet v2 the last convolution, "conv5" (FedProf, section 3.1).
        train: The layers or parameters that are trained, by name, or "head", the last dense layer. All others
            are frozen. None trains all.
        weights: The path of a safetensors file, such as an exported model, with all initial values.
        trained_on: What a study says of the records behind `weights`: "public", or "ledger", which are the
            clients' own, charged in the shared ledger that [privacy] names.
        buffers: What becomes of the running statistics of batch norm. "averaged": they are summed beside the
            weights, and no server optimiser moves them. "local": each client keeps its own (FedBN).

    Raises:
        ValueError: A setting does not fit the kind or is out of range.
    """

    kind: Kind
    hidden: tuple[Units, ...] | None = None
    width: float | None = None
    dropout: Decay = 0.0
    augment: Augmentation | None = None
    profiled_layer: str | None = None
    train: TrainedNames = None
    buffers: Buffers = "averaged"
    weights: str | None = None
    trained_on: Origin | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden is not None and self.kind not in ("mlp", "fedlog_cnn"):
            raise ValueError(
                f"Expected `hidden` only with kind 'mlp' or 'fedlog_cnn', got it with {self.kind!r}. Leave "
                "it out."
            )
        if len(self.hidden or ()) > _MOST_LAYERS:
            raise ValueError(f"Expected at most {_MOST_LAYERS} hidden layers, got {len(self.hidden or ())}.")
        if self.dropout and (self.kind == "shufflenet_v2" or self.hidden == ()):
            raise ValueError(
                f"Expected a model with hidden dense layers for dropout = {self.dropout}, got kind "
                f"{self.kind!r}{' with hidden = []' if self.hidden == () else ''}. Leave `dropout` out."
            )
        if self.augment and self.kind == "char_lstm":
            raise ValueError("Expected `augment` with a model of images, got kind 'char_lstm'. Leave it out.")
        if self.width is None:
            return
        if self.kind not in _WIDTHS:
            raise ValueError(
                "Expected `width` only with kind 'adds_cnn', 'char_lstm' or 'shufflenet_v2', got it with "
                f"{self.kind!r}. Leave it out."
            )
        if self.width not in (allowed := _WIDTHS[self.kind]):
            raise ValueError(f"Expected width in {allowed} for kind {self.kind!r}, got {self.width}.")

    @property
    def reads_text(self) -> bool:
        """Whether a record is a row of int64 codes and not of real numbers."""
        return self.kind == "char_lstm"

    @property
    def draws(self) -> bool:
        return self.dropout > 0 or self.augment is not None

    @property
    def layer(self) -> str:
        """Name of the profiled layer."""
        default = {"shufflenet_v2": "conv5", "fedlog_cnn": "dense.fc1"}.get(self.kind, "fc1")
        return self.profiled_layer or default

    def shorter(self) -> ModelConfig:
        """The same model without its first hidden dense layer.

        Raises ConfigError if it has fewer than two.
        """
        if self.hidden is None or len(self.hidden) < 2:
            raise ConfigError(
                "Expected `hidden` with at least two layers under [model], since shorter bodies leave out "
                f"the first; got kind {self.kind!r} with hidden = {self.hidden}."
            )
        return replace(self, hidden=self.hidden[1:])

    def build(self, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
        """Build the model for records of `shape`. Its values depend on `seed` (0 <= seed < 2^64) alone.

        torch's global generator does not change. Raises ConfigError if the kind cannot take that shape, the
        model would be too large, or the profiled layer does not exist.
        """
        if not 1 <= outputs <= MOST_PARAMETERS or self.parameters(shape, outputs) > MOST_PARAMETERS:
            raise ConfigError(
                f"Expected a model of at most {MOST_PARAMETERS:,} parameters, with at least one output, got "
                f"kind {self.kind!r} with hidden = {self.hidden} and {outputs} outputs."
            )
        with seeded(seed, CPU):  # layers draw from torch's generator of the CPU
            model = self._made(shape, outputs)
        if self.dropout:
            dense = model.dense if isinstance(model, FedLogCNN) else model
            dense.add_module("dropout", nn.Dropout(self.dropout))
        if self.augment:
            if len(shape) != 3:
                raise ConfigError(
                    "Expected images (channels, height, width) for `augment` under [model], got records of "
                    f"shape {shape}. Leave it out."
                )
            model.add_module("augmentation", Augmented(flips=self.augment == "crops-flips"))
            model.register_forward_pre_hook(RowHook(_augmented))
        named_layer(model, self.layer)
        return with_choices(model, self)

    def parameters(self, shape: tuple[int, ...], outputs: int) -> int:
        """The number of the model's parameters."""
        return _count(self, shape, outputs)

    def _made(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        if self.kind == "mlp":
            return MLP(prod(shape), outputs, (64, 32) if self.hidden is None else self.hidden)
        if self.kind == "char_lstm":
            if len(shape) != 1:
                raise ConfigError(f"Expected rows of characters for kind 'char_lstm', got shape {shape}.")
            return CharLSTM(outputs, self.width or 1.0)
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ConfigError(
                f"Expected square images of shape (channels, size, size) for model kind {self.kind!r}, got "
                f"records of shape {shape}. Use kind 'mlp' or other data."
            )
        channels, size, _ = shape
        match self.kind:
            case "lenet5":
                return LeNet5(channels, size, outputs)
            case "fedlog_cnn":
                hidden = ((50,) if size == 28 else (120, 100)) if self.hidden is None else self.hidden
                return FedLogCNN(channels, size, outputs, hidden)
            case "fedcor_cnn":
                return FedCorCNN(channels, size, outputs)
            case "adds_cnn":
                return AddsCNN(channels, size, outputs, self.width or 1.0)
            case "shufflenet_v2":
                return ShuffleNetV2(channels, outputs, self.width or 0.5)


def _augmented(model: nn.Module, given: tuple[Any, ...]) -> Any:
    return model.get_submodule("augmentation")(*given)


@lru_cache(maxsize=256)  # a study builds the same few models again and again, each a few times for its size
def _count(config: ModelConfig, shape: tuple[int, ...], outputs: int) -> int:
    # On the device "meta" tensors have shapes and no memory, so the size is known before it is allocated.
    with torch.device("meta"):
        return sum(entry.numel() for entry in config._made(shape, outputs).parameters())
