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
        "μ": r"$\mu$",
        "ρ": r"$\rho$",
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

_NAME: Final = 26
"""The longest name, in characters, that stands in one line beside its numbers."""
_FITTED: Final = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"


def escaped(text: str) -> str:
    """The text as LaTeX shows it, in one line."""
    return " ".join(text.split()).translate(_COMMANDS)


def tabular(rows: Sequence[Sequence[str]]) -> str:
    """A table in LaTeX for the packages booktabs and graphicx. The first row is its head.

    Long names fold. A table that is still wider than its column is made smaller, to the column's width.
    """
    folds = max(len(row[0]) for row in rows) > _NAME
    head, *body = (folds * r"\raggedright " + " & ".join(map(escaped, row)) + r" \\" for row in rows)
    first = r"p{0.36\linewidth}" if folds else "l"
    columns = first + "r" * (len(rows[0]) - 1)
    lines = (_FITTED, rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", ""])
