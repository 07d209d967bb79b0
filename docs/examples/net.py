"""A model, a network for features, and records of your own, as the studies in this folder name them."""

from math import prod
from typing import Any

from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    """Two dense layers. `hidden` is an option of [model.options]."""

    def __init__(self, shape: tuple[int, ...], outputs: int, hidden: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(shape[0], hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


def normed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two dense layers with batch norm between them."""
    first, last = nn.Linear(prod(shape), 16), nn.Linear(16, outputs)
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(16), nn.ReLU(), last)


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """The focal loss of each record (Lin et al. 2017, gamma 2): that of a sure record counts little."""
    loss = cross_entropy(outputs, targets, reduction="none")
    return (1 - (-loss).exp()) ** 2 * loss


def features() -> nn.Module:
    """The mean of each square of four pixels: 16 features of a picture of 8 x 8."""
    return nn.Sequential(nn.Unflatten(1, (1, 8)), nn.AvgPool2d(2), nn.Flatten())


def pictures() -> tuple[NDArray[Any], NDArray[Any]]:
    """The digits 0, 1 and 2, pictures of 8 x 8 pixels from 0 to 1."""
    x, y = load_digits(n_class=3, return_X_y=True)
    return x.reshape(-1, 8, 8) / 16, y
