"""`securefl.run`: one study from Python, as the command `securefl run` runs it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from securefl.accounting.figures import in_words
from securefl.api.arguments import path_of, whole
from securefl.api.studies import Given, study_from
from securefl.core.errors import ConfigError
from securefl.core.logs import logger
from securefl.core.release import PARTIES
from securefl.study import run_report, session, split_key, world
from securefl.study.config import Study, slug
from securefl.study.export import Taken, taken
from securefl.study.interruption import Interrupted, Interruption
from securefl.study.progress import Bars, draws
from securefl.study.publication import ON_TERMINAL, PERSONAL, PERSONALLY_TESTED, public
from securefl.study.results import Results
from securefl.study.round_events import Callback, calling
from securefl.training.devices import Hardware, one_thread
from securefl.training.trained import Trained

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console


_LOG = logger(__name__)


@dataclass(frozen=True, eq=False)
class PrivateResults:
    """What of a run is not for publication: no epsilon covers it. It is for the person at this machine.

    Attributes:
        metrics, participation, figures, abstentions: data frames with one row per observation, as the CSV
            files in the folder's `private` have them; their columns are described at
            `securefl.study.results.Results`.
        warnings: what must not be overlooked: clients that were silent, models that diverged, an arm that is
            no better than one constant answer.
    """

    metrics: pd.DataFrame
    participation: pd.DataFrame
    figures: pd.DataFrame
    abstentions: pd.DataFrame
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        study: what was run. folder: where all of it is, to be resumed, reported and exported from.
        metrics: a data frame with a row for each arm, seed and round, as metrics.csv has it. Its accuracies
            are those of global models on the server's own test records, which no epsilon covers; those of
            personal models are missing.
        private: what is not for publication, the accuracies of personal models and all times among it.
        epsilon: the largest epsilon of any client at the end, over all seeds: a row for each arm, a column
            for each party ("server", "key-holder", "others").
        sentences: who won, by how many rounds, what it cost in bytes and privacy. They say so where an
            accuracy is one of personal models, which no epsilon covers.
        accounting: whether the epsilons cover other runs over the same records.
        learnt: False if an arm learnt nothing, for which the command has an exit code of its own.
    """

    study: Study
    folder: Path
    metrics: pd.DataFrame
    private: PrivateResults
    epsilon: pd.DataFrame
    sentences: tuple[str, ...]
    learnt: bool
    accounting: str

    @classmethod
    def of(cls, study: Study, folder: Path, results: Results) -> Self:
        """What a caller sees of a run's results."""
        spent = {arm.name: [arm.epsilon[party] for party in PARTIES] for arm in results.summary}
        return cls(
            study,
            folder,
            public(results.metrics),
            PrivateResults(
                results.metrics,
                results.participation,
                results.figures,
                results.abstentions,
                tuple(alarm.text for alarm in results.alarms),
            ),
            pd.DataFrame.from_dict(spent, orient="index", columns=list(PARTIES)).rename_axis("arm"),
            run_report.sentences(results),
            results.learnt,
            results.accounting,
        )

    def report(self) -> Path:
        """The page of the run, one file that needs no other."""
        return self.folder / "report.html"

    def model(self, arm: str | None = None, *, seed: int | None = None, client: int | None = None) -> Trained:
        """The trained model of an arm, in evaluation mode; `predict` takes records.

        Args:
            arm: its name. It can be left out if there is only one.
            seed: by default the study's first.
            client: whose model, where clients have models of their own. Without it the model has what they
                share, and for the rest the initial values: it does not predict.

        Errors as for `securefl export`.
        """
        found = self._taken(arm, seed, client)
        return Trained(found.learnt.module(), found.card)

    def export(
        self, path: Path | str, arm: str | None = None, *, seed: int | None = None, client: int | None = None
    ) -> Path:
        """Write the model of an arm as safetensors, with its card, for `securefl.load`.

        Arguments are those of `model`. Returns the path.
        """
        file = path_of("path", path, "the file to write")
        self._taken(arm, seed, client).write(file)
        return file

    def test_records(self, seed: int | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
        """x and y that accuracy was measured on: the server's records under a seed, by default the first."""
        chosen = _seed(self.study, seed)
        splits = split_key.of_run(self.study, self.folder, began=True).splits(self.study, chosen)
        problem = world.build(self.study, chosen, Hardware(), splits=splits).problem
        return problem.server_x, problem.server_y

    def _taken(self, arm: str | None, seed: int | None, client: int | None) -> Taken:
        names = [own.name for own in self.study.arms]
        if not isinstance(arm, str | None) or (arm is None and len(names) > 1):
            raise ConfigError(f"Expected the name of an arm, which of {', '.join(names)}, got {arm!r}.")
        chosen = [_whole("seed", seed), _whole("client", client)]
        with one_thread():
            return taken(self.study, self.folder, names[0] if arm is None else arm, *chosen)

    def __repr__(self) -> str:
        return f"Run({self.study.study.name!r} in {str(self.folder)!r})"

    def __str__(self) -> str:
        warned = [f"Warning: {text}" for text in self.private.warnings]
        whose = [ON_TERMINAL] if warned else []
        told = [*self.sentences, self.accounting, *warned, *whose]
        return "\n".join([repr(self), *told, f"Report: {self.report()}"])

    def _repr_html_(self) -> str:
        """In a notebook: each arm's last accuracy and epsilon, and a link to the report."""
        tested = self.private.metrics.dropna(subset="accuracy")
        last = (
            tested.groupby(["arm", "seed"], sort=False)["accuracy"].last().groupby("arm", sort=False).mean()
        )
        table = self.epsilon.map(in_words).rename(columns=lambda party: f"ε {party}")
        table.insert(0, "accuracy", last.map("{:.3f}".format))
        page = escape(str(self.report()))
        title = escape(self.study.study.name)
        warned = "".join(f"<p>Warning: {escape(text)}</p>" for text in self.private.warnings)
        personal = (self.metrics["models"] == PERSONAL).any()
        warned += f"<p>{escape(ON_TERMINAL)}</p>" if warned else ""
        warned += f"<p>{escape(PERSONALLY_TESTED)}</p>" if personal else ""
        told = f"<p>{escape(self.accounting)}</p>{warned}"
        return f"<p><b>{title}</b></p>{table.to_html()}{told}<p>Report: <a href='{page}'>{page}</a></p>"


def run(
    study: Given,
    *,
    data: object | None = None,
    model: Any = None,
    out: Path | str | None = None,
    workers: int | None = None,
    callback: Callback | Sequence[Callback] = (),
    progress: bool | None = None,
) -> Run:
    """Run a study to its end, or resume it, as `securefl run` does.

        >>> import securefl
        >>> run = securefl.run("fedlog_digits", out="runs/digits", progress=False)
        >>> run.epsilon.loc["FedLog (unit norm)", "others"].round(6)
        np.float64(1.0)
        >>> run.metrics[["arm", "seed", "round", "accuracy"]].shape
        (10, 4)

    Args:
        study: a path, the name of a packaged study, a text in TOML, the mapping that TOML is read as, or a
            Study.
        data: records in place of those that `[data] source` names.
        model: a module, or what makes one, in place of the one that `[model] kind` names.
        out: the run folder, by default runs/<name of the study>, as for the command. What is finished there
            of this very study is not run again. A folder of another study is refused.
        workers: processes that share arms, seeds and local training.
        callback: called with (arm's name, seed, `Round`) when a round has finished, here and once. Rounds of
            an earlier run are not told again. Several are called in their order. An error in one ends the
            run, which can be resumed. `securefl.api.callbacks` has some.
        progress: show it as the command does. By default on a terminal and in a notebook alone.

    Torch has one thread while it runs, and afterwards as many as before. In the main thread the first
    KeyboardInterrupt lets the round finish, and is raised then; signal handlers are as before afterwards. The
    same call goes on with the next round.

    Warns with a RuntimeWarning if an arm learnt nothing. Raises ConfigError for a study that cannot run;
    nothing was spent then. Other errors are SecureFLErrors too.
    """
    found = study_from(study, data=data, model=model, workers=workers)
    folder = folder_of(out, f"runs/{slug(found.study.name)}")
    callbacks = _callbacks(callback)
    console = console_of(progress)
    stop = Interruption()
    with one_thread(), ExitStack() as stack:
        stack.enter_context(going_on(folder))
        stack.enter_context(stop)
        bars = stack.enter_context(Bars(found, console))
        fresh = calling(callbacks, found.study.rounds)
        results, _ = session.run_study(found, folder, bars.tell, fresh=fresh, stop=stop, say=saying(console))
    finished = Run.of(found, folder.absolute(), results)
    for text in finished.private.warnings:
        _LOG.warning("%s", text)
    if not finished.learnt:
        warnings.warn(
            f"An arm of {finished!r} learnt nothing, or stopped early: {' '.join(finished.private.warnings)}",
            RuntimeWarning,
            stacklevel=2,
        )
    return finished


def folder_of(out: Path | str | None, usual: str) -> Path:
    """The folder that a caller names, or the usual one."""
    return Path(usual) if out is None else path_of("out", out, "a folder")


def _callbacks(given: Callback | Sequence[Callback]) -> tuple[Callback, ...]:
    found = given if isinstance(given, list | tuple) else (given,)
    if strange := [one for one in found if not callable(one)]:
        raise ConfigError(f"Expected a callback, or a list of some, got {type(strange[0]).__name__}.")
    return tuple(found)


def _whole(what: str, value: object) -> int | None:
    """A whole number, or None."""
    return None if value is None else whole(what, value)


def console_of(progress: bool | None) -> Console:
    """Where progress is shown: on stderr, or below the cell of a notebook."""
    from rich.console import Console

    console = Console(stderr=True)
    shown = draws(console) or console.is_jupyter if progress is None else progress
    return Console(stderr=True, quiet=not shown)


def saying(console: Console) -> Any:
    """Prints a line for a person. A quiet console prints none; the log has them all."""
    return lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def going_on(folder: Path) -> Iterator[None]:
    """Say on an interruption that the same call goes on."""
    try:
        yield
    except Interrupted as interrupted:
        interrupted.add_note(f"Finished rounds are kept in {folder}. The same call goes on.")
        raise


def _seed(study: Study, seed: int | None) -> int:
    if _whole("seed", seed) is not None and seed not in study.study.seeds:
        raise ConfigError(f"Expected a seed among {', '.join(map(str, study.study.seeds))}, got {seed}.")
    return study.study.seeds[0] if seed is None else seed
