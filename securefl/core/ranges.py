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


class Ranged:
    """A frozen dataclass whose values lie in the `Range` or `Literal` of their types.

    The range of a list is that of each entry. None, and text beside numbers, have none.
    Raises ValueError for another value. It names the field.
    """

    def __post_init__(self) -> None:
        for name, allowed in _allowed(cast(Any, type(self))):
            value = getattr(self, name)
            for one in value if isinstance(value, tuple) else (value,):
                if one is None or (isinstance(one, str) and isinstance(allowed, Range)):
                    continue
                if one not in allowed:
                    raise ValueError(f"Expected {name} in {allowed}, got {one!r}.")


@cache
def _allowed(kind: type[Any]) -> tuple[tuple[str, Range | tuple[Any, ...]], ...]:
    def found() -> Iterator[tuple[str, Range | tuple[Any, ...]]]:
        for name, hint in get_type_hints(kind, include_extras=True).items():
            for part in (hint, *get_args(hint)):  # of a union, or of a tuple's entries
                marks = getattr(part, "__metadata__", ())
                yield from ((name, mark) for mark in marks if isinstance(mark, Range))
            if get_origin(hint) is Literal:
                yield name, get_args(hint)

    return tuple(found())
