"""FedLog's exact head against 2,000 steps of Adam, in one run.

    python benchmarks/fedlog_head.py

Prints the median milliseconds of the exact solver, the largest entry of its gradient over N, the same of
Adam, and how many times faster the exact one is.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np
import torch

from securefl.protocols.fedlog.head import gradient, solve

SIZES = ((10, 51), (10, 85), (62, 513))


def statistic(classes: int, features: int, rng: np.random.Generator) -> np.ndarray:
    labels = rng.integers(classes, size=5000)
    drawn = np.tanh(rng.normal(size=(5000, features - 1)) + labels[:, None] / classes)
    phi = np.hstack([np.ones((5000, 1)), drawn])
    total = np.zeros((classes, features))
    np.add.at(total, labels, phi)
    return total


def adam(t: np.ndarray, steps: int = 2000) -> np.ndarray:
    n = 1 + t[:, 0].sum()
    target, eta = torch.from_numpy(t), torch.zeros(t.shape, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.Adam([eta], lr=0.02)
    for _ in range(steps):
        descent.zero_grad()
        loss = -(eta * target).sum() / n + torch.logsumexp(eta.square().sum(1) / 4, 0)
        loss.backward()
        descent.step()
    return eta.detach().numpy()


def timed(work: object, *arguments: object) -> tuple[float, np.ndarray]:
    began = perf_counter()
    found = work(*arguments)  # type: ignore[operator]
    return perf_counter() - began, found


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    print("classes features   exact ms  gradient/N    Adam ms  gradient/N   times faster")
    for classes, features in SIZES:
        t = statistic(classes, features, rng)
        n = 1 + t[:, 0].sum()
        slow, rough = timed(adam, t)
        runs = [timed(solve, t) for _ in range(20)]
        fast, exact = median(r[0] for r in runs), runs[-1][1]
        steep = [np.abs(gradient(eta, t)).max() / n for eta in (exact, rough)]
        print(
            f"{classes:>7}{features:>9}{1e3 * fast:>11.2f}{steep[0]:>12.1e}"
            f"{1e3 * slow:>11.0f}{steep[1]:>12.1e}{slow / fast:>15.0f}"
        )


if __name__ == "__main__":
    main()
