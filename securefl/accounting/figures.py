"""Epsilon as people and scripts read it: one home for each form."""

from __future__ import annotations

from math import inf, isinf, isnan


def brief(epsilon: float) -> str:
    """Beside a progress bar: two decimals, or the infinity sign."""
    return "∞" if isinf(epsilon) else f"{epsilon:.2f}"


def in_words(epsilon: float) -> str:
    """In a table: three digits, "∞ (unprotected)" for infinity, "not known" for nan."""
    if isnan(epsilon):
        return "not known"
    return "∞ (unprotected)" if isinf(epsilon) else f"{epsilon:.3g}"


def with_reason(epsilon: float, why: str) -> str:
    """In a sentence: three digits, or why it is infinite."""
    if isnan(epsilon):
        return "no party is named in `against`"
    return f"{epsilon:.3g}" if epsilon < inf else f"infinite (∞): {why}"


def plain(epsilon: float) -> float | str:
    """For JSON, which has no infinity: the number, or the text "inf"."""
    return "inf" if epsilon == inf else epsilon
