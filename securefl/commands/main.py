"""The command line's entry point. It finds commands (entry points `securefl.commands`) and prints errors.

`exit_codes` has the exit codes. A command that a signal stopped ends with 128 plus the signal's number.
"""

from __future__ import annotations

import ast
import errno
import gc
import io
import logging
import sys
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

import securefl
from securefl.commands.exit_codes import ExitCode
from securefl.commands.printing import SENTENCE, Help, echo, spell_out
from securefl.core.errors import ConfigError, SecureFLError
from securefl.core.installed import entry_points
from securefl.core.memory import FULL_SEARCHES_APART, keep_freed_memory
from securefl.core.reading import near

_GROUPS: Final = {
    "Studies": [],
    "Matching": ["anchor", "declare", "encrypt", "keygen", "match", "profile", "reveal"],
    "Parties": ["flower", "party"],
    "Tools": ["audit", "calibrate", "ledger"],
}
"""The groups of commands in the help. A command that is in no other one is about studies."""
_EPILOG: Final = """\b
Example:  securefl demo
Complete names of commands, studies and tables, in bash (zsh and fish alike):
          eval "$(_SECUREFL_COMPLETE=bash_source securefl)"
"""


class _Context(click.Context):
    """The context of a command, whose help breaks no word."""

    formatter_class = Help


class Commands(click.Group):
    """Finds commands by entry point, and loads one only when it is called."""

    context_class = _Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._points())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        point = self._points().get(name)
        return None if point is None else _folding(point.load())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by group, with the first sentences of their docstrings, read from the source."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _GROUPS}
        for name, point in sorted(self._points().items()):
            title = next((title for title, names in _GROUPS.items() if name in names), "Studies")
            groups[title].append((name, _sentence(point)))
        for title, listed in groups.items():
            if listed:
                with formatter.section(title):
                    formatter.write_dl(listed)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = near(args[0], self._points())
            raise click.UsageError(f"{error.message.rstrip('.')}{hint}.", ctx) from None

    @staticmethod
    def _points() -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group="securefl.commands")}


def _folding(command: click.Command) -> click.Command:
    """The command, with help that breaks no word in it and in the commands of a group."""
    command.context_class = _Context
    for own in command.commands.values() if isinstance(command, click.Group) else ():
        _folding(own)
    return command


def _sentence(point: EntryPoint) -> str:
    """The first sentence of a command's help. A command is imported only if no function defines it."""
    # Read from the source, because importing all commands for the list takes seconds.
    spec = find_spec(point.module)
    # `importlib.abc.InspectLoader` would say which loaders have it, and takes a third of the time of --help.
    read = getattr(None if spec is None else spec.loader, "get_source", lambda module: None)
    for node in ast.parse(read(point.module) or "").body:
        if isinstance(node, ast.FunctionDef) and node.name == point.attr:
            return click.Command(None, help=ast.get_docstring(node)).get_short_help_str(SENTENCE)
    command: click.Command = point.load()
    return command.get_short_help_str(SENTENCE)


def version(mark: Path) -> str:
    """The version, with the commit that a package was built from. mark: the file that the build wrote."""
    commit = f" ({mark.read_text(encoding='utf-8').strip()})" if mark.is_file() else ""
    return f"{securefl.__version__}{commit}"


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)
@click.version_option(version(Path(securefl.__file__).with_name("commit.txt")), prog_name="securefl")
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
    spell_out()
    keep_freed_memory()
    # A full search for reference cycles looks through all loaded modules. Python makes five of them while
    # torch and the accountant load, and finds nothing. Searches among newer objects stay as they are.
    gc.set_threshold(*gc.get_threshold()[:2], FULL_SEARCHES_APART)
    try:
        _require_folder()
        # In standalone mode click would end the process, and this package's errors would be tracebacks.
        code = cli(prog_name="securefl", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else ExitCode.DONE)
    except SecureFLError as error:
        told = str(error)
    # A full disk or a missing file is shown as one line, not as a traceback.
    except OSError as error:
        told = _told(error)
    except UnicodeEncodeError as error:
        if error.encoding != sys.getfilesystemencoding():
            raise
        told = _unnamed(error)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        echo(shown.getvalue().rstrip("\n"), err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(ExitCode.INTERRUPTED)
    echo(f"securefl: {told}", err=True)
    sys.exit(ExitCode.ERROR)


def _require_folder() -> None:
    """Raises ConfigError if the working folder was deleted: libraries would end the process on import."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ConfigError(
            "Expected a working folder, got one that was deleted. Change to another one: cd ~"
        ) from None


def _unnamed(error: UnicodeEncodeError) -> str:
    """The file that this locale has no name for. Arms and parties have folders with names of their own."""
    return (
        f"Expected names of files in the encoding of this locale, {error.encoding}, got {error.object!r}. "
        "Set PYTHONUTF8=1, and run the same command again."
    )


def _told(error: OSError) -> str:
    """The error and its file, with advice if the disk is full or read-only."""
    what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"{what}: the disk is full. Make room, and run the same command again."
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return f"{what}: it cannot be written or read. Permit it, or name another place."
        case errno.ENOENT:
            return f"{what}. Check the path."
    return what
