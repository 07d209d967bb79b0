"""Privacy audit of DP-SGD with canaries: a lower bound of epsilon by membership inference.

Canaries are records with orthogonal gradients: one in each coordinate of a linear layer, always longer than
the clipping norm. Half of them are in the data. The adversary sees every noised step. In each coordinate a
step is a Gaussian, moved by C if the step drew the canary. The log likelihood ratio, summed over the steps,
is the best test between in and out (Neyman and Pearson). Coordinates and runs are independent, so one run
gives thousands of trials (Nasr et al., USENIX Security 2023, with all canaries at once).

Thresholds are chosen on one half of the trials. Their error rates are bounded on the other half (Clopper and
Pearson). An (epsilon, delta) mechanism satisfies 1 - miss <= e^epsilon false alarm + delta, and the same with
the two errors swapped (Kairouz et al., ICML 2015).

At delta 1e-5 a bound needs millions of trials. So the claim is tested at larger deltas of the same privacy
curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log, log1p
from typing import Any, Final

import numpy as np
import torch
from dp_accounting import DpEvent
from numpy.typing import NDArray
from scipy.special import betaincinv
from torch import nn

from securefl.dp.auditing import Bound
from securefl.dp.noise import Source
from securefl.training.devices import CPU
from securefl.training.dpsgd import train_privately
from securefl.training.private_steps import DPSGD
from securefl.training.vector import load_vector, to_vector

Floats = NDArray[np.float64]
Train = Callable[..., DpEvent]
DELTAS: Final = (1e-3, 1e-2, 0.05)
ALARM: Final = 1e-6
"""The probability of a false alarm of the audit of one delta, over both bounds of both errors together."""
_CANDIDATES: Final = 200
_STEEP: Final = 1e3
"""A canary's input, in clipping norms. Its gradient is far longer than C, so it is always clipped to C."""


def audit(
    config: DPSGD,
    *,
    deltas: Sequence[float] = DELTAS,
    canaries: int = 1000,
    runs: int = 300,
    layer: Callable[[int], nn.Module] = lambda width: nn.Linear(width, 1, bias=False),
    shape: tuple[int, ...] = (),
    train: Train = train_privately,
    device: torch.device = CPU,
) -> tuple[Bound, ...]:
    """The claimed epsilon and a lower bound at each delta, for `config.steps` steps of plain SGD.

    Args:
        canaries: The number of canaries in a run. Half of them are in the data.
        runs: The number of runs, each with fresh randomness.
        layer, shape: A linear model from `canaries` inputs of `shape` each to one output. Other code clips
            layers that are not dense: passing such a layer audits that code.
        train: The audited function.
        device: The device of the models.
    """
    model = layer(canaries).to(device)  # one for all runs: what its layers do with records is explored once
    made = [_scores(config, canaries, model, shape, train) for _ in range(runs)]
    inside, outside = (np.concatenate(parts) for parts in zip(*made, strict=True))
    return tuple(
        Bound(delta=delta, event=config.event, lower=_lower_bound(inside, outside, delta)) for delta in deltas
    )


def _scores(
    config: DPSGD, canaries: int, model: nn.Module, shape: tuple[int, ...], train: Train
) -> tuple[Floats, Floats]:
    """The log likelihood ratios of one run: of the canaries in the data, and of the others."""
    inside = canaries // 2
    x: NDArray[Any] = np.zeros((inside, canaries, *shape), np.float32)
    x[np.arange(inside), np.arange(inside)] = _STEEP * config.clip_norm
    y = np.full((inside, 1), -1, np.float32)
    # Each call is one step from zero, since a canary's gradient changes once the model has moved.
    step = one_step(config)
    start, scores = np.zeros(canaries, np.float32), np.zeros(canaries)
    for _ in range(config.steps):
        load_vector(model, start)
        train(model, x, y, step, "mse", Source())
        scores += _log_ratio(
            -to_vector(model).astype(np.float64), config.sampling_rate, config.noise_multiplier
        )
    return scores[:inside], scores[inside:]


def one_step(config: DPSGD, **changes: Any) -> DPSGD:
    """One noised step of plain SGD. It moves the model by minus the noised sum, in clipping norms."""
    plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "proximal": 0.0}
    # The learning rate cancels the divisor.
    rate = config.expected_batch / config.clip_norm
    return replace(config, **{"steps": 1, "learning_rate": rate, **plain, **changes})


def _log_ratio(seen: Floats, q: float, z: float) -> Floats:
    """The log of ((1 - q) N(0, z^2) + q N(1, z^2)) / N(0, z^2), at each value."""
    drawn: Floats = (2 * seen - 1) / (2 * z**2) + log(q)
    return drawn if q == 1 else np.logaddexp(log1p(-q), drawn)


def _lower_bound(inside: Floats, outside: Floats, delta: float) -> float:
    """The epsilon proved at confidence 1 - ALARM. Even trials choose thresholds, odd trials judge them."""
    # Judged on the trials that chose it, a threshold would be the best of 200 by chance, and the confidence
    # wrong.
    bounds = [0.0]
    for better, worse in ((inside, outside), (-outside, -inside)):
        candidates = np.quantile(np.concatenate([better[::2], worse[::2]]), np.linspace(0, 1, _CANDIDATES))
        guesses = [_epsilon(better[::2], worse[::2], threshold, delta) for threshold in candidates]
        threshold = float(candidates[int(np.argmax(guesses))])
        bounds.append(_epsilon(better[1::2], worse[1::2], threshold, delta))
    return max(bounds)


def _epsilon(better: Floats, worse: Floats, threshold: float, delta: float) -> float:
    """log((P(better > t) - delta) / P(worse > t)), by a lower bound of the one and an upper of the other."""
    hits, alarms = int(np.sum(better > threshold)), int(np.sum(worse > threshold))
    # An audit has four bounds, which share its false alarm.
    least = betaincinv(hits, len(better) - hits + 1, ALARM / 4) if hits else 0.0
    most = betaincinv(alarms + 1, len(worse) - alarms, 1 - ALARM / 4) if alarms < len(worse) else 1.0
    return float(log((least - delta) / most)) if least > delta else 0.0
