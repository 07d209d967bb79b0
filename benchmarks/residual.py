"""FedProf's Figure 2b: are the fused outputs of a convolution and of a residual block normal?

    SECUREFL_DATA=... python benchmarks/residual.py [--write]

Fused is the mean of a channel over its map. The paper trains ResNet-18 on CIFAR-100 for 100 epochs; here a
residual network of three blocks trains on 3,000 images of CIFAR-10 for 4 epochs, in one place. Outputs are
those before the activation, on 2,000 test images. `--write` keeps table and figure.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from kept import ASKED, DOCS, keep
from representations import ELEMENTS, histograms, normality, summary
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from securefl.core.streams import stream
from securefl.data.sources import load
from securefl.report.tables import write_png
from securefl.training import single_thread

IMAGES, EPOCHS, BATCH, TESTED = 3000, 4, 50, 2000


class Block(nn.Module):
    """Two convolutions beside a shortcut. `summed` is their sum before the activation."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))
        self.short = nn.Conv2d(before, channels, 1, stride, bias=False)
        self.summed = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = relu(self.norms[0](self.first(x)))
        return relu(self.summed(self.norms[1](self.second(inner)) + self.norms[2](self.short(x))))


def network() -> nn.Sequential:
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(), *blocks, *head)


def trained(x: Tensor, y: Tensor) -> nn.Sequential:
    model = network()
    optimizer, rng = torch.optim.Adam(model.parameters(), lr=2e-3), stream(1, "residual")
    for _ in range(EPOCHS):
        order = torch.from_numpy(rng.permutation(len(x)))
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model.eval()


def fused(model: nn.Sequential, x: Tensor) -> tuple[dict[str, np.ndarray], Tensor]:
    """The mean of each channel over its map, (n, channels), of two places, and the scores of the classes."""
    found: dict[str, list[np.ndarray]] = {"convolution": [], "residual block": []}
    places = zip(found.values(), (model[0], model[5].summed), strict=True)
    hooks = [
        place.register_forward_hook(lambda _m, _i, out, rows=rows: rows.append(out.mean((2, 3)).numpy()))
        for rows, place in places
    ]
    with torch.no_grad():
        scores = torch.cat([model(part) for part in x.split(BATCH)])
    for hook in hooks:
        hook.remove()
    return {name: np.concatenate(rows) for name, rows in found.items()}, scores


def main() -> None:
    single_thread()
    torch.manual_seed(1)
    data = load("cifar10", seed=1)
    sides = ((data.train, IMAGES), (data.test, TESTED))
    (x, y), (test_x, test_y) = (
        (torch.from_numpy(np.asarray(s.x[:n], np.float32)), torch.from_numpy(np.asarray(s.y[:n])))
        for s, n in sides
    )
    outputs, scores = fused(trained(x, y), test_x)
    print(f"accuracy {float((scores.argmax(1) == test_y).float().mean()):.3f}")
    table = pd.DataFrame([{"place": name, **summary(normality(own))} for name, own in outputs.items()])
    print(table.to_string(index=False))
    keep("residual", table)
    if ASKED:
        drawn = sorted(stream(1, "elements").choice(16, ELEMENTS, False).tolist())
        write_png(DOCS / "residual.png", histograms(outputs, drawn, "channel"))


if __name__ == "__main__":
    main()
