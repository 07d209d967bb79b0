"""Text and tables in LaTeX. Names come from files, so nothing in them reaches LaTeX as a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from securefl.accounting.figures import SIGN

_COMMANDS: Final = str.maketrans(
    {
        **{char: f"\\{char}" for char in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': "''",
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
        "σ": r"$\sigma$",
        SIGN: r"$\infty$",
        "±": r"$\pm$",
        "≤": r"$\le$",
        "−": "$-$",
        "–": "--",
        "‡": r"\ddag{}",
        "\u202f": r"\,",
        "ŷ": r"$\hat{y}$",
    }
)


def escaped(text: str) -> str:
    """The text as LaTeX shows it, in one line."""
    return " ".join(text.split()).translate(_COMMANDS)


def tabular(rows: Sequence[Sequence[str]]) -> str:
    """A table in LaTeX with rules of the package booktabs. The first row is its head."""
    head, *body = (" & ".join(map(escaped, row)) + r" \\" for row in rows)
    columns = "l" + "r" * (len(rows[0]) - 1)
    lines = (rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
