"""Shared parts of the commands: find a study, run it, and print its results and warnings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from securefl.commands.exit_codes import ExitCode
from securefl.commands.printing import echo, echo_json, echo_table
from securefl.core.errors import ConfigError
from securefl.core.lazy import loading
from securefl.report.terminal import LONGEST, draws, say, shortened
from securefl.storage.processes import MOST_WORKERS
from securefl.study.packaged import text_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from securefl.study import results
    from securefl.study.alarms import Alarm
    from securefl.study.config import Study
    from securefl.study.interruption import Interruption
    from securefl.study.progress import Bars
    from securefl.study.round_events import Callback

_NAME: Final = 16
"""The fewest characters to which an arm's name is cut."""


def find(study: str, trusted: Sequence[Path] = ()) -> Study:
    """Read a study by its path, or by the name of a packaged one. trusted: the paths of --trust-code."""
    with loading("securefl.study.config"):
        from securefl.study.config import parse, read
        from securefl.sweep.cells import has_sweep

    text = text_of(study)
    if has_sweep(text):
        raise ConfigError(
            f"Expected a study without a section [sweep], got {study}; run it with: securefl sweep {study}"
        )
    # Read again by its path, because the errors of `read` name the file.
    return read(Path(study), trusted) if Path(study).is_file() else replace(parse(text), file=study)


def with_trust(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--trust-code` to a command that imports code that a study names."""
    return click.option(
        "--trust-code",
        "trusted",
        multiple=True,
        type=click.Path(path_type=Path, exists=True),
        help="For this run, take what is at or below PATH as yours, though others can write it: files that "
        "name code, and code. It may be repeated.",
    )(command)


def with_run_code(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--run-code` and `--trust-code` to a command that reads a run folder."""
    return click.option(
        "--run-code", is_flag=True, help="Import the code that the run's study names. It is run, so read it."
    )(with_trust(command))


def with_workers(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--workers` to a command that runs or rehearses a study."""
    return click.option(
        "--workers",
        type=click.IntRange(1, MOST_WORKERS),
        help="Processes that share arms, seeds and local training; default: as many as processors.",
    )(command)


def on_workers(study: Study, workers: int | None) -> Study:
    """The study with this number of workers, if one is given. Its text, as in its run folder, stays."""
    return study if workers is None else replace(study, runtime=replace(study.runtime, workers=workers))


Play = Callable[["Bars", "Interruption", Callable[[str], None]], "tuple[results.Results, Path]"]
"""Runs a study with these bars and this `Stop`. It prints lines for a person with the third argument."""


def run_and_tell(
    study: Study,
    out: Path,
    as_json: bool,
    callbacks: Sequence[Callback] = (),
    rounds: int | None = None,
) -> None:
    """Run a study with progress on the terminal, then print its answer and its arms, or JSON.

    rounds: as of `session.run_study`.
    """
    from securefl.storage.private_folder import CONFIG
    from securefl.study import session
    from securefl.study.folder import taken_on, with_rounds
    from securefl.study.round_events import calling

    whole = taken_on(study, out)
    if rounds is not None:
        whole = with_rounds(whole, rounds)
    fresh = calling(callbacks, whole.study.rounds)

    def play(bars: Bars, stop: Interruption, say: Callable[[str], None]) -> tuple[results.Results, Path]:
        return session.run_study(
            study, out, bars.tell, fresh=fresh, stop=stop, say=say, watch=bars.observe, rounds=rounds
        )

    play_and_tell(whole, out, as_json, play, go_on=f"securefl run {out / CONFIG} --out {out}")


def play_and_tell(
    study: Study,
    out: Path,
    as_json: bool,
    play: Play,
    *,
    go_on: str,
    more: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Have `play` run a study with progress on the terminal, then print its answer and its arms, or JSON.

    go_on: the command that resumes the run. more: further private entries of the JSON.
    """
    from rich.console import Console

    from securefl.storage.private_folder import ARMS, CONFIG
    from securefl.study import run_report
    from securefl.study.alarms import once
    from securefl.study.folder import require_own
    from securefl.study.own_code import told
    from securefl.study.progress import Bars
    from securefl.study.publication import ON_TERMINAL

    console = Console(stderr=True, quiet=as_json)
    began = time.perf_counter()
    if (out / CONFIG).exists():
        require_own(out, study)
    if (out / ARMS).exists():  # a run that was refused began none
        say(console, f"Going on with the run in {out}.")
    for sentence in told(study):
        say(console, sentence)
    computed(study, study.study.seeds, console)
    with stoppable(console, go_on) as stop, Bars(study, console) as bars:
        found, page = play(bars, stop, printing(console))
    tell(found, page, as_json, more)
    bought = run_report.bought(study, found)
    for sentence in once([*bought, *run_report.quiet(found)]):
        say(console, sentence)
    if bought and not found.alarms:  # with warnings it is printed in any case
        say(console, ON_TERMINAL)
    console.print(f"({time.perf_counter() - began:.0f} s)", highlight=False)
    end_told({"": found.alarms}, found.learnt)


def computed(study: Study, seeds: Iterable[int], console: Console) -> None:
    """Compute the features that a study needs, with a progress bar, before the run shows its own bars.

    Features are cached by content (`study.own_code`), so the run finds them.
    """
    if study.data.features is None:
        return
    from securefl.study import world
    from securefl.training import single_thread

    single_thread()
    if not draws(console):
        console.print("Computing features. They are cached, so you can stop and resume.", highlight=False)
    for seed in seeds:
        with bar(f"features, seed {seed}", console=console) as tell:
            world.build(study, seed, tell=tell)


@contextmanager
def bar(
    title: str, total: int | None = None, console: Console | None = None
) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, if that is a terminal.

    It gives a function that takes how much is done, and, if that was not known before, of how much.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = console or Console(stderr=True)
    with Progress(console=console, transient=True, disable=not draws(console)) as bars:
        task = bars.add_task(title, total=total)
        yield lambda done, of=total: bars.update(task, completed=done, total=of)


def printing(console: Console) -> Callable[[str], None]:
    """A function that prints lines on stderr, above the progress bars, even if the console is quiet."""
    from rich.console import Console

    # `--json` quiets the console, but the reaction to Ctrl-C is always printed.
    shown = Console(stderr=True) if console.quiet else console
    return lambda line: say(shown, line)


def plain(text: str) -> Text:
    """A text for a status line without markup, since a name in it may look like markup."""
    from rich.text import Text

    return Text(text)


@contextmanager
def stoppable(console: Console, go_on: str) -> Iterator[Interruption]:
    """Within, signals are requests to stop. Then it prints `go_on`, and exits with the signal's code.

    go_on: the command that resumes what is done within.
    """
    from securefl.study.interruption import Interrupted, Interruption

    try:
        with Interruption(printing(console)) as stop:
            yield stop
    except Interrupted as interrupted:
        end_stopped(interrupted.exit_code, go_on)


def end_stopped(code: int, go_on: str) -> NoReturn:
    """End a stopped command with this code, after the command that resumes it."""
    echo(f"Stopped; finished rounds are kept. Go on with: {go_on}", err=True)
    raise SystemExit(code)


def warn(alarms: Mapping[str, Iterable[Alarm]]) -> None:
    """Print warnings on stderr, with `--json` too, and say for whom they are.

    Those that differ in numbers alone are one. alarms: by the cell or part, "" for a run.
    """
    from securefl.study.alarms import once
    from securefl.study.publication import ON_TERMINAL

    told = once(
        (f"{place}{': ' if place else ''}{own.arm}", own.text.removeprefix(own.arm))
        for place, ones in alarms.items()
        for own in ones
    )
    for text in told:
        echo(f"Warning: {text}", err=True)
    if told:
        echo(ON_TERMINAL, err=True)


def end_told(alarms: Mapping[str, Iterable[Alarm]], learnt: bool) -> None:
    """Print warnings, and end the command with `ExitCode.UNLEARNT` if nothing was learnt."""
    warn(alarms)
    if not learnt:
        echo("Nothing was learnt, or an arm stopped early: the exit code is 4. See above.", err=True)
        raise SystemExit(ExitCode.UNLEARNT)


def tell(
    found: results.Results, page: Path, as_json: bool, more: Callable[[], Mapping[str, Any]] = dict
) -> None:
    """Print a finished run's answer and its arms, or JSON. more: further private entries of the JSON."""
    from securefl.report.sentences import answer
    from securefl.storage.private_folder import private_page
    from securefl.study import run_report
    from securefl.study.publication import PERSONAL, PERSONALLY_TESTED

    if as_json:
        said = run_report.told_json(found)
        said["private"] |= {"report": str(private_page(page)), **more()}
        echo_json({**said, "report": str(page)}, 2)
        return
    for sentence in filter(None, (answer(found.summary), found.price)):
        echo(sentence)
    echo_arms(*run_report.table(found))
    if any(arm.models == PERSONAL for arm in found.summary):
        echo(PERSONALLY_TESTED)
    if whose := run_report.observers(found):
        echo(whose)
    echo(found.accounting)
    echo_pages("Report", page)


def echo_pages(what: str, page: Path) -> None:
    """Print the path of a page that may be published, and of the one that is for this machine's user."""
    from securefl.storage.private_folder import private_page

    echo(f"{what}: {page}")
    echo(f"With all figures, not for publication: {private_page(page)}")


def echo_arms(head: Sequence[str], *rows: Sequence[str]) -> None:
    """Print a line for each arm. Long names are cut, so that a line has at most `LONGEST` characters."""
    others = [max(len(row[place]) for row in (head, *rows)) + 2 for place in range(1, len(head))]
    names = shortened([name for name, *_ in rows], max(_NAME, LONGEST - sum(others)))
    echo_table(head, [[name, *cells] for name, (_, *cells) in zip(names, rows, strict=True)])


def timestamped(name: str) -> Path:
    """The path of a new folder under runs/, with the time in its name."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
