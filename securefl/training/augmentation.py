"""Random crops and flips of images in training: each pass of a record sees the image at another place.

FedLog trains so ("randomly cropped and flipped", appendix). The layer stands before a packaged model, and is
the identity in evaluation mode. A record's place depends on its own draws alone, which come from the client's
stream, in private training from the secret source: as those of dropout.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

Augmentation = Literal["crops", "crops-flips"]
_BORDER: Final = 4
"""Pixels around an image, the usual number on CIFAR."""


class Augmented(nn.Module):
    """(n, channels, height, width) -> the same shape: a crop of each image, which zeros surround.

    flips: whether every second crop, at random, is mirrored left to right.
    """

    def __init__(self, flips: bool) -> None:
        super().__init__()
        self.flips = flips

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        records, channels, height, width = x.shape
        draws = torch.rand((records, 3), device=x.device)
        top, left = ((2 * _BORDER + 1) * draws[:, :2]).long().unsqueeze(2).unbind(1)
        rows, columns = (torch.arange(size, device=x.device) for size in (height, width))
        if self.flips:
            columns = torch.where(draws[:, 2:] < 0.5, columns.flip(0), columns)
        here = torch.arange(records, device=x.device)[:, None, None, None]
        every = torch.arange(channels, device=x.device)[:, None, None]
        around = pad(x, (_BORDER,) * 4)
        return around[here, every, (top + rows)[:, None, :, None], (left + columns)[:, None, None, :]]
