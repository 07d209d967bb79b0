"""Formatting of epsilon and of counts for people and scripts: one function for each form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from math import inf, isinf, isnan
from typing import Any, Final

SIGN: Final = "∞"


def brief(epsilon: float) -> str:
    """Format epsilon for a progress bar: two decimals, or the infinity sign."""
    return SIGN if isinf(epsilon) else f"{epsilon:.2f}"


def short(epsilon: float) -> str:
    """Format epsilon for a column of finite numbers: three digits, or "infinite"."""
    return "infinite" if isinf(epsilon) else f"{epsilon:.3g}"


def in_words(epsilon: float) -> str:
    """Format epsilon for a table: three digits, "∞ (non-private)" for infinity, "not known" for nan."""
    if isnan(epsilon):
        return "not known"
    return f"{SIGN} (non-private)" if isinf(epsilon) else f"{epsilon:.3g}"


def says_infinite(words: str) -> bool:
    """Whether `in_words` made these words from infinity."""
    return SIGN in words


def with_reason(epsilon: float, why: str) -> str:
    """Format epsilon for a sentence: three digits, or infinity with its reason."""
    if isnan(epsilon):
        return "no party is named in `adversaries`"
    return f"{epsilon:.3g}" if epsilon < inf else f"infinite ({SIGN}): {why}"


def above(epsilon: float, bound: float) -> str:
    """Format an epsilon that exceeds a bound: four digits, or as many as show that it does."""
    said = f"{epsilon:.4g}"
    return said if float(said) > bound else f"{epsilon:.17g}"


def asked_for(epsilon: float) -> str:
    """Format the epsilon for which noise was calibrated; "none" for infinity."""
    return "none" if isinf(epsilon) else f"{epsilon:g}"


def counted(count: int, name: str, names: str = "") -> str:
    """A number of things, such as "1 round". names: their plural if it is not `name` with an s."""
    return f"{count} {name if count == 1 else names or name + 's'}"


def plain(value: Any) -> Any:
    """A value as JSON has it: infinity as the text "inf" or "-inf", nan as None, an object by its fields."""
    match value:
        case float():
            return None if isnan(value) else str(float(value)) if isinf(value) else value
        case Mapping():
            return {str(key): plain(own) for key, own in value.items()}
        case list() | tuple():
            return [plain(own) for own in value]
    return plain(vars(value)) if is_dataclass(value) else value
