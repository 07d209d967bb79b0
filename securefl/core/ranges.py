"""Ranges of numbers, stated in the types of frozen dataclasses.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True, kw_only=True)
... class Draw(Ranged):
...     share: Annotated[float, Range("(0, 1]")]
>>> Draw(share=2.0)
Traceback (most recent call last):
ValueError: Expected share in (0, 1], got 2.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """The numbers between two ends, as mathematics writes them: "(0, 1]", "[2^-10, inf)". None holds nan.

    Raises nothing.

    >>> from securefl.protocols.averaging import Range
    >>> 0.0 in Range("(0, 1]"), 1.0 in Range("(0, 1]")
    (False, True)
    """

    words: str

    def __contains__(self, value: float) -> bool:
        low, high = map(_number, self.words[1:-1].split(","))
        above = value > low if self.words[0] == "(" else value >= low
        below = value < high if self.words[-1] == ")" else value <= high
        return above and below

    def __str__(self) -> str:
        return self.words


def _number(words: str) -> float:
    base, _, power = words.partition("^")
    return float(base) ** int(power or 1)


Fraction = Annotated[float, Range("(0, 1]")]
Positive = Annotated[float, Range("(0, inf)")]
Decay = Annotated[float, Range("[0, 1)")]
Weight = Annotated[float, Range("[0, inf)")]
Probability = Annotated[float, Range("[0, 1]")]
Count = Annotated[int, Range("[1, inf)")]
Passes = Annotated[int, Range("[1, 10^4]")]
"""Over a client's records in a round: their mini-batches are listed before the first one."""


class Ranged:
    """A frozen dataclass whose values lie in the `Range` or `Literal` of their types.

    The range of a list is that of each entry. What has a range is a number, and whole if its type is `int`.
    None stands for a value that was left out. Raises ValueError for another value. It names the field.
    """

    def __post_init__(self) -> None:
        for name, allowed in _allowed(cast(Any, type(self))).items():
            value = getattr(self, name)
            for one in value if isinstance(value, tuple) else (value,):
                if one is not None and not any(_holds(each, one) for each in allowed):
                    raise ValueError(f"Expected {name} in {allowed[0][1]}, got {one!r}.")


Allowed = tuple[type[Any], Range | tuple[Any, ...]]
"""The class of a value, and the range or the words that it may be."""


def _holds(allowed: Allowed, value: Any) -> bool:
    kind, words = allowed
    if isinstance(words, tuple):
        return isinstance(value, str | bool | int) and value in words
    number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return number and value in words


@cache
def _allowed(kind: type[Any]) -> dict[str, list[Allowed]]:
    def found(hint: Any) -> Iterator[Allowed]:
        if get_origin(hint) is Literal:
            yield str, get_args(hint)
        elif get_origin(hint) is Annotated:
            yield from ((hint.__origin__, mark) for mark in hint.__metadata__ if isinstance(mark, Range))
        else:  # of a union, or of a tuple's entries
            for part in get_args(hint):
                yield from found(part)

    hints = get_type_hints(kind, include_extras=True).items()
    truth: list[Allowed] = [(bool, (False, True))]
    return {name: own for name, hint in hints if (own := truth if hint is bool else [*found(hint)])}
