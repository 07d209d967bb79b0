"""The command line's entry point. It finds commands (entry points `securefl.commands`) and prints errors.

`exit_codes` has the exit codes. A command that a signal stopped ends with 128 plus the signal's number.
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
from securefl.commands.exit_codes import ExitCode
from securefl.core.errors import SecureFLError
from securefl.core.text_safety import escaped

_SENTENCE = 120
"""The longest help sentence that the list of commands shows whole."""


class Commands(click.Group):
    """Finds commands by entry point, and loads one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._points())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        point = self._points().get(name)
        command: click.Command | None = None if point is None else point.load()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the first sentences of their docstrings, read from the source."""
        points = sorted(self._points().items())
        with formatter.section("Commands"):
            formatter.write_dl([(name, _sentence(point)) for name, point in points])

    @staticmethod
    def _points() -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group="securefl.commands")}


def _sentence(point: EntryPoint) -> str:
    """The first sentence of a command's help. A command is imported only if no function defines it."""
    # Read from the source, because importing all commands for the list takes seconds.
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
    """Privacy-hardened federated learning: every value that leaves a client is protected and accounted."""
    if verbose:
        _log_to_stderr()


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    # Commands always print warnings themselves.
    handler.addFilter(lambda record: record.levelno < logging.WARNING)
    log = logging.getLogger("securefl")
    log.setLevel(logging.INFO)
    log.addHandler(handler)


def main() -> None:
    """Run the command line. An error of this package becomes one line and exit code 1."""
    try:
        # In standalone mode click would end the process, and this package's errors would be tracebacks.
        code = cli(prog_name="securefl", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else ExitCode.DONE)
    except SecureFLError as error:
        click.echo(escaped(f"securefl: {error}"), err=True)
        sys.exit(ExitCode.ERROR)
    # A full disk or a missing file is shown as one line, not as a traceback.
    except OSError as error:
        click.echo(escaped(f"securefl: {_told(error)}"), err=True)
        sys.exit(ExitCode.ERROR)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(ExitCode.INTERRUPTED)


def _told(error: OSError) -> str:
    """The error and its file, with advice if the disk is full or read-only."""
    what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"{what}: the disk is full. Make room, and run the same command again."
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return f"{what}: it cannot be written or read. Permit it, or name another place."
    return what
