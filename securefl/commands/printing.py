"""What commands print: lines for a person, and help, neither of which breaks a word on a terminal.

A terminal whose encoding lacks a character gets its name, or its number as in JSON and TOML.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import click

from securefl.core.text_safety import escaped
from securefl.report import terminal
from securefl.report.terminal import filled, wrapped

SENTENCE = 120
"""The longest help sentence that a list of commands shows whole."""

_NAMES: Final = {
    "ε": "epsilon",
    "δ": "delta",
    "\N{INFINITY}": "inf",
    **{"±": "+-", "≥": ">=", "²": "2", "×": "x", "–": "-", "−": "-", "…": "..."},
    **dict.fromkeys("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "*"),  # rich's turning wheel; its bars it draws in ASCII by itself
}
_SPELT: Final = "securefl_spelt"
_BY_DEFAULT: Final = ("strict", "surrogateescape", "backslashreplace")
"""What Python does by default, under some locale, where an encoding lacks a character."""


def spell_out() -> None:
    """Make stdout and stderr write in ASCII what their encoding lacks, in place of an error."""
    for stream in (sys.stdout, sys.stderr):
        # Another way, such as `replace`, was chosen by the user (PYTHONIOENCODING).
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _BY_DEFAULT:
            only = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding=_SPELT if only else None, errors=_SPELT)


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_NAMES.get(c) or json.dumps(c)[1:-1] for c in lacking), error.end


def _ascii(name: str) -> codecs.CodecInfo | None:
    """ASCII under a name of our own: click takes "ascii" for a mistake, and writes UTF-8 in its place."""
    known = codecs.lookup("ascii")
    make = known.incrementalencoder, known.incrementaldecoder
    return codecs.CodecInfo(*known[:2], None, None, *make, name) if name == _SPELT else None


codecs.register_error(_SPELT, _spelt)
codecs.register(_ascii)


def echo(text: object, *, err: bool = False) -> None:
    """Print a text for a person on stdout or stderr. JSON and other text for programs needs `click.echo`.

    A text may quote a file or a peer, so no character in it controls the terminal.
    """
    width = terminal.columns_of(sys.stderr if err else sys.stdout)
    click.echo(terminal.wrapped(escaped(str(text)), width), err=err)


def echo_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table for a person on stdout."""
    click.echo(escaped(terminal.table(head, rows, terminal.columns_of(sys.stdout))))


def echo_json(value: object, indent: int | None = None) -> None:
    """Print a value for programs on stdout."""
    click.echo(json.dumps(value, indent=indent))


class Help(click.HelpFormatter):
    """Lays out the help of a command. Unlike click's own, it breaks no word, not even at a hyphen."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        head = f"{' ' * self.current_indent}{'Usage: ' if prefix is None else prefix}{prog} "
        self.write(filled(args, self.width, head, " " * min(len(head), 8)) or head.rstrip())
        self.write("\n")

    def write_text(self, text: str) -> None:
        indent = " " * self.current_indent
        blocks = []
        for block in re.split(r"\n\s*\n", text):
            # click's mark of lines that are not to be joined
            first, *lines = block.lstrip().split("\n")
            if first.strip() == "\b":
                blocks.append(wrapped("\n".join(f"{indent}{line}" for line in lines), self.width, 4))
            else:
                blocks.append(
                    filled(" ".join(line.strip() for line in block.split("\n")), self.width, indent, indent)
                )
        self.write("\n\n".join(blocks) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        listed = list(rows)
        start = min(max(len(name) for name, _ in listed), col_max) + col_spacing
        margin = " " * self.current_indent
        for name, text in listed:
            beside = len(name) <= start - col_spacing
            head = f"{margin}{name:<{start}}" if beside else " " * (len(margin) + start)
            if not beside:
                self.write(wrapped(f"{margin}{name}", self.width) + "\n")
            folded = filled(text, self.width, head, " " * (len(margin) + start))
            self.write((folded or f"{margin}{name}").rstrip() + "\n")


class Group(click.Group):
    """A group of commands, whose help has the whole first sentence of each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(SENTENCE)) for name in names])
