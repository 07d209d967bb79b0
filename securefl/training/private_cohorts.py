"""Private training of several clients side by side. It is the mechanism of `dpsgd`, client by client.

Each client draws its records and its noise from its own source, its own records' gradients are clipped, and
it is charged alone. One record must move its own gradient and nothing else (`chunks`), so all passes have one
shape:

- There are always as many slots, of `chunk` rows each. Slots and rows that are left over hold zeros.
- Pass c has the c-th chunk of every client, of zeros where a client has no more records.
- Every slot's memory begins at the same alignment, and every row's within it (`products`).

A record's clipped gradient then has the same bits whatever else is in its batch, whoever else is in the wave
and in whichever slot its client stands. `require_alike` tries that on public records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from securefl.core.errors import ConfigError
from securefl.dp.noise import Source
from securefl.rounds import Float32s
from securefl.training.dpsgd_config import DPSGD
from securefl.training.fit import Fit, Fitted
from securefl.training.losses import records
from securefl.training.models import MLP
from securefl.training.per_record import SLACK
from securefl.training.probes import probes_of, stay_apart
from securefl.training.products import widened
from securefl.training.stack import Stack, tail_of
from securefl.training.threads import one_thread

SLOTS: Final = 10
"""Clients in one pass, whether there are as many or not: of a large cohort, or of one that no plan tells."""
Batch = tuple[Tensor, Tensor]
"""One client's drawn records (b, inputs) and targets (b,) or (b, targets). b may be 0."""


def fit_privately(fits: Sequence[Fit], slots: int) -> list[Fitted]:
    """Train at most `slots` clients side by side, each with record-level privacy. They are alike."""
    from securefl.training.dpsgd import diverged, optimizer_of, poisson  # Opacus takes two seconds to import

    problem = fits[0].problem
    config = problem.private
    assert config is not None
    with torch.no_grad(), one_thread():
        stack = stack_of(fits[0], [fit.start for fit in fits], slots)
        columns = [records(fit.job.x, fit.job.y, problem.loss) for fit in fits]
        sources = [fit.job.source or Source() for fit in fits]
        optimizer = optimizer_of(config)
        start = stack.values.clone() if config.proximal else None
        for _ in range(config.steps):
            chosen = [
                poisson(len(x), config.sampling_rate, source)
                for (x, _), source in zip(columns, sources, strict=True)
            ]
            batches = [(x.flatten(1)[own], y[own]) for (x, y), own in zip(columns, chosen, strict=True)]
            noised = stack.layout.rows(clipped_sums(stack, batches, config))
            for own, source in zip(noised, sources, strict=False):
                noise = torch.from_numpy(source.normal(len(own)))
                own.add_(noise, alpha=config.noise_multiplier * config.clip_norm)
            # divided by the public number: the number of drawn records is private
            gradient = stack.layout.flat(noised.div_(config.expected_batch).float())
            if config.weight_decay:
                gradient.add_(stack.values, alpha=config.weight_decay)
            if start is not None:
                gradient.add_(stack.values - start, alpha=config.proximal)
            optimizer.step(stack.values, gradient)
        fine = stack.finite()
        vectors = stack.vectors(range(len(fits)))
    return [own if fine[slot] else diverged(config.learning_rate) for slot, own in vectors.items()]


def stack_of(fit: Fit, vectors: Sequence[Float32s], slots: int) -> Stack:
    """These models (d,) in the first slots, as this fit and those alike train them."""
    model = fit.problem.layers
    assert isinstance(model, MLP)
    return Stack(model, vectors, tail_of(fit), slots=slots)


def clipped_sums(stack: Stack, batches: Sequence[Batch], config: DPSGD) -> Tensor:
    """Each slot's sum of clipped gradients over its batch, float64 in the form of the stack's values.

    A record with a non-finite loss or gradient norm is dropped: the sum has the same bits as without it.
    """
    sums = torch.zeros(len(stack.values), dtype=torch.float64)
    layers = stack.layout.layers(sums)
    for at in range(0, max(len(x) for x, _ in batches), config.chunk):
        x, y, there = _chunk(batches, at, (stack.slots, config.chunk))
        # Zero times nan is nan: who is dropped must not be in the products at all.
        if not (known := stack.known(y)).all():
            _drop(~known, x, y, there)
        parts, usable = _clipped(stack, x, y, there, config)
        if not usable[there].all():
            _drop(~usable, x, y, there)
            parts, _ = _clipped(stack, x, y, there, config)
        for (given, slope), layer in zip(parts, layers, strict=True):
            layer.weight.baddbmm_(slope.transpose(1, 2), given)
            layer.bias.add_(slope.sum(1))
    return sums


def _chunk(batches: Sequence[Batch], at: int, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """The chunk that begins at record `at` of each batch: records, targets, and which rows hold a record.

    shape: slots and rows.
    """
    x, y = (column.new_zeros((*shape, *column.shape[1:])) for column in batches[0])
    there, rows = torch.zeros(shape, dtype=torch.bool), shape[1]
    for slot, (inputs, targets) in enumerate(batches):
        n = len(inputs[at : at + rows])
        x[slot, :n], y[slot, :n], there[slot, :n] = inputs[at : at + rows], targets[at : at + rows], True
    return x, y, there


def _drop(rows: Tensor, x: Tensor, y: Tensor, there: Tensor) -> None:
    """Make these rows, (slots, rows), rows without a record."""
    there[rows] = False
    x[rows] = 0
    y[rows] = 0


def _clipped(
    stack: Stack, x: Tensor, y: Tensor, there: Tensor, config: DPSGD
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Every record's clipped gradient as factors in float64, layer by layer, and which records are usable."""
    weights = there.float()
    back = stack.back(widened(x), y, weights, weights[:, :, None])
    # |slope x input|^2 = |slope|^2 |input|^2, and a bias is one more input that is always 1
    squares = [slope.square().sum(2) * (given.square().sum(2) + 1) for given, slope in back.layers]
    norms = torch.stack(squares).sum(0).sqrt()
    scale = (config.clip_norm * (1 - SLACK) / norms).clamp_(max=1)[:, :, None]
    parts = [(given.double(), (slope * scale).double()) for given, slope in back.layers]
    return parts, torch.isfinite(norms) & torch.isfinite(back.losses)


def require_alike(fit: Fit, rows: int, slots: int) -> None:
    """Try two public records in all places of all slots, and one of them among zeros.

    Of the fit's records only shapes and types are used. Raises ConfigError if a record's gradient depends on
    its place, on its slot, or on other records. Torch is then built with kernels that slots cannot use.
    """
    columns = records(fit.job.x, fit.job.y, fit.problem.loss)
    stack = stack_of(fit, [fit.problem.initial] * slots, slots)
    full, alone = (_factors(stack, probe) for probe in probes_of(columns, slots * rows))
    if not stay_apart(full, alone):
        raise ConfigError(
            "Expected kernels that compute each record of a product on its own, got others: clients cannot "
            'be trained side by side here. Set training = "sequential" under [runtime], in a new folder.'
        )


def _factors(stack: Stack, probe: Sequence[Tensor]) -> Tensor:
    """What a record's gradient is made of, (slots * rows, ...)."""
    x, y = (column.flatten(1) if column.ndim > 1 else column for column in probe)
    x, y = (column.view(stack.slots, -1, *column.shape[1:]) for column in (x, y))
    back = stack.back(widened(x), y, torch.ones(x.shape[:2]))
    return torch.cat([part.flatten(0, 1) for layer in back.layers for part in layer], dim=1)
