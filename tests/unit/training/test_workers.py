"""Local training in forked processes: the results of one process bit for bit, however a process ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.forked import check_ended, noted, runs, wait_for
from support.tiny_dpsgd import config
from support.tiny_problem import client_context, tiny_problem
from support.tiny_training import small_data

from securefl.core.errors import ConfigError, DataError, WorkerDied
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.storage.files import write
from securefl.training.jobs import TrainingJob, TrainingResult
from securefl.training.parallel import Forked, _shares
from securefl.training.run_jobs import one_by_one
from securefl.training.task import Problem

DPSGD_CONFIG = config(sampling_rate=0.3)


def problem(**changes: Any) -> Problem:
    adam = {"optimizer": "adam", "learning_rate": 0.01, "batch_size": 8}
    return tiny_problem(width=4, **{"hidden": (6,), **adam, **changes})


def fit(
    of: Problem, client: int, *, n: int = 30, key: int | None = None, x: NDArray[Any] | None = None
) -> TrainingJob:
    own, y = small_data(n, seed=client)
    own = own if x is None else x
    return TrainingJob(
        problem=of,
        start=of.initial,
        context=client_context(
            own,
            y,
            client=client,
            broadcast=of.initial,
            rng=np.random.default_rng(client),
            source=None if key is None else Source(SecretKey(bytes([key]) * 32)),
        ),
    )


def wave(count: int = 5) -> list[TrainingJob]:
    of = problem()
    return [fit(of, k, n=10 + 7 * k) for k in range(count)]


def check_same(found: list[TrainingResult], expected: list[TrainingResult]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, DataError):
            assert isinstance(ours, DataError)
            assert str(ours) == str(theirs)
        else:
            assert isinstance(ours, np.ndarray)
            assert ours.flags.writeable
            np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return noted(monkeypatch)


@pytest.mark.parametrize("workers", [2, 3, 5, 40])
def test_workers_give_the_bits_of_one_process(workers: int, forks: list[int]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    check_same(Forked(workers)(wave()), one_by_one(wave()))
    assert len(forks) == min(workers, 5) - 1
    assert len(os.listdir("/proc/self/fd")) == before
    check_ended(forks)


def test_private_training_gives_the_same_bits() -> None:
    def private() -> list[TrainingJob]:
        of = problem(private=DPSGD_CONFIG)
        return [fit(of, k, key=k + 1) for k in range(3)]

    check_same(Forked(2)(private()), one_by_one(private()))


def test_private_training_without_a_key_draws_fresh_noise_in_every_process() -> None:
    of = problem(private=DPSGD_CONFIG)
    found = Forked(4)([fit(of, 0) for _ in range(4)])
    assert len({own.tobytes() for own in found if isinstance(own, np.ndarray)}) == 4


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_share_forks_nothing(count: int, forks: list[int]) -> None:
    check_same(Forked(4)(wave(count)), one_by_one(wave(count)))
    assert forks == []


@pytest.mark.parametrize("where", ["securefl.training.parallel.can_fork", "torch.accelerator.is_available"])
def test_where_nothing_can_fork_one_process_does_it_all(
    where: str, forks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, lambda: "accelerator" in where)
    check_same(Forked(2)(wave()), one_by_one(wave()))
    assert forks == []


def test_a_system_without_room_for_a_process_has_the_work_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refused)
    check_same(Forked(3)(wave()), one_by_one(wave()))


def test_the_work_is_shared_by_records() -> None:
    of = problem()
    shares = _shares([fit(of, k, n=n) for k, n in enumerate([10, 40, 10, 10, 10])], 2)
    assert sorted(map(sorted, shares)) == [[0, 2, 3, 4], [1]]
    empty = _shares([fit(of, k, n=1) for k in range(3)], 3)
    assert sorted(map(sorted, empty)) == [[0], [1], [2]]


@pytest.mark.parametrize("bad", [0, 3, 4])
def test_a_client_that_diverges_is_told_as_in_one_process(bad: int) -> None:
    def diverging() -> list[TrainingJob]:
        fits = wave()
        fits[bad] = replace(fits[bad], problem=problem(learning_rate=1e30))
        return fits

    expected = one_by_one(diverging())
    assert isinstance(expected[bad], DataError)
    check_same(Forked(2)(diverging()), expected)


@pytest.mark.parametrize("bad", range(5))
def test_another_error_is_raised_as_in_one_process(bad: int, forks: list[int]) -> None:
    def frozen() -> list[TrainingJob]:
        fits = wave()
        of = problem(hidden=())
        fits[bad] = replace(fit(of, bad), under_head=True)
        return fits

    with pytest.raises(ConfigError, match="all frozen"):
        Forked(2)(frozen())
    check_ended(forks)


# Ends from outside ------------------------------------------------------------------------------------


def at_training(monkeypatch: pytest.MonkeyPatch, do: Callable[[bool], None]) -> None:
    """Call `do` before a fit trains. It is told whether this process is forked."""
    from securefl.training import run_jobs as module

    train, here = module.train, os.getpid()

    def training(*args: Any, **named: Any) -> None:
        do(os.getpid() != here)
        train(*args, **named)

    monkeypatch.setattr(module, "train", training)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"was ended by signal 9 \(SIGKILL\)"),
        (lambda: os.kill(os.getpid(), signal.SIGUSR1), r"was ended by signal 10 \(SIGUSR1\)"),
        (lambda: os._exit(7), "ended with exit code 7"),
        (lambda: os._exit(0), "ended before its training"),
    ],
)
def test_a_worker_that_ends_early_is_said(
    end: Callable[[], None], said: str, forks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_training(monkeypatch, lambda forked: end() if forked else None)
    with pytest.raises(WorkerDied, match=f"A worker process {said}.*If memory ran out, add --workers 1"):
        Forked(3)(wave())
    check_ended(forks)


def test_an_interruption_here_ends_the_workers(forks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def do(forked: bool) -> None:
        if forked:
            signal.pause()
        raise KeyboardInterrupt

    at_training(monkeypatch, do)
    with pytest.raises(KeyboardInterrupt):
        Forked(3)(wave())
    check_ended(forks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_workers_hear_no_request_to_stop(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = one_by_one(wave())
    at_training(monkeypatch, lambda forked: os.kill(os.getpid(), number) if forked else None)
    check_same(Forked(2)(wave()), expected)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_a_worker_whose_parent_is_gone_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = tmp_path / "worker"
    parent = os.fork()
    if parent == 0:
        here = os.getpid()

        def do(_: bool) -> None:
            if os.getpid() != here:
                write(noted, str(os.getpid()))
            signal.pause()

        at_training(monkeypatch, do)
        try:
            Forked(2)(wave())
        finally:
            os._exit(0)
    wait_for(noted)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    end = time.monotonic() + 30
    while runs(int(noted.read_text())):
        assert time.monotonic() < end, "it outlives its parent"
        time.sleep(0.01)


def test_torch_keeps_its_threads() -> None:
    torch.set_num_threads(2)
    try:
        Forked(2)(wave())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
