"""`securefl.run`: runs one study from Python, as the command `securefl run` does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from securefl.accounting.figures import in_words
from securefl.api.arguments import path_of
from securefl.api.studies import Given, study_from
from securefl.core.arguments import checked
from securefl.core.errors import ConfigError
from securefl.core.logs import logger
from securefl.core.memory import searches_apart
from securefl.core.release import PARTIES
from securefl.report.sentences import answer
from securefl.report.terminal import draws, say
from securefl.storage.private_folder import private_page
from securefl.study import session, split_key, world
from securefl.study.config import Study, slug
from securefl.study.export import Taken, require_kind, taken
from securefl.study.folder import taken_on
from securefl.study.interruption import Interrupted, Interruption
from securefl.study.progress import Bars
from securefl.study.publication import ON_TERMINAL, PERSONAL, PERSONALLY_TESTED, public
from securefl.study.results import Results
from securefl.study.round_events import Callback, calling
from securefl.training.devices import Hardware, one_thread
from securefl.training.trained import Trained

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console


_LOG = logger(__name__)
_PAGE = "report.html"


@dataclass(frozen=True, eq=False)
class PrivateResults:
    """Results that are not for publication, since no epsilon covers them. They are for this machine's user.

    Attributes:
        metrics, participation, figures, abstentions: data frames with one row per observation, as in the CSV
            files in the folder's `private`. `securefl.study.results.Results` describes their columns.
        measures: a data frame with a row for each seed and each model: the arms', and those that the observer
            trained on all records in one place and on each client alone.
        warnings: important findings: silent clients, diverged models, an arm that is no better than a
            constant answer.
        report: the path of the page with all figures.
    """

    metrics: pd.DataFrame
    participation: pd.DataFrame
    figures: pd.DataFrame
    abstentions: pd.DataFrame
    measures: pd.DataFrame
    warnings: tuple[str, ...]
    report: Path


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        study: the study that was run.
        folder: the run folder, for resuming, reports and exports.
        metrics: a data frame with a row for each arm, seed and round, as in metrics.csv. Its accuracies are
            of global models on the server's own test records, which no epsilon covers. Accuracies of
            personal models are missing.
        private: results that are not for publication, with the accuracies of personal models and all times.
        epsilon: the largest epsilon of any client at the end, over all seeds: a row for each arm, a column
            for each party ("server", "key-holder", "others").
        answer: which arm ended with the highest accuracy, and what a finite epsilon cost, if arms tell.
        accounting: whether the epsilons cover other runs over the same records.
        learnt: False if no arm learnt anything, or one stopped early; the command then has exit code 4.
    """

    study: Study
    folder: Path
    metrics: pd.DataFrame
    private: PrivateResults
    epsilon: pd.DataFrame
    answer: str
    learnt: bool
    accounting: str

    @classmethod
    def of(cls, study: Study, folder: Path, results: Results) -> Self:
        """The run of these results, with the private ones apart."""
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
                results.measures,
                tuple(alarm.text for alarm in results.alarms),
                private_page(folder / _PAGE),
            ),
            pd.DataFrame.from_dict(spent, orient="index", columns=list(PARTIES)).rename_axis("arm"),
            " ".join(filter(None, (answer(results.summary), results.price))),
            results.learnt,
            results.accounting,
        )

    def report(self) -> Path:
        """The path of the run's report, a self-contained HTML page that may be published.

        `private.report` is that of the page with all figures.
        """
        return self.folder / _PAGE

    def model(self, arm: str | None = None, *, seed: int | None = None, client: int | None = None) -> Trained:
        """The trained model of an arm, in evaluation mode; `predict` takes records.

        Args:
            arm: its name. It can be left out if there is only one arm.
            seed: by default the study's first.
            client: the client's number, if clients have personal models. Without it the model has the shared
                part, and the initial values of the rest: it does not predict.

        Errors as for `securefl export`.
        """
        found = self._taken(arm, seed, client)
        return Trained(found.learnt.module(), found.card)

    def export(
        self, path: Path | str, arm: str | None = None, *, seed: int | None = None, client: int | None = None
    ) -> Path:
        """Write the model of an arm with its card, by the file's ending .safetensors or .onnx.

        `securefl.load` reads .safetensors. Arguments are those of `model`. Returns the path.
        """
        file = path_of("path", path, "the file to write")
        require_kind(file)
        self._taken(arm, seed, client).write(file)
        return file

    @checked
    def test_records(self, seed: int | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
        """The x and y for measuring accuracy: the server's records under a seed, by default the first.

        x is as `Trained.predict` reads it. y has labels, or values in the table's units, as it gives them.
        """
        chosen = self.study.seed_of(seed)
        splits = split_key.of_run(self.study, self.folder, began=True).splits(self.study, chosen)
        here = world.build(self.study, chosen, Hardware(), splits=splits)
        # A model scales the arrays that it is given by itself (`[data] scaling`).
        x = here.problem.server_x if here.unscaled_x is None else here.unscaled_x
        y = here.problem.server_y
        if here.problem.kind == "regression":
            return x, here.schema.in_units(y)
        several = here.problem.kind == "multi-label"
        return x, here.schema.classes(2 if several else here.problem.outputs)[y.astype(np.int64)]

    @checked
    def _taken(self, arm: str | None, seed: int | None, client: int | None) -> Taken:
        with one_thread():
            return taken(self.study, self.folder, arm, seed, client)

    def __repr__(self) -> str:
        return f"Run({self.study.study.name!r} in {str(self.folder)!r})"

    def __str__(self) -> str:
        warned = [f"Warning: {text}" for text in self.private.warnings]
        whose = [ON_TERMINAL] if warned else []
        told = [self.answer, self.accounting, *warned, *whose]
        whole = f"With all figures, not for publication: {self.private.report}"
        return "\n".join([repr(self), *told, f"Report: {self.report()}", whole])

    def _repr_html_(self) -> str:
        """For notebooks: each arm's last accuracy and epsilon, and a link to the report."""
        tested = self.private.metrics.dropna(subset="accuracy")
        last = (
            tested.groupby(["arm", "seed"], sort=False)["accuracy"].last().groupby("arm", sort=False).mean()
        )
        table = self.epsilon.map(in_words).rename(columns=lambda party: f"ε {party}")
        table.insert(0, "accuracy", last.map("{:.3f}".format))
        pages = " ".join(
            f"<a href='{page}'>{page}</a>{after}"
            for page, after in (
                (escape(str(self.report())), "<br>"),
                (escape(str(self.private.report)), "(all figures, not for publication)"),
            )
        )
        title = escape(self.study.study.name)
        warned = "".join(f"<p>Warning: {escape(text)}</p>" for text in self.private.warnings)
        personal = (self.metrics["models"] == PERSONAL).any()
        warned += f"<p>{escape(ON_TERMINAL)}</p>" if warned else ""
        warned += f"<p>{escape(PERSONALLY_TESTED)}</p>" if personal else ""
        told = f"<p>{escape(self.accounting)}</p>{warned}"
        return f"<p><b>{title}</b></p>{table.to_html()}{told}<p>Report: {pages}</p>"


def run(
    study: Given,
    *,
    data: object | None = None,
    model: Any = None,
    protocol: Any = None,
    out: Path | str | None = None,
    workers: int | None = None,
    callback: Callback | Sequence[Callback] = (),
    progress: bool | None = None,
    trust_code: Sequence[Path | str] = (),
) -> Run:
    """Run a study to its end, or resume it, as `securefl run` does.

        >>> import securefl, tempfile
        >>> run = securefl.run("fedlog_digits", out=tempfile.mkdtemp(), progress=False)
        >>> run.epsilon.loc["FedLog (unit norm)", "others"].round(6)
        np.float64(1.0)
        >>> run.metrics[["arm", "seed", "round", "accuracy"]].shape
        (10, 4)

    Args:
        study: a path, the name of a packaged study, a text in TOML, the mapping of such a text, or a Study.
        data: records in place of those that `[data] source` names.
        model: a module, or a function that makes one, in place of the one that `[model] kind` names.
        protocol: that of the arms that name none: a dataclass of options with `build`, or a function that
            makes an algorithm from the problem and the arm's keys.
        out: the run folder, by default runs/<name of the study>, as for the command. Finished rounds of the
            same study in it are not run again. A folder of another study is refused.
        workers: processes that share arms, seeds and local training.
        callback: called with (arm's name, seed, `Round`) once for each round that finishes in this call, in
            this process. Several callbacks are called in their order. An error in one ends the run, which can
            be resumed. `securefl.api.callbacks` has some.
        progress: whether to show progress as the command does. By default it is shown only on a terminal and
            in a notebook.
        trust_code: paths whose code is taken as yours for this call, though others can write it, as by
            --trust-code.

    Returns:
        The finished run. A RuntimeWarning says if no arm learnt anything, or one stopped early.

    Torch has one thread during the run, and afterwards as many as before. In the main thread the first
    KeyboardInterrupt is raised after the current round has finished. Afterwards signal handlers are as
    before. The same call then resumes with the next round.

    Raises:
        ConfigError: the study cannot run; then no budget was spent.
        SecureFLError: any other error of this package.
    """
    found = study_from(
        study, data=data, model=model, protocol=protocol, workers=workers, trust_code=trust_code
    )
    folder = folder_of(out, f"runs/{slug(found.study.name)}")
    callbacks = _callbacks(callback)
    console = console_of(progress)
    stop = Interruption()
    found = taken_on(found, folder)
    with one_thread(), searches_apart(), ExitStack() as stack:
        stack.enter_context(going_on(folder))
        stack.enter_context(stop)
        bars = stack.enter_context(Bars(found, console))
        fresh = calling(callbacks, found.study.rounds)
        results, _ = session.run_study(
            found, folder, bars.tell, fresh=fresh, stop=stop, say=saying(console), watch=bars.observe
        )
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
    """The folder that a caller names, or the default one."""
    return Path(usual) if out is None else path_of("out", out, "a folder")


def _callbacks(given: Callback | Sequence[Callback]) -> tuple[Callback, ...]:
    found = given if isinstance(given, list | tuple) else (given,)
    if strange := [one for one in found if not callable(one)]:
        raise ConfigError(f"Expected a callback, or a list of some, got {type(strange[0]).__name__}.")
    return tuple(found)


def console_of(progress: bool | None) -> Console:
    """The console that shows progress: on stderr, or below the cell of a notebook."""
    from rich.console import Console

    console = Console(stderr=True)
    shown = draws(console) or console.is_jupyter if progress is None else progress
    return Console(stderr=True, quiet=not shown)


def saying(console: Console) -> Any:
    """A function that prints a line on the console. A quiet console prints none; the log has all lines."""
    return lambda line: say(console, line)


@contextmanager
def going_on(folder: Path) -> Iterator[None]:
    """Add to an interruption the note that the same call resumes the run."""
    try:
        yield
    except Interrupted as interrupted:
        interrupted.add_note(f"Finished rounds are kept in {folder}. Make the same call to resume.")
        raise
