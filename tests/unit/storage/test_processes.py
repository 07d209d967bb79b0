"""Supervised processes: what they tell and hear, how they end, and that none is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forked import check_ended, noted, runs
from support.supervised import echo, fail, hear_signals, wait

from securefl.storage.files import write
from securefl.storage.processes import FAILED, Ended, Supervisor, ending

Method = Any
METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])


def heard(crew: Supervisor[str], count: int) -> list[tuple[str, Any]]:
    """The next so many pieces of news."""
    found: list[tuple[str, Any]] = []
    end = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < end, found
        found += crew.hear()
    return found


@METHODS
def test_orders_and_news_go_to_and_fro(method: Method) -> None:
    with Supervisor[str](method) as crew:
        assert crew.start("a", echo, 1, "two")
        assert heard(crew, 1) == [("a", [1, "two"])]
        crew.order("a", {"x": [3]})
        assert heard(crew, 1) == [("a", {"x": [3]})]
        assert crew.running == ["a"]
        crew.order("a", "end")
        assert heard(crew, 1) == [("a", Ended(0))]
        assert crew.running == []


def test_one_word_stops_all() -> None:
    with Supervisor[str]("fork") as crew:
        for code, name in enumerate("abc"):
            assert crew.start(name, wait, code)
        assert sorted(heard(crew, 3)) == [("a", "here"), ("b", "here"), ("c", "here")]
        crew.stop()
        crew.stop()
        assert dict(heard(crew, 3)) == {"a": Ended(0), "b": Ended(1), "c": Ended(2)}


@METHODS
def test_no_process_hears_a_signal(method: Method) -> None:
    with Supervisor[str](method) as crew:
        crew.start("a", hear_signals)
        assert heard(crew, 2) == [("a", "alive"), ("a", Ended(0))]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_an_error_and_a_kill_are_told_apart() -> None:
    with Supervisor[str]("fork") as crew:
        crew.start("fails", fail)
        assert heard(crew, 1) == [("fails", Ended(FAILED))]
        crew.start("killed", wait)
        heard(crew, 1)
        multiprocessing.active_children()[0].kill()
        assert heard(crew, 1) == [("killed", Ended(-9))]
        crew.start("orders", wait)
        heard(crew, 1)
        multiprocessing.active_children()[0].kill()
        multiprocessing.active_children()[0].join()
        crew.order("orders", "nobody reads it")
        assert heard(crew, 1) == [("orders", Ended(-9))]
    assert ending(-9) == "was ended by signal 9 (SIGKILL)"
    assert ending(FAILED) == "ended with exit code 4"


def test_all_are_killed_and_waited_for_however_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    forks = noted(monkeypatch)

    def interrupted() -> None:
        with Supervisor[str]("fork") as crew:
            for name in "ab":
                crew.start(name, wait)
            heard(crew, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(forks) == 2
    check_ended(forks)


def test_a_system_without_room_for_a_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refused)
    with Supervisor[str]("fork") as crew:
        assert not crew.start("a", wait)
        assert (crew.running, list(crew.hear())) == ([], [])


@pytest.fixture
def _nobody_learns_codes() -> Iterator[None]:
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, old)


@pytest.mark.usefixtures("_nobody_learns_codes")
def test_under_a_launcher_that_ignores_children_only_the_end_is_known() -> None:
    with Supervisor[str]("fork") as crew:
        crew.start("a", echo)
        heard(crew, 1)
        crew.order("a", "end")
        assert heard(crew, 1) == [("a", Ended(None))]


@METHODS
def test_a_process_ends_with_the_one_that_started_it(method: Method, tmp_path: Path) -> None:
    noted = tmp_path / "child"
    parent = os.fork()
    if parent == 0:
        try:
            with Supervisor[str](method) as crew:
                crew.start("a", wait)
                heard(crew, 1)
                write(noted, str(multiprocessing.active_children()[0].pid))
                signal.pause()
        finally:
            os._exit(0)
    end = time.monotonic() + 60
    while not noted.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    while runs(int(noted.read_text())):
        assert time.monotonic() < end, "it outlives its parent"
        time.sleep(0.01)
