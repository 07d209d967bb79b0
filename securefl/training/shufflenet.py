"""ShuffleNet v2 for small images (Ma et al., "ShuffleNet V2", ECCV 2018, figure 3c-d and table 5).

The stem is the usual one on CIFAR: a 3x3 convolution of stride 1 without pooling, in place of ImageNet's
stride 2 with pooling. Nothing else differs, so the parameter counts are the paper's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefl.training.row_wise import of_rows

CHANNELS = {0.25: (24, 48, 96), 0.5: (48, 96, 192), 1.0: (116, 232, 464)}
"""Channels of the three stages by width: 0.5 and 1.0 as published, 0.25 is half of 0.5."""

_STEM, _LAST = 24, 1024
_REPEATS = (4, 8, 4)


@of_rows
class ShuffleNetV2(nn.Module):
    """(n, channels, height, width) -> (n, outputs); the last convolution `conv5` has 1024 channels.

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
    """One block. With stride 1 half of the channels pass by; with stride 2 both branches see all of them."""

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
    # the next unit splits the channels in the middle again: without it the halves would never meet
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def _stage(inputs: int, outputs: int, repeats: int) -> nn.Sequential:
    return nn.Sequential(Unit(inputs, outputs, 2), *(Unit(outputs, outputs, 1) for _ in range(repeats - 1)))


def _pointwise(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


def _depthwise(channels: int, stride: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)
    return conv, nn.BatchNorm2d(channels)
