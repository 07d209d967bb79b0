"""The command `party coordinate`: runs the study of a server's folder with parties on sockets or Flower.

Here is also the argument FOLDER of all commands of the group `party`.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import distribution
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from securefl.commands.choices import FILE, with_json
from securefl.commands.exit_codes import ExitCode
from securefl.commands.printing import echo
from securefl.commands.telling import end_stopped, play_and_tell, with_trust
from securefl.core.errors import ConfigError
from securefl.core.installed import needing
from securefl.storage.inputs import kind_word, shown

if TYPE_CHECKING:
    from securefl.study.interruption import Interruption
    from securefl.study.progress import Bars
    from securefl.study.results import Results

_WAIT, _WAIT_FLOWER = 60.0, 300.0
"""Seconds. Nodes of Flower start a process for each message."""


def _require_folder(context: click.Context, parameter: click.Parameter, folder: Path) -> Path:
    """The folder, if this user may use it. Not by click, which knows no remedy and exits with 2."""
    expected = f"Expected a party's folder, got {shown(folder)}"
    make = "Name the folder that `securefl party init` made, or make one with it."
    me = f"user {os.getuid()} may not"
    owner = "Run the command as the party's owner."
    try:
        found = folder.stat()
    except PermissionError:
        raise ConfigError(f"{expected}, in a folder that {me} enter. {owner}") from None
    except OSError as error:
        raise ConfigError(f"{expected}: {error.strerror}. {make}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{expected}, which is {kind_word(found.st_mode)}. {make}")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"{expected} of user {found.st_uid}, which {me} read. {owner}")
    return folder


party_folder: Final = click.argument("folder", type=FILE, callback=_require_folder)
"""Adds the argument FOLDER to a command of the group `party`. ConfigError unless it is a folder to use."""


@click.command(
    epilog="""\b
Example:  securefl party coordinate server --out runs/hospitals
          securefl party coordinate server --parties /srv/parties --wait 600
          securefl party coordinate server --socket client-0001=/srv/b.sock
          securefl party coordinate server --flower here"""
)
@party_folder
@click.option(
    "--out",
    type=FILE,
    help="Run folder; default runs/<name of the study>.",
)
@click.option(
    "--parties",
    type=FILE,
    help="A folder with the parties' folders by name, such as PARTIES/client-0000; default: beside FOLDER.",
)
@click.option(
    "--socket",
    "sockets",
    multiple=True,
    metavar="NAME=PATH",
    help="The socket of one party, in place of that in --parties; may be repeated.",
)
@click.option(
    "--flower",
    metavar="SUPERLINK",
    help="Reach the parties over this SuperLink of $FLWR_HOME/config.toml, and not over sockets.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0, 10**7),
    help="Seconds to wait: at the start for all parties, later only if too few are present; default "
    f"{_WAIT:g}, with --flower {_WAIT_FLOWER:g}.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(0.1, 10**7),
    default=3600.0,
    show_default=True,
    help="Seconds for one reply of a party. One of them includes its training.",
)
@with_trust
@with_json("Print the results as JSON, and nothing else.")
def coordinate(
    folder: Path,
    out: Path | None,
    parties: Path | None,
    sockets: tuple[str, ...],
    flower: str | None,
    wait: float | None,
    deadline: float,
    trusted: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Run, or resume, the study of the server's FOLDER with parties that serve on sockets, or over Flower.

    Each round prints who took no part, since when, and the public reason. Why a client sent no value stands
    in that client's own `securefl party status`, and is never sent.

    A round begins only if a sum can open over the parties that are present. If too few are present in time,
    the command stops with exit code 5: the round does not count, and nothing is charged for it. Run the same
    command again to go on. A party that comes back takes part from the next round on.

    Otherwise progress, run folder, report and exit codes are those of `securefl run`. A party on another
    machine has its socket here by socat over ssh: see "Three machines" in docs/deployment.md.

    With --flower the command submits a packaged app to the SuperLink. The app runs the rounds with the keys
    in FOLDER, and ends with this command. The SuperLink runs on this machine, as this user. Each party has a
    node: flower-supernode --node-config 'securefl-party="client-0001" securefl-socket="/srv/b.sock"' ...
    If another user serves the party, its node names that user too: securefl-user="party-b".
    """
    from securefl.deployment.coordinator import others_of, run_deployed
    from securefl.deployment.folder import STUDY
    from securefl.deployment.gathering import RunLost, TooFewParties
    from securefl.study import config
    from securefl.study.config import slug
    from securefl.training import single_thread

    if flower is not None and (parties is not None or sockets):
        raise click.UsageError("Name sockets (--parties, --socket) or a SuperLink (--flower), not both.")
    seconds = (_WAIT if flower is None else _WAIT_FLOWER) if wait is None else wait
    if isnan(seconds + deadline):  # in any range of click's, and no wait would ever end
        raise click.UsageError(f"Expected numbers of seconds, got {seconds} and {deadline}.")
    single_thread()
    names = others_of(folder)
    if flower is None:
        paths = _paths(names, folder, parties, sockets)
    else:
        with needing("flower", "for --flower"):
            distribution("flwr")
    study = config.of_folder(folder / STUDY, trusted)
    home = out or Path("runs") / slug(study.study.name)
    _require_run_folder(home)

    deployed = partial(run_deployed, folder, home, trusted=trusted)

    def play(bars: Bars, stop: Interruption, say: Callable[[str], None]) -> tuple[Results, Path]:
        if flower is None:
            from securefl.deployment.sockets import SocketExchange

            exchange = SocketExchange(paths, deadline=deadline, say=say)
            return deployed(exchange, tell=bars.tell, say=say, stop=stop, wait=seconds)
        from securefl.flower import submitting

        submit = partial(submitting.submit, flower)
        tell = partial(bars.tell, study.arms[0], study.study.seeds[0])
        submitting.follow(
            folder,
            home,
            submit,
            wait=seconds,
            deadline=deadline,
            tell=tell,
            say=say,
            stop=stop,
            trusted=trusted,
        )
        # All rounds are on record: nobody is asked, and what was said is not said again.
        return deployed(lambda requests, entering: {}, say=lambda line: None, stop=stop)

    options = {"--parties": parties, "--flower": flower, "--wait": seconds, "--deadline": deadline}
    again = _again(folder, home, options, sockets)
    try:
        play_and_tell(study, home, as_json, play, go_on=again, more=lambda: _spent(home))
    except (TooFewParties, RunLost) as error:
        echo(f"securefl: {error}", err=True)
        end_stopped(ExitCode.TOO_FEW if isinstance(error, TooFewParties) else ExitCode.ERROR, again)


def _require_run_folder(home: Path) -> None:
    """Raise ConfigError for a file, and for a party's folder, which also has a study."""
    from securefl.deployment.plan_file import NAME

    found = "a party's folder" if (home / NAME).exists() else "a file"
    if (home / NAME).exists() or (home.exists() and not home.is_dir()):
        raise ConfigError(f"Expected a run folder, got {home}, which is {found}. Choose another with --out.")


def _again(folder: Path, home: Path, options: Mapping[str, object], sockets: Sequence[str]) -> str:
    """The command that goes on with this run."""
    words = ["securefl", "party", "coordinate", str(folder), "--out", str(home)]
    for name, value in options.items():
        words += [] if value is None else [name, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join([*words, *(word for text in sockets for word in ("--socket", text))])


def _spent(home: Path) -> dict[str, Any]:
    """What the run asked of each client's ledger, beside what the server counts, for the JSON."""
    from securefl.deployment.spending import read

    return {"spending": [one.words() for one in read(home)]}


def _paths(
    names: Sequence[str], folder: Path, parties: Path | None, sockets: Sequence[str]
) -> dict[str, Path]:
    """The socket of each party."""
    from securefl.deployment.folder import SOCKET

    if parties is not None and not parties.is_dir():
        raise ConfigError(
            f"Expected a folder with the parties' folders, got {parties}, which is none. Name it with "
            "--parties, or each socket with --socket NAME=PATH."
        )
    beside = parties or folder.resolve().parent
    found = {name: beside / name / SOCKET for name in names}
    for text in sockets:
        name, equals, path = text.partition("=")
        if not equals or not path or not name:
            raise click.BadParameter(f"Expected NAME=PATH, got {text!r}.", param_hint="--socket")
        if name not in found:
            raise ConfigError(
                f"Expected --socket with a party of the roster ({', '.join(names)}), got {name!r}. Name one "
                "of them, or pin a roster that has it."
            )
        found[name] = Path(path)
    return found
