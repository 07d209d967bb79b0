"""One hypothesis profile, one thread, one worker and no GPU for all tests, so that a failure repeats."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

# Before numpy and torch are loaded: each wakes all cores for a product, in the way of the other worker.
# Neither is loaded here: the process that hands tests to workers needs none of them.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import settings
from support import started

from securefl.storage import folder_lock, processes

settings.register_profile("securefl", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("securefl")
# A shell that puts the tests in the background has them ignore Ctrl-C, by which some end a party.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
processes.processors = lambda: 1  # a test that wants several workers says how many
folder_lock._PATIENCE = 0.05  # tests that are refused a folder wait for it so long


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name: a system takes no socket deep in a folder of the length of pytest's own."""
    with TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties of one study share its world."""
    from support.party_folders import build_once  # it loads torch

    build_once(monkeypatch)


_SKIPPED = "securefl/skipped"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skipped", action="store_true", help="run only the tests that the last run skipped")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --skipped, such as after a run without the folder of data, leave all other tests out."""
    if not config.option.skipped:
        return
    if not hasattr(config, "cache"):
        raise pytest.UsageError(
            "--skipped reads the note of the last run, which -p no:cacheprovider leaves out."
        )
    before = set(config.cache.get(_SKIPPED, []))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in before])
    items[:] = [item for item in items if item.nodeid in before]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No search for cycles: a third of collection went by it, over objects that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What was collected stays. Searches for objects and for cycles, of which some tests do many, skip it."""
    gc.freeze()


_FINISHED = itertools.count(1)


def pytest_runtest_logfinish() -> None:
    """What tests have loaded stays too: a quarter of a million objects in the end."""
    if next(_FINISHED) % 300 == 0:
        gc.collect()
        gc.freeze()


_HEARD = {number: signal.getsignal(number) for number in (*processes.SIGNALS, signal.SIGCHLD)}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """A test leaves signals as they were: what it ignores, all that later tests start would ignore."""
    yield
    left = {number: handler for number in _HEARD if (handler := signal.getsignal(number)) != _HEARD[number]}
    for number in left:
        signal.signal(number, _HEARD[number])
    assert not left, f"the test left signals handled otherwise: {left}"


def pytest_sessionfinish() -> None:
    """End the processes that tests started."""
    started.end()


class Skips:
    """Notes which tests of a run are skipped. A run of --skipped leaves the note as it is."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.found.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if not self.config.option.skipped:
            self.config.cache.set(_SKIPPED, sorted(set(self.found)))


def pytest_configure(config: pytest.Config) -> None:
    """Note skipped tests. Hide a GPU, which a study would take by default, without `-m gpu`."""
    # The one process that hears of all tests. With -p no:cacheprovider it has no place for the note.
    if not hasattr(config, "workerinput") and hasattr(config, "cache"):
        config.pluginmanager.register(Skips(config))
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
