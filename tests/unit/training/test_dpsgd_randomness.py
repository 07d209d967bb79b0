"""Private training draws from its own source alone, and draws each record by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from support.tiny_dpsgd import config, keyed, seeded, trained
from support.tiny_training import small_data
from torch import Tensor, nn

from securefl.dp.noise import Source
from securefl.training.dpsgd import train_privately
from securefl.training.row_wise import RowHook


def batches(n: int, source: Source, **changes: Any) -> list[list[int]]:
    """Which of n < 64 records are in each step: all of a step's fit in a chunk."""
    seen: list[list[int]] = []

    def note(layer: nn.Module, given: tuple[Tensor]) -> None:
        # The first feature is a record's number plus 1, and 0 where none is.
        seen.append([int(value) - 1 for value in given[0][:, 0] if value >= 1])

    model = seeded(lambda: nn.Sequential(nn.Linear(1, 2)))
    model.register_forward_pre_hook(RowHook(note))
    x, y = np.arange(1, n + 1, dtype=np.float32)[:, None], np.zeros(n, np.int64)
    train_privately(model, x, y, config(chunk=64, **changes), "cross_entropy", source)
    return seen[-config().steps :]  # the model is tried on public chunks first


def test_seeds_of_torch_and_numpy_decide_neither_noise_nor_batches() -> None:
    found, drawn = [], []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            np.random.seed(0)  # noqa: NPY002 - that it does nothing is the point
            found.append(trained(config(), small_data(0), source=Source()))
            drawn.append(batches(60, Source()))
    assert not np.allclose(found[0], found[1])
    assert drawn[0] != drawn[1]


def test_the_generators_of_torch_and_numpy_are_left_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    trained(config(), small_data(), source=Source())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_one_key_repeats_a_run_and_another_key_does_not() -> None:
    one, same, other = (trained(config(), small_data(), source=keyed(key)) for key in (b"a", b"a", b"b"))
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)


def test_each_step_draws_its_batch_anew_and_rate_one_draws_all() -> None:
    drawn = batches(60, keyed())
    assert len(drawn) == 3
    assert drawn[0] != drawn[1] != drawn[2]
    assert all(10 < len(batch) < 50 for batch in drawn)  # 8 standard deviations: 2.5e-7 for a wrong alarm
    assert batches(60, keyed(), sampling_rate=1.0) == [list(range(60))] * 3


def test_a_record_is_drawn_whatever_others_there_are() -> None:
    fewer, more = batches(40, keyed()), batches(60, keyed())
    assert [[i for i in batch if i < 40] for batch in more] == fewer


def test_the_noise_does_not_depend_on_the_number_of_records() -> None:
    still = config(clip_norm=1e-12, noise_multiplier=1e12, sampling_rate=0.3)
    ends = [trained(still, small_data(n)) for n in (0, 1, 30)]
    assert np.allclose(ends[0], ends[1], atol=1e-6)
    assert np.allclose(ends[0], ends[2], atol=1e-6)
