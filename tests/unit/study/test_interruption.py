"""What a run hears of signals, in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from securefl.study.interruption import SIGNALS, Interrupted, Interruption, Told


def quiet(_: str) -> None:
    pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Sets the time of the next signals; handlers are those of a process in the foreground."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    old = [(number, signal.signal(number, signal.SIG_DFL)) for number in SIGNALS]
    yield lambda later: now.__setitem__(0, 100.0 + later)
    for number, handler in old:
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_lets_what_is_at_hand_finish(number: signal.Signals, clock: object) -> None:
    said = threading.Event()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        said.set()

    with Interruption(say) as stop:
        stop.check()
        with stop.finishing("this round"):
            signal.raise_signal(number)
            assert stop.asked
        assert said.wait(10)
        with pytest.raises(Interrupted) as caught:
            stop.check()
    assert caught.value.exit_code == 128 + number
    assert lines == ["Stopping after this round; once more to stop at once."]


def test_what_is_said_of_the_end_comes_behind(clock: object) -> None:
    lines: list[str] = []
    go = threading.Event()

    def say(line: str) -> None:
        assert go.wait(10)
        lines.append(line)

    with Interruption(say) as stop:
        with stop.finishing("this round"):
            signal.raise_signal(signal.SIGTERM)
        threading.Timer(0.1, go.set).start()
        with pytest.raises(Interrupted):
            stop.check()
        lines.append("Go on with: ...")
    assert len(lines) == 2
    assert lines[-1] == "Go on with: ..."


def test_a_signal_while_nothing_is_at_hand_stops_at_once(clock: object) -> None:
    with Interruption(quiet) as stop:
        with stop.finishing("this round"):
            pass
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)


def test_the_second_stops_at_once_and_the_third_is_the_systems(clock: Callable[[float], None]) -> None:
    with Interruption(quiet) as stop, stop.finishing("this round"):
        signal.raise_signal(signal.SIGINT)
        clock(0.2)
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.exit_code == 143
        assert all(signal.getsignal(number) == signal.SIG_DFL for number in SIGNALS)


def test_a_signal_that_comes_twice_in_a_moment_is_one(clock: Callable[[float], None]) -> None:
    with Interruption(quiet) as stop, stop.finishing("this round"):
        signal.raise_signal(signal.SIGTERM)
        clock(0.09)
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked


def test_handlers_are_put_back_and_what_was_ignored_stays_ignored(clock: object) -> None:
    def own(number: int, frame: object) -> None:
        pass

    signal.signal(signal.SIGINT, own)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interruption(quiet) as stop:
        with stop.finishing("this round"):
            signal.raise_signal(signal.SIGHUP)
        assert not stop.asked
        assert signal.getsignal(signal.SIGINT) != own
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert after == [own, signal.SIG_DFL, signal.SIG_IGN]


def test_outside_the_main_thread_nothing_is_handled(clock: object) -> None:
    handled: list[object] = []

    def elsewhere() -> None:
        with Interruption(quiet) as stop:
            stop.check()
            handled.extend(signal.getsignal(number) for number in SIGNALS)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handled == [signal.SIG_DFL] * len(SIGNALS)


def test_one_that_is_told_stops_between_rounds() -> None:
    asked = [False]
    stop = Told(lambda: asked[0])
    with stop.finishing("this round"):
        stop.check()
        asked[0] = True
    with pytest.raises(Interrupted):
        stop.check()
