"""The command `party coordinate`: runs the study of a server's folder with parties on sockets."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from securefl.commands.exit_codes import ExitCode
from securefl.commands.telling import play_and_tell
from securefl.core.text_safety import escaped

if TYPE_CHECKING:
    from securefl.study.interruption import Interruption
    from securefl.study.progress import Bars
    from securefl.study.results import Results


@click.command(
    epilog="""\b
Example:  securefl party coordinate server --out runs/hospitals
          securefl party coordinate server --parties /srv/parties --wait 600
          securefl party coordinate server --socket client-0001=/srv/b.sock"""
)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run folder; default runs/<name of the study>.",
)
@click.option(
    "--parties",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
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
    "--wait",
    type=click.FloatRange(0, 10**7),
    default=60.0,
    show_default=True,
    help="Seconds to wait: at the start for all parties, later only if too few are present.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(0.1, 10**7),
    default=3600.0,
    show_default=True,
    help="Seconds for one reply of a party. One of them includes its training.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, and nothing else.")
def coordinate(
    folder: Path,
    out: Path | None,
    parties: Path | None,
    sockets: tuple[str, ...],
    wait: float,
    deadline: float,
    as_json: bool,
) -> None:
    """Run, or resume, the study of the server's FOLDER with parties that serve on sockets.

    Each round prints who took no part, since when, and the public reason. Why a client sent no value stands
    in that client's own `securefl party status`, and is never sent.

    A round begins only if a sum can open over the parties that are present. If too few are present in time,
    the command stops with exit code 5: the round does not count, and nothing is charged for it. Run the same
    command again to go on. A party that comes back takes part from the next round on.

    Otherwise progress, run folder, report and exit codes are those of `securefl run`. A party on another
    machine has its socket here if SSH forwards it: ssh -N -L /srv/b.sock:/srv/b/run/party.sock host-b.
    """
    from securefl.deployment.coordinator import others_of, run_deployed
    from securefl.deployment.folder import STUDY
    from securefl.deployment.gathering import TooFewParties
    from securefl.deployment.sockets import SocketExchange
    from securefl.study import config
    from securefl.study.config import slug
    from securefl.training import single_thread

    single_thread()
    names = others_of(folder)
    exchange = SocketExchange(_paths(names, parties or folder.resolve().parent, sockets), deadline=deadline)
    study = config.read(folder / STUDY)
    home = out or Path("runs") / slug(study.study.name)

    def play(bars: Bars, stop: Interruption, say: Callable[[str], None]) -> tuple[Results, Path]:
        return run_deployed(folder, home, exchange, tell=bars.tell, stop=stop, say=say, wait=wait)

    again = _again(folder, home, {"--parties": parties, "--wait": wait, "--deadline": deadline}, sockets)
    try:
        play_and_tell(study, home, as_json, play, go_on=again, more=lambda: _spent(home))
    except TooFewParties as error:
        click.echo(escaped(f"securefl: {error}"), err=True)
        click.echo(f"Stopped; finished rounds are kept. Go on with: {again}", err=True)
        raise click.exceptions.Exit(ExitCode.TOO_FEW) from None


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


def _paths(names: Sequence[str], parties: Path, sockets: Sequence[str]) -> dict[str, Path]:
    """The socket of each party."""
    from securefl.deployment.folder import SOCKET

    found = {name: parties / name / SOCKET for name in names}
    for text in sockets:
        name, equals, path = text.partition("=")
        if not equals or not path or name not in found:
            raise click.BadParameter(
                f"Expected NAME=PATH with a party of the roster ({', '.join(names)}), got {text!r}.",
                param_hint="--socket",
            )
        found[name] = Path(path)
    return found
