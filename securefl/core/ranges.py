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

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Final, Literal, cast, get_args, get_origin, get_type_hints

from securefl.core.errors import ConfigError

_END: Final = r"-?(inf|\d+(\.\d+)?(e-?\d+)?(\^-?\d+)?)"
"""An end of a range."""


@dataclass(frozen=True)
class Range:
    """The numbers between two ends, as mathematics writes them: "(0, 1]", "[2^-10, inf)". None holds nan.

    remedy: what to do about a number outside, as a sentence. Raises ConfigError for other words.

    >>> from securefl.protocols.averaging import Range
    >>> 0.0 in Range("(0, 1]"), 1.0 in Range("(0, 1]")
    (False, True)
    """

    words: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(rf"[(\[]{_END}, {_END}[)\]]", self.words):
            raise ConfigError(
                f'Expected a range as mathematics writes it, such as "(0, 1]", got {self.words!r}.'
            )

    def __contains__(self, value: float) -> bool:
        low, high = self.ends
        above = value > low if self.words[0] == "(" else value >= low
        below = value < high if self.words[-1] == ")" else value <= high
        return above and below

    @property
    def ends(self) -> tuple[float, float]:
        """The two ends, whether the range has them or not."""
        low, high = map(_number, self.words[1:-1].split(","))
        return low, high

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Known:
    """The words that are known when a value is made, such as those of installed distributions."""

    names: Callable[[], Sequence[str]]

    def __contains__(self, value: object) -> bool:
        return value in self.names()

    def __str__(self) -> str:
        return str(tuple(self.names()))


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
    None stands for a value that was left out. Raises ValueError for other values, with a line for each
    mistake. A line on a range names the field.
    """

    def __post_init__(self) -> None:
        said = [*outside(type(self), vars(self)).values()]
        try:
            said += self.refusals()
        except TypeError:  # from Python a value may be of another type, and `outside` says so
            if not said:
                raise
        if said:
            raise ValueError("\n".join(said))

    def refusals(self) -> Iterator[str]:
        """A sentence for each other mistake. A class that needs more than ranges says it here."""
        yield from ()


def outside(kind: type[Any], values: Mapping[str, Any]) -> dict[str, str]:
    """A sentence for each of these values of a class that lies outside of its range, by the field's name."""
    found = {}
    for name, allowed in _allowed(cast(Any, kind)).items():
        value = values.get(name)
        for one in value if isinstance(value, tuple | list) else (value,):
            if one is not None and not any(_holds(each, one) for each in allowed):
                found[name] = f"Expected {name} in {allowed[0][1]}, got {one!r}.{_remedy(one, allowed[0][1])}"
    return found


def _remedy(value: Any, allowed: object) -> str:
    if not isinstance(allowed, Range) or allowed.remedy:
        return f" {allowed.remedy}" if isinstance(allowed, Range) else ""
    share = allowed.words[-4:-1] == ", 1" and isinstance(value, int | float) and 1 < value <= 100
    return f" {value:g} % is {value / 100:g}." if share else ""


def refused(check: Callable[..., object], *values: Any) -> Iterator[str]:
    """What a check says of these values, if it raises a ConfigError or a ValueError."""
    try:
        check(*values)
    except (ConfigError, ValueError) as error:
        yield str(error)


Allowed = tuple[type[Any], Range | Known | tuple[Any, ...]]
"""The class of a value, and the range or the words that it may be."""


def _holds(allowed: Allowed, value: Any) -> bool:
    kind, words = allowed
    if not isinstance(words, Range):
        return isinstance(value, str | bool | int) and value in words
    number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return number and value in words


@cache
def _allowed(kind: type[Any]) -> dict[str, list[Allowed]]:
    def found(hint: Any) -> Iterator[Allowed]:
        if get_origin(hint) is Literal:
            yield str, get_args(hint)
        elif get_origin(hint) is Annotated:
            yield from ((hint.__origin__, own) for own in hint.__metadata__ if isinstance(own, Range | Known))
        else:  # of a union, or of a tuple's entries
            for part in get_args(hint):
                yield from found(part)

    hints = get_type_hints(kind, include_extras=True).items()
    truth: list[Allowed] = [(bool, (False, True))]
    return {name: own for name, hint in hints if (own := truth if hint is bool else [*found(hint)])}
