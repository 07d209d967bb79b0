"""Formatting of epsilon for people and scripts: one function for each form."""

from __future__ import annotations

from math import inf, isinf, isnan
from typing import Final

_SIGN: Final = "∞"


def brief(epsilon: float) -> str:
    """Format epsilon for a progress bar: two decimals, or the infinity sign."""
    return _SIGN if isinf(epsilon) else f"{epsilon:.2f}"


def short(epsilon: float) -> str:
    """Format epsilon for a column of finite numbers: three digits, or "infinite"."""
    return "infinite" if isinf(epsilon) else f"{epsilon:.3g}"


def in_words(epsilon: float) -> str:
    """Format epsilon for a table: three digits, "∞ (non-private)" for infinity, "not known" for nan."""
    if isnan(epsilon):
        return "not known"
    return f"{_SIGN} (non-private)" if isinf(epsilon) else f"{epsilon:.3g}"


def says_infinite(words: str) -> bool:
    """Whether `in_words` made these words from infinity."""
    return _SIGN in words


def with_reason(epsilon: float, why: str) -> str:
    """Format epsilon for a sentence: three digits, or infinity with its reason."""
    if isnan(epsilon):
        return "no party is named in `adversaries`"
    return f"{epsilon:.3g}" if epsilon < inf else f"infinite ({_SIGN}): {why}"


def above(epsilon: float, bound: float) -> str:
    """Format an epsilon that exceeds a bound: four digits, or as many as show that it does."""
    said = f"{epsilon:.4g}"
    return said if float(said) > bound else f"{epsilon:.17g}"


def asked_for(epsilon: float) -> str:
    """Format the epsilon for which noise was calibrated; "none" for infinity."""
    return "none" if isinf(epsilon) else f"{epsilon:g}"


def plain(number: float) -> float | str:
    """Return the number, or the text "inf" or "-inf", because JSON has no infinity."""
    return str(float(number)) if isinf(number) else number
