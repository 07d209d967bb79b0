"""Strict parsing of a TOML table into a dataclass. Errors name the key, the value and the nearest name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_type_hints

from securefl.core.errors import ConfigError
from securefl.core.lazy import loading

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
_WORDS = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid array": "a list such as [1, 2]",
    "a valid string": "text in quotes",
    "a valid boolean": "true or false",
}
"""The words of TOML for pydantic's names of types."""
_NO_TEXT = re.compile(r"[-+.\d]+(e[-+]?\d+)?|inf|true|false|\[.*\]", re.IGNORECASE)
"""A value that would be a number, a truth value or a list without quotes."""
_NEAR = 0.59
"""A word is suggested only if its likeness exceeds this number."""


def convert(kind: type[T], table: Any, where: str) -> T:
    """Return `table` as the frozen dataclass `kind`. One ConfigError names the key of every error."""
    # Help and hints take words from this module, and no table.
    with loading("pydantic"):
        from pydantic import ValidationError

    if not isinstance(table, dict):
        raise ConfigError(f"[{where}] Expected a table, got {table!r}.")
    unknown = _unknown_keys(kind, table, where)
    text = _as_json(table, where)
    try:
        # Strict JSON takes lists for tuples and words for enums, but no text or truth value for a number.
        found = cast(T, _adapter(cast(Any, kind)).validate_json(text, strict=True))
    except ConfigError as error:
        if not unknown:
            raise ConfigError(f"[{where}] {error}") from None
    except ValidationError as error:
        wrong = _explained(kind, [dict(problem) for problem in error.errors()], where)
        raise ConfigError(" ".join(_in_order(table, wrong, unknown))) from None
    if unknown:
        raise ConfigError(" ".join(unknown.values()))
    return found


@lru_cache(maxsize=256)
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    with loading("pydantic"):
        from pydantic import TypeAdapter

    # A sweep reads the same sections for each cell, and it takes 10 ms to make an adapter.
    return TypeAdapter(kind)


def _as_json(table: Mapping[str, Any], where: str) -> str:
    try:
        # TOML has inf, JSON has none: Python writes Infinity, which pydantic's parser accepts.
        return json.dumps(table)
    except TypeError:
        raise ConfigError(f"[{where}] Expected text, numbers and lists, got a date or a time.") from None


def _unknown_keys(kind: type[Any], table: Mapping[str, Any], where: str) -> dict[str, str]:
    """A sentence for each unknown key, by its path. pydantic would ignore it, and so a misspelt key."""
    fields: Mapping[str, Any] = kind.__dataclass_fields__
    found = {}
    for key, value in table.items():
        if key not in fields:
            found[key] = f"[{where}] Unknown key `{key}`{near(key, fields)}; known are {', '.join(fields)}."
        else:
            nested = _dataclass_of(cast(Any, kind), key)
            if nested is not None and isinstance(value, dict):
                below = _unknown_keys(nested, value, f"{where}.{key}")
                found |= {f"{key}.{name}": sentence for name, sentence in below.items()}
    return found


def _in_order(table: Mapping[str, Any], wrong: Mapping[str, str], unknown: Mapping[str, str]) -> list[str]:
    """The sentences on keys in the order of the table, and then those on missing keys and the whole.

    If a key is unknown, only those on keys of the table: what is missing may be what is misspelt.
    """
    places = {key: place for place, key in enumerate(table)}
    both = {path: sentence for path, sentence in wrong.items() if not unknown or _top(path) in places}
    both |= unknown
    return [both[path] for path in sorted(both, key=lambda path: places.get(_top(path), len(places)))]


def _top(path: str) -> str:
    return path.partition(".")[0]


@lru_cache(maxsize=1024)
def _dataclass_of(kind: type[Any], key: str) -> type[Any] | None:
    hint = get_type_hints(kind).get(key)
    # In a union such as `Bounded | None`, take the dataclass.
    found = [own for own in (hint, *get_args(hint)) if isinstance(own, type) and is_dataclass(own)]
    return found[0] if len(found) == 1 else None


def _explained(kind: type[Any], problems: Sequence[Mapping[str, Any]], where: str) -> dict[str, str]:
    """Return one sentence for each key, by its path. The types of a union share one sentence."""
    by_key: dict[str, list[Mapping[str, Any]]] = {}
    for problem in problems:
        by_key.setdefault(_path(kind, problem["loc"]), []).append(problem)
    return {path: f"[{where}] {_sentence(path, own)}" for path, own in by_key.items()}


def _sentence(path: str, problems: Sequence[Mapping[str, Any]]) -> str:
    match problems[0]["type"]:
        case "missing" | "missing_keyword_only_argument":
            return f"Missing key `{path}`; add it."
        case "value_error":
            return f"{path + ': ' if path else ''}{problems[0]['ctx']['error']}"
    wanted = dict.fromkeys(p["msg"].removeprefix("Input should be ") for p in problems)
    expected = " or ".join(_WORDS.get(words, words) for words in wanted)
    came = problems[0]["input"]
    hint = near(came, re.findall("'([^']+)'", expected)) if isinstance(came, str) else ""
    quoted = isinstance(came, str) and any(w in expected for w in ("number", "true or false", "list"))
    advice = " Leave out the quotes." if quoted and _NO_TEXT.fullmatch(came.strip()) else ""
    return f"`{path}`: Expected {expected}, got {came!r}{hint}.{advice}"


def _path(kind: type[Any] | None, location: Sequence[str | int]) -> str:
    """Return the key's dotted name, without the union branches that pydantic adds."""
    names: list[str] = []
    for part in location:
        if kind is None or part not in kind.__dataclass_fields__:
            break
        names.append(str(part))
        kind = _dataclass_of(cast(Any, kind), names[-1])
    return ".".join(names)


def near(word: str, words: Iterable[str]) -> str:
    """Return a hint at the nearest of these words, in brackets, or an empty text if none is near."""
    found = [(likeness, own) for own in words if (likeness := _likeness(word, own)) > _NEAR]
    # Ties go to the first in the alphabet, so that the hint is the same in every process.
    best = min(found, key=lambda pair: (-pair[0], pair[1]), default=None)
    return f" (did you mean `{best[1]}`?)" if best else ""


def _likeness(one: str, other: str) -> float:
    """Return the fraction of common letters, 0 to 1, plus 1 if one word begins with the other."""
    one, other = ("".join(filter(str.isalnum, own.casefold())) for own in (one, other))
    family = bool(one and other) and (one.startswith(other) or other.startswith(one))
    share = SequenceMatcher(None, one, other).ratio()
    return share + family if share > _NEAR else 0.0
