"""`securefl.run_sweep`: runs a grid of studies from Python, as the command `securefl sweep` does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from securefl.api.running import Run, console_of, folder_of, going_on, run, saying
from securefl.api.studies import home_of, text_from
from securefl.core.errors import ConfigError, SecureFLError
from securefl.core.memory import searches_apart
from securefl.core.reading import near
from securefl.core.release import PARTIES
from securefl.storage.folder_lock import locked
from securefl.storage.private_folder import private_page
from securefl.storage.processes import scriptless
from securefl.study.config import Brought, slug
from securefl.study.interruption import Interruption
from securefl.study.publication import public
from securefl.sweep import tradeoff
from securefl.sweep.best import caveats
from securefl.sweep.cells import Sweep, claim, parse_sweep, require_own
from securefl.sweep.page import alarms_of
from securefl.sweep.session import require_runnable, run_and_write
from securefl.training.devices import one_thread

_PAGE = "sweep.html"


@dataclass(frozen=True, eq=False)
class PrivateSweep:
    """Results that are not for publication, since no epsilon covers them. They are for this machine's user.

    Attributes:
        metrics, summary: as those of `SweepRun`, with times, answers, and accuracies of personal models.
        failed: the reason for each cell that failed, by name.
        report: the path of the page with all figures.
    """

    metrics: pd.DataFrame
    summary: pd.DataFrame
    failed: Mapping[str, str]
    report: Path


@dataclass(frozen=True, eq=False)
class SweepRun:
    """A finished sweep.

    Attributes:
        sweep: the sweep that was run.
        folder: its folder, with a run folder for each cell.
        metrics: a row per finished cell, arm, seed and round, with the swept keys as columns. Accuracies are
            of global models on the server's own test records, which no epsilon covers.
        summary: a row per finished cell, arm and seed (see `securefl.sweep.tradeoff.summary_table`).
        private: results that are not for publication.
    """

    sweep: Sweep
    folder: Path
    metrics: pd.DataFrame
    summary: pd.DataFrame
    private: PrivateSweep

    @property
    def epsilon(self) -> pd.DataFrame:
        """The largest epsilon over all seeds: a row for each cell and arm, a column for each party."""
        spent = self.summary.groupby(["cell", "arm"], sort=False)[
            [f"epsilon_{party}" for party in PARTIES]
        ].max()
        return spent.rename(columns=lambda name: str(name).removeprefix("epsilon_"))

    @property
    def accounting(self) -> list[str]:
        """The limits of the cells' epsilons, a sentence for each."""
        return caveats(self.sweep)

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of the cells, as `run` takes them."""
        return tuple(cell.folder for cell in self.sweep.cells)

    def run(self, cell: str) -> Run:
        """The run of one cell, for its models and its own report. It is finished, and read only."""
        found = {own.folder: own for own in self.sweep.cells}
        if cell not in found:
            raise ConfigError(f"Expected a cell among {', '.join(found)}, got {cell!r}{near(cell, found)}.")
        return run(found[cell].study, out=self.sweep.home(self.folder, found[cell]), progress=False)

    def report(self) -> Path:
        """The path of the sweep's report, a self-contained HTML page that may be published.

        `private.report` is that of the page with all figures.
        """
        return self.folder / _PAGE

    def __repr__(self) -> str:
        done = len(self.sweep.cells) - len(self.private.failed)
        return (
            f"SweepRun({self.sweep.name!r}: {done} of {len(self.sweep.cells)} cells in {str(self.folder)!r})"
        )


def _warn_unlearnt(alarms: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    lines = [f"{cell}: {own['text']}" for cell, ones in alarms.items() for own in ones if not own["learnt"]]
    if lines:
        warnings.warn(
            f"An arm learnt nothing, or stopped early: {' '.join(lines)}", RuntimeWarning, stacklevel=3
        )


def run_sweep(
    study: Mapping[str, Any] | Path | str,
    *,
    data: object | None = None,
    model: Any = None,
    protocol: Any = None,
    out: Path | str | None = None,
    workers: int | None = None,
    progress: bool | None = None,
    trust_code: Sequence[Path | str] = (),
) -> SweepRun:
    """Run a study with a section [sweep] for every cell of its grid, or resume it, as `securefl sweep` does.

        >>> import securefl, tempfile
        >>> from importlib.resources import files
        >>> text = (files("securefl.protocols.studies") / "fedlog_digits.toml").read_text()
        >>> grid = '[sweep.grid]\\n"study.seeds" = [[1]]\\n'
        >>> found = securefl.run_sweep(text + grid, out=tempfile.mkdtemp(), workers=1, progress=False)
        >>> found.cells
        ('seeds-1',)
        >>> found.epsilon.loc[("seeds-1", "FedLog (unit norm)"), "others"].round(6)
        np.float64(1.0)

    Args:
        study: as for `securefl.run`.
        data, model, protocol: as for `securefl.run`. With one of them the cells run one after the other in
            this process; otherwise each runs in a worker process.
        out: the folder, by default runs/<name of the study>-sweep. Finished cells are not run again.
        workers: processes that run cells in parallel, by default as many as processors.
        progress, trust_code: as for `securefl.run`.

    Returns:
        The finished sweep. A RuntimeWarning says if some cells failed or an arm learnt nothing.

    Raises:
        ConfigError: the sweep cannot run.
        SecureFLError: all cells failed.
    """
    brought = Brought(data=data, model=model, protocol=protocol)
    home, namer = home_of(study, brought, trust_code)
    found = parse_sweep(text_from(study), home=home, brought=brought, namer=namer)
    if found.choice is not None:
        raise ConfigError(
            "Expected a sweep of which all cells are run, got one with `choice`: take `securefl sweep`, or "
            "securefl.sweep.choice.choose(sweep, out)."
        )
    folder = folder_of(out, f"runs/{slug(found.name)}-sweep")
    console, stop = console_of(progress), Interruption()
    with one_thread(), searches_apart(), ExitStack() as stack:
        stack.enter_context(going_on(folder))
        # Before the lock, which is a file in the folder: a refusal leaves the folder as it was.
        require_own(folder, found)
        require_runnable(found, folder, console)
        stack.enter_context(locked(folder, saying(console)))
        claim(folder, found)
        stack.enter_context(scriptless())
        stack.enter_context(stop)
        told, summary, failed = run_and_write(found, folder, workers, console, stop)
    if failed:
        what = "; ".join(f"{name}: {error}" for name, error in failed.items())
        count = f"{len(failed)} of {len(found.cells)} cells failed"
        why = f"{count}: {what.rstrip('.')}. The same call tries again."
        if len(failed) == len(found.cells):
            raise SecureFLError(why)
        warnings.warn(why, RuntimeWarning, stacklevel=2)
    _warn_unlearnt(alarms_of(told))
    metrics = tradeoff.results_table(found, told)
    apart = PrivateSweep(metrics, summary, failed, private_page(folder.absolute() / _PAGE))
    return SweepRun(found, folder.absolute(), public(metrics), public(summary), apart)
