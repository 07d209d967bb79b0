"""Checks of callers' arguments, when they are given: arrays of numbers, and objects of the expected kinds."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from inspect import signature
from numbers import Integral, Real
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError

F = TypeVar("F", bound=Callable[..., Any])


def numbers(name: str, values: Any) -> NDArray[np.float64]:
    """A float64 copy of an array of numpy, torch or pandas, or of nested lists.

    Raises DataError, with the name, for texts, truth values, complex numbers, objects, and masked entries.
    """
    try:
        if hasattr(values, "detach"):  # numpy reads no tensor with a gradient, on a device, or of bfloat16
            values = values.detach().cpu().double()
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"Expected {name} as numbers, got what numpy does not read: {error}.") from None
    masked = np.ma.is_masked(values)
    if masked or array.dtype.kind not in "iuf":
        what = "masked entries" if masked else f"{type(values).__name__} of {array.dtype}"
        raise DataError(f"Expected {name} as an array of numbers, got {what}. Fill or cast it first.")
    return array.astype(np.float64)


def checked(of: F) -> F:
    """Refuse arguments of other types than a function or a dataclass states, by ConfigError with their names.

    A default fits always. What a sequence, a tuple or a mapping holds is checked too, but for a mapping with
    keys of any type.
    """
    if isinstance(of, type):
        of.__init__ = checked(of.__init__)  # type: ignore[misc]
        return of
    form = signature(of)

    @wraps(of)
    def call(*given: Any, **named: Any) -> Any:
        for name, value in form.bind(*given, **named).arguments.items():
            stated = form.parameters[name]
            if value is stated.default or stated.annotation is stated.empty:
                continue
            hint = _hint(stated.annotation, of, value)
            if not _fits(value, hint):
                words = ", ".join(_words(hint))
                if get_origin(hint) is not Literal:
                    words = f"{stated.annotation}, of {words}" if words else stated.annotation
                # the mistake that is made most: the holder of a secret in place of its public keys
                mate = getattr(value, "public", None)
                public = " Pass its `public`." if mate is not None and _fits(mate, hint) else ""
                raise ConfigError(f"Expected `{name}` as {words}, got {reprlib.repr(value)}.{public}")
        return of(*given, **named)

    return cast(F, call)


def _words(hint: Any) -> Iterator[str]:
    """The words that a type, or what it holds, may be."""
    for part in get_args(hint):
        yield from (part,) if get_origin(hint) is Literal else _words(part)


@cache  # specs are made by the thousand
def _stated(annotation: str, of: Any) -> Any:
    return get_type_hints(SimpleNamespace(__annotations__={"it": annotation}), of.__globals__)["it"]


def _hint(annotation: str, of: Any, value: object) -> Any:
    try:
        return _stated(annotation, of)
    except NameError:  # a type that only a type checker imports: its name decides
        names = {kind.__name__ for kind in type(value).__mro__}
        return type(value) if names & {*annotation.split(" | ")} else NoneType


def _fits(value: object, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, one) for one in hint.__args__)
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is Mapping:
        key, held = get_args(hint)
        # What ids of any kind name, such as records, is not looked into: a message would show it.
        return isinstance(value, Mapping) and (
            key is Any or all(_fits(a, key) and _fits(b, held) for a, b in value.items())
        )
    if get_origin(hint) is Sequence:
        return isinstance(value, Sequence) and all(_fits(one, *get_args(hint)) for one in value)
    if get_origin(hint) is tuple:
        *kinds, last = get_args(hint)
        if last is ...:
            return isinstance(value, tuple) and all(_fits(one, *kinds) for one in value)
        if not isinstance(value, tuple | list) or len(value) != len(kinds) + 1:
            return False
        return all(map(_fits, value, (*kinds, last)))
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)
