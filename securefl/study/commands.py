"""The commands `run`, `report`, `data` and `studies`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console

from securefl.data import NAMES, data_folder, fetch
from securefl.errors import ConfigError
from securefl.study import results, session
from securefl.study.config import Study, parse, read, slug
from securefl.study.interruption import Interrupted, Interruption
from securefl.study.progress import Bars
from securefl.study.sweep import has_sweep
from securefl.texts import read_text


def packaged() -> Mapping[str, str]:
    """The studies that installed packages bring (entry-point group `securefl.studies`): name to TOML."""
    found = {}
    for point in entry_points(group="securefl.studies"):
        for file in files(point.value).iterdir():
            if file.name.endswith(".toml"):
                found[file.name.removesuffix(".toml")] = file.read_text(encoding="utf-8")
    return dict(sorted(found.items()))


def find(study: str) -> Study:
    """A study by path, or by the name of a packaged one."""
    text = text_of(study)
    if has_sweep(text):
        raise ConfigError(f"{study} has a section [sweep]; run it with: securefl sweep {study}")
    return read(Path(study)) if Path(study).is_file() else parse(text)


def text_of(study: str) -> str:
    """The TOML of a study by path, or by the name of a packaged one."""
    if Path(study).is_file():
        return read_text(Path(study))
    if study in packaged():
        return packaged()[study]
    raise ConfigError(
        f"No file and no packaged study {study!r}; packaged are {', '.join(packaged()) or 'none'}."
    )


def run_and_tell(study: Study, out: Path, as_json: bool) -> None:
    """Run a study with progress on the terminal; end with the three sentences, or with JSON."""
    console = Console(stderr=True, quiet=as_json)
    began = time.perf_counter()
    if (out / session.CONFIG).exists():
        console.print(f"Going on with the run in {out}.", highlight=False, markup=False, soft_wrap=True)
    say = printing(console)
    stop = Interruption(say)
    try:
        with stop, Bars(study, console) as bars:
            found, page = session.run_study(study, out, bars.tell, stop=stop, say=say)
    except Interrupted as interrupted:
        end_stopped(interrupted, f"securefl run {out / session.CONFIG} --out {out}")
    _end(found, page, as_json)
    for sentence in (*results.bought(study, found), *results.quiet(found)):
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    console.print(f"({time.perf_counter() - began:.0f} s)", highlight=False)


def printing(console: Console) -> Callable[[str], None]:
    """Prints lines for a person on stderr, above the bars of the console; also where that one is quiet."""
    shown = Console(stderr=True) if console.quiet else console
    return lambda line: shown.print(line, highlight=False, markup=False, soft_wrap=True)


def end_stopped(interrupted: Interrupted, go_on: str) -> NoReturn:
    """End a command that a signal stopped with the command that goes on, and the signal's exit code."""
    click.echo(f"Stopped; finished rounds are kept. Go on with: {go_on}", err=True)
    raise click.exceptions.Exit(interrupted.exit_code)


def _end(found: results.Results, page: Path, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({**results.as_json(found), "report": str(page)}, indent=2))
        return
    for sentence in results.sentences(found):
        click.echo(sentence)
    click.echo(f"Report: {page}")


@click.command(epilog="Example:  securefl run gas_turbine --out runs/gas")
@click.argument("study")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run folder; default runs/<name of the study>.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, and nothing else.")
def run(study: str, out: Path | None, as_json: bool) -> None:
    """Run STUDY, a TOML file or the name of a packaged study (see `securefl studies`).

    The run folder gets config, ledgers, checkpoints, tables (CSV), plots and report.html. Run the
    same command again after an interruption: it goes on after the last finished round, and no
    finished round releases anything again.
    """
    found = find(study)
    run_and_tell(found, out or Path("runs") / slug(found.study.name), as_json)


@click.command(epilog="Example:  securefl report runs/gas")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for page, tables and plots; default FOLDER.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, and nothing else.")
def report(folder: Path, out: Path | None, as_json: bool) -> None:
    """Write the report of the finished run in FOLDER again.

    With --out nothing is written in FOLDER, which may be on read-only media.
    """
    _end(*session.reopen(folder, out), as_json)


@click.command(epilog="Example:  securefl studies demo > my.toml")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the names as a JSON list.")
def studies(name: str | None, as_json: bool) -> None:
    """List the packaged studies, or print one as TOML to start your own from."""
    if name is None:
        click.echo(json.dumps(list(packaged())) if as_json else "\n".join(packaged()))
    elif name in packaged():
        click.echo(packaged()[name], nl=False)
    else:
        raise ConfigError(f"No packaged study {name!r}; packaged are {', '.join(packaged())}.")


@click.group(epilog="Example:  securefl data list")
def data() -> None:
    """Data sets: where they are looked for, and how to get them."""


@data.command(name="fetch", epilog="Example:  securefl data fetch mnist")
@click.argument("name", type=click.Choice(NAMES))
def fetch_command(name: str) -> None:
    """Download data set NAME into $SECUREFL_DATA (default: the user's cache) and check its SHA-256."""
    for path in fetch(name):
        click.echo(path)


@data.command(name="list", epilog="Example:  securefl data list --json")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_command(as_json: bool) -> None:
    """The data sets that `[data] source` can name, and the folder they are looked for in."""
    folder = str(data_folder())
    click.echo(json.dumps({"folder": folder, "names": NAMES}) if as_json else "\n".join(NAMES))
    if not as_json:
        click.echo(f"folder: {folder}", err=True)


def timestamped(name: str) -> Path:
    """A fresh folder under runs/."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
