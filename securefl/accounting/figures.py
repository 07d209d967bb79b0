"""Epsilon as people and scripts read it: one home for each form."""

from __future__ import annotations

from math import inf, isinf, isnan
from typing import Final

_SIGN: Final = "∞"


def brief(epsilon: float) -> str:
    """Beside a progress bar: two decimals, or the infinity sign."""
    return _SIGN if isinf(epsilon) else f"{epsilon:.2f}"


def short(epsilon: float) -> str:
    """In a column of finite ones: three digits, or a word."""
    return "infinite" if isinf(epsilon) else f"{epsilon:.3g}"


def in_words(epsilon: float) -> str:
    """In a table: three digits, "∞ (unprotected)" for infinity, "not known" for nan."""
    if isnan(epsilon):
        return "not known"
    return f"{_SIGN} (unprotected)" if isinf(epsilon) else f"{epsilon:.3g}"


def says_infinite(words: str) -> bool:
    """Whether this is what `in_words` says of infinity."""
    return _SIGN in words


def with_reason(epsilon: float, why: str) -> str:
    """In a sentence: three digits, or why it is infinite."""
    if isnan(epsilon):
        return "no party is named in `adversaries`"
    return f"{epsilon:.3g}" if epsilon < inf else f"infinite ({_SIGN}): {why}"


def asked_for(epsilon: float) -> str:
    """What noise was calibrated for: as it was written, or that there was none."""
    return "no noise" if isinf(epsilon) else f"{epsilon:g}"


def plain(number: float) -> float | str:
    """For JSON, which has no infinity: the number, or the text "inf" or "-inf"."""
    return str(float(number)) if isinf(number) else number
