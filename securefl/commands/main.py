"""The command line: commands of the entry-point group `securefl.commands`, and what errors look like.

Exit codes: 0 done, 1 an error this package explains, 2 wrong usage, 128 plus the signal's number where one
stopped the command (130 Ctrl-C, 143 SIGTERM). `run`, `demo`, `report`, `sweep` and `reproduce` have one of
their own: 4 where all rounds are played, and an arm learnt nothing (`telling.UNLEARNT`). `match` has two: 3
where it refused some profiles, 2 where it refused all.
"""

from __future__ import annotations

import ast
import errno
import logging
import sys
from importlib.abc import InspectLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

import click

from securefl import __version__
from securefl.core.errors import SecureFLError
from securefl.core.text_safety import escaped

_SENTENCE = 120
"""The longest line of help on a command that is shown whole."""


class Commands(click.Group):
    """Finds commands by entry point, and loads one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._points())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        point = self._points().get(name)
        command: click.Command | None = None if point is None else point.load()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with the first sentences of their docstrings, read off the source."""
        points = sorted(self._points().items())
        with formatter.section("Commands"):
            formatter.write_dl([(name, _sentence(point)) for name, point in points])

    @staticmethod
    def _points() -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group="securefl.commands")}


def _sentence(point: EntryPoint) -> str:
    """What a command does, in a sentence. A command that no function of its module defines is loaded."""
    # To load a command may take seconds, and the list has all of them.
    spec = find_spec(point.module)
    loader = None if spec is None else spec.loader
    source = loader.get_source(point.module) if isinstance(loader, InspectLoader) else None
    for node in ast.parse(source or "").body:
        if isinstance(node, ast.FunctionDef) and node.name == point.attr:
            return click.Command(None, help=ast.get_docstring(node)).get_short_help_str(_SENTENCE)
    command: click.Command = point.load()
    return command.get_short_help_str(_SENTENCE)


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  securefl demo",
)
@click.version_option(__version__, prog_name="securefl")
@click.option(
    "-v", "--verbose", is_flag=True, help="Print the log on stderr: a line for each finished round."
)
def cli(verbose: bool) -> None:
    """Federated learning in which nothing leaves a client unprotected and unaccounted."""
    if verbose:
        _log_to_stderr()


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    # commands print what the log warns of in any case
    handler.addFilter(lambda record: record.levelno < logging.WARNING)
    log = logging.getLogger("securefl")
    log.setLevel(logging.INFO)
    log.addHandler(handler)


def main() -> None:
    """Run the command line; errors of this package become one line and exit code 1."""
    try:
        # Not standalone: click would end the process itself, and errors of this package would be tracebacks.
        code = cli(prog_name="securefl", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except SecureFLError as error:
        click.echo(escaped(f"securefl: {error}"), err=True)
        sys.exit(1)
    # Disks fill and files vanish: for a person that is a line, not a traceback.
    except OSError as error:
        click.echo(escaped(f"securefl: {_told(error)}"), err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)


def _told(error: OSError) -> str:
    """What is wrong with which file, and what to do where a disk is full or read-only."""
    what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"{what}: the disk is full. Make room, and run the same command again."
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return f"{what}: it cannot be written or read. Permit it, or name another place."
    return what
