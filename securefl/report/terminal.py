"""Text on a terminal: lines wrap between words, and rows of a table fold by column.

A pipe, a file or a notebook gets each line as it is, so that scripts read whole lines.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from itertools import groupby, zip_longest
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 2
"""Spaces between the columns of a table."""
_LEAST = 16
"""The narrowest that a folded column becomes. Below, a row's cells stand under each other."""

_WORD: Final = re.compile(r"\d+|[^\W\d]+|\W+")

LONGEST: Final = 100
"""The longest line of an arm, in characters."""


def draws(console: Console) -> bool:
    """Whether bars can be drawn: on a terminal, and in a notebook that has widgets."""
    # Without ipywidgets, rich warns at every redraw and draws nothing.
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


def columns_of(stream: IO[Any]) -> int | None:
    """The width of a terminal in characters; None if the stream is none."""
    if not stream.isatty():
        return None
    if (said := os.environ.get("COLUMNS", "")).isdecimal() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def wrapped(text: str, width: int | None, hang: int = 0) -> str:
    """The text with each longer line wrapped between words, under its own indent.

    A word that is longer than the line, such as a path, stays whole. hang: further spaces before all lines of
    one but the first.
    """
    if width is None:
        return text
    lines = ((line.lstrip(), line[: len(line) - len(line.lstrip())]) for line in text.split("\n"))
    return "\n".join(filled(line, width, under, under + " " * hang) for line, under in lines)


def say(console: Console, line: object) -> None:
    """Print a line for a person on a console, above its progress bars."""
    # Wrapped here, and left alone by rich, which would break a word that is longer than the line.
    whole = wrapped(str(line), console.width if console.is_terminal else None)
    console.print(whole, highlight=False, markup=False, soft_wrap=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """A table of text. If it is wider than the terminal, its widest column folds between words.

    If that column would become too narrow, each row's cells stand under each other, behind their names.
    """
    sizes = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    over = 0 if width is None else sum(sizes) + _GAP * (len(sizes) - 1) - width
    if over > 0:
        widest = sizes.index(max(sizes))
        words = max(len(word) for row in (head, *rows) for word in row[widest].split() or [""])
        if sizes[widest] - over < max(words, min(_LEAST, sizes[widest])):
            return "\n".join(wrapped(line, width) for row in rows for line in _stacked(head, row))
        sizes[widest] -= over
    return "\n".join(line for row in (head, *rows) for line in _folded(row, sizes))


def cut(text: str, most: int) -> str:
    """The text, or its two ends with an ellipsis between them. most: its length, at least 1."""
    head, tail = most // 2, (most - 1) // 2
    return text if len(text) <= most else f"{text[:head]}…{text[len(text) - tail :]}"


def shortened(names: Sequence[str], most: int) -> list[str]:
    """The names with at most `most` characters: longer ones are cut in the words that all of them have.

    What differs stays, unless it is too long itself.
    """
    words = {name: _WORD.findall(name) for name in names if len(name) > most}
    alike = set.intersection(*map(set, words.values())) if words else set()
    return [_cut_within(words[name], alike, most) if name in words else name for name in names]


def _cut_within(words: Sequence[str], alike: Collection[str], most: int) -> str:
    """These words of a name in one text, cut where words are `alike`, the longest run of them first."""
    runs = [(own, "".join(run)) for own, run in groupby(words, alike.__contains__)]
    texts = [text for _, text in runs]
    over = sum(map(len, texts)) - most
    for place in sorted(range(len(runs)), key=lambda place: -len(texts[place])):
        if runs[place][0]:
            left = cut(texts[place], max(1, len(texts[place]) - over))
            over -= len(texts[place]) - len(left)
            texts[place] = left
    return cut("".join(texts), most)


def _folded(row: Sequence[str], sizes: Sequence[int]) -> list[str]:
    cells = [
        textwrap.wrap(cell, size, break_long_words=False, break_on_hyphens=False)
        if len(cell) > size
        else [cell]
        for cell, size in zip(row, sizes, strict=True)
    ]
    return [
        (" " * _GAP).join(f"{part:<{size}}" for part, size in zip(line, sizes, strict=True)).rstrip()
        for line in zip_longest(*cells, fillvalue="")
    ]


def _stacked(head: Sequence[str], row: Sequence[str]) -> list[str]:
    return [row[0], *(f"  {name} {cell}" for name, cell in zip(head[1:], row[1:], strict=True) if cell)]


def filled(text: str, width: int, first: str = "", under: str = "") -> str:
    """The text as lines of at most this width, broken between words, behind `first` and then `under`."""
    if len(first) + len(text) <= width:
        return first + text
    return textwrap.fill(
        text,
        max(width, len(first) + 10),
        initial_indent=first,
        subsequent_indent=under,
        break_long_words=False,
        break_on_hyphens=False,
    )
