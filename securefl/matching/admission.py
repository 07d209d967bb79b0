"""Admission of received profiles: which of them can be scored together, and why the others cannot.

The order of arrival does not matter. A profile that does not fit loses only its own score. If the evaluator
states no options, profiles with different options are all refused: the first one does not decide.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from securefl.core.errors import DataError
from securefl.core.text_safety import folded
from securefl.matching.options import Options
from securefl.matching.sealed import Refused, Sealed

Reason = Callable[["Candidate"], str | None]
_SHOWN = 3


class NothingLeft(DataError):
    """No profile can be scored.

        >>> from securefl.matching import NothingLeft, Refused
        >>> why = "Expected 4 elements as in the baseline, got 3."
        >>> str(NothingLeft([Refused(place=0, label="p1", why=why)]))
        'No profile is left to match. p1: Expected 4 elements as in the baseline, got 3.'

    Attributes:
        refused: every profile with its reason.

    Raises nothing.
    """

    def __init__(self, refused: Sequence[Refused]) -> None:
        told = [f"{one.label}: {one.why}" for one in refused[:_SHOWN]]
        if len(refused) > _SHOWN:
            told.append(f"and {len(refused) - _SHOWN} more.")
        super().__init__(" ".join(["No profile is left to match.", *told]))
        self.refused = tuple(refused)


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A profile for this session and evaluator, with its header's declarations and its place."""

    place: int
    sealed: Sealed
    label: str
    options: Options
    length: int


def fitting(
    candidates: Sequence[Candidate], options: Options | None, length: int, model: object
) -> tuple[Options | None, list[Candidate], list[Refused]]:
    """The options, the candidates that can be scored together under them, and the refused ones.

    options: the evaluator's options. None: those of all candidates, if they agree. length: the baseline's
    length. model: the baseline's.
    """
    found, refused = list(candidates), list[Refused]()
    if options is None:
        found, refused = _sort_out(found, _disagrees(found))
        options = found[0].options if found else None
    if options is not None:
        found, more = _sort_out(found, differs_from(options, length, model))
        refused += more
    # Labels last: a profile that is refused for another reason must not block the label of an honest one.
    found, more = _sort_out(found, _comes_twice(found))
    return options, found, refused + more


def _sort_out(candidates: Sequence[Candidate], reason: Reason) -> tuple[list[Candidate], list[Refused]]:
    """Separate the candidates without a reason for refusal from the others."""
    kept, refused = [], []
    for one in candidates:
        if (why := reason(one)) is None:
            kept.append(one)
        else:
            refused.append(Refused(place=one.place, label=one.label, why=why))
    return kept, refused


def _comes_twice(candidates: Sequence[Candidate]) -> Reason:
    """Refuse every candidate whose label occurs twice: the evaluator cannot tell whose label it is."""
    there: dict[str, list[str]] = {}
    for candidate in candidates:
        there.setdefault(folded(candidate.label), []).append(candidate.label)

    def reason(one: Candidate) -> str | None:
        alike = there[folded(one.label)]
        if len(alike) == 1:
            return None
        told = " and ".join(map(repr, sorted(set(alike))))
        return (
            f"Expected labels that differ by more than case, got {told} of {len(alike)} profiles. A label "
            "is the name of the profile's file: rename the file (label= in Python), and encrypt it again."
        )

    return reason


def _disagrees(candidates: Sequence[Candidate]) -> Reason:
    """Refuse all candidates unless they have the same options."""
    headers = [_public(one.options) for one in candidates]
    differing = [
        name
        for name in dict.fromkeys(name for header in headers for name in header)
        if any(header.get(name) != headers[0].get(name) for header in headers)
    ]

    def reason(one: Candidate) -> str | None:
        if not differing:
            return None
        own = _public(one.options)
        # Shortened: options come from other parties' files and may be long.
        values = ", ".join(f"{name} {reprlib.repr(own.get(name))}" for name in differing)
        return (
            f"Expected the same options of all profiles, got {values} here, and others elsewhere. State the "
            "options: --variant, --params, --anchor and bounds, or options=."
        )

    return reason


def differs_from(options: Options, length: int, model: object) -> Reason:
    """Refuse candidates with other options than these, or of another length or model than the baseline."""
    expected = _public(options)

    def reason(one: Candidate) -> str | None:
        own = _public(one.options)
        differing = [name for name in {**own, **expected} if own.get(name) != expected.get(name)]
        if differing:
            return f"Expected the matched options, got another {', '.join(differing)}. Encrypt it again."
        if one.length != length:
            return f"Expected {length} elements as in the baseline, got {one.length}."
        return differing_model(one.sealed.model, model)

    return reason


def _public(options: Options) -> dict[str, Any]:
    return {name: value for name, value in options.to_header(0).items() if name != "length"}


def differing_model(own: object, other: object) -> str | None:
    """Why two profiles cannot be compared, if each names a model."""
    if own and other and own != other:
        return "Expected a profile of the same model, got one of another. Profile by the file of all parties."
    return None
