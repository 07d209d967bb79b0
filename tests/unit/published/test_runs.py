"""A table in its folder: how far it has come, going on after a stop, and folders of other versions."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.tiny_table import OTHER, TABLE

from securefl.core.errors import ConfigError, DataError
from securefl.published import comparison
from securefl.published.runs import Standing, run_table, standing
from securefl.published.table import Table
from securefl.study.interruption import Interrupted


@dataclass
class After:
    """Asks to stop after so many rounds."""

    rounds: int

    def finishing(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def check(self) -> None:
        self.rounds -= 1
        if self.rounds == 0:
            raise Interrupted(signal.SIGTERM)


def run(table: Table, folder: Path, stop: After | None = None) -> list[tuple[str, int, int]]:
    """Run the table; returns what was told, and writes its CSV."""
    told = []
    results = run_table(
        table,
        folder,
        lambda part, arm, seed, record: told.append((arm.name, seed, record["round"])),
        workers=1,
        stop=stop,
    )
    metrics = {name: own.metrics for name, own in results.items()}
    comparison.write(folder, "digits", table, metrics)
    return told


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    assert str(standing(TABLE, folder)) == "not begun"
    assert len(run(TABLE, folder)) == 2 * 2 * 2
    return folder


def test_a_table_runs_to_its_end(finished: Path) -> None:
    found = standing(TABLE, finished)
    assert found == Standing(done=4, of=4, begun=True)
    assert str(found) == "done"
    assert (finished / "one" / "report.html").is_file()


def test_an_interrupted_table_goes_on(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(TABLE, tmp_path, After(5))
    assert str(standing(TABLE, tmp_path)) == "2 of 4 cells"
    assert not (tmp_path / comparison.CSV).exists()
    told = run(TABLE, tmp_path)
    assert len(set(told)) == len(told) == 8
    assert (tmp_path / comparison.CSV).read_text() == (finished / comparison.CSV).read_text()


def test_a_folder_of_another_version_is_refused(finished: Path) -> None:
    before = (finished / comparison.CSV).read_text()
    for ask in (standing, run):
        with pytest.raises(
            ConfigError, match=r"'rounds = 2' in place of 'rounds = 3'.* Move the folder away"
        ):
            ask(OTHER, finished)  # type: ignore[operator]
    assert (finished / comparison.CSV).read_text() == before


def test_a_csv_of_another_version_is_refused(finished: Path, tmp_path: Path) -> None:
    path = finished / comparison.CSV
    assert len(comparison.read(path, TABLE)) == 8
    with pytest.raises(ConfigError, match=f"got version {TABLE.version}: it is from other studies"):
        comparison.read(path, OTHER)
    bare = tmp_path / "table.csv"
    bare.write_text("part,system\n")
    with pytest.raises(ConfigError, match="got no version"):
        comparison.read(bare, TABLE)


def test_a_damaged_run_is_told(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "one" / "private" / "arms" / "fedavg" / "seed-1" / "ledger.sqlite"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"nothing of the sort" * 100)
    with pytest.raises(DataError, match="is damaged"):
        standing(TABLE, tmp_path)
