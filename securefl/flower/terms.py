"""The terms of a Flower app: what all its parties agree to, in a TOML beside the app or in its run config.

    terms = "noised"             # a packaged set; the keys below change it
    metrics = ["loss"]           # the fields of `Updates`
    evaluation = ["accuracy"]
    [plan]                       # the fields of `Plan`
    max_rounds = 20

In the run config of a `pyproject.toml` the keys begin with `securefl.`, and a list is a text with commas:

    [tool.flwr.app.config]
    securefl = { terms = "noised", evaluation = "accuracy,loss", plan.max_rounds = 20 }

All parties must have the same terms: a party refuses a session of others. This module does not load Flower.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, get_origin, get_type_hints

from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError
from securefl.core.reading import convert, near
from securefl.deployment.updates import Updates
from securefl.storage.texts import read_text, toml

FILE: Final = "securefl.toml"
"""The file of terms beside an app."""
PREFIX: Final = "securefl."
PACKAGED: Final = ("noised", "without-noise")
"""The names of the packaged sets."""
_TERMS, _PLAN = "terms", "plan"
_UPDATES: Final = tuple(own.name for own in fields(Updates))
KEYS: Final = (_TERMS, *_UPDATES, _PLAN)
"""The keys of a file of terms."""
Config = Mapping[str, bool | int | float | str]


@dataclass(frozen=True, kw_only=True)
class AppTerms:
    """Terms of a Flower app.

        >>> from securefl.flower import AppTerms
        >>> terms = AppTerms.of({"securefl.terms": "noised", "securefl.evaluation": "accuracy"})
        >>> terms.plan.budget, terms.plan.max_rounds, terms.updates.evaluation
        (4.0, 20, ('accuracy',))

    Attributes:
        plan: of all parties.
        updates: the values that clients may be asked for.
        source: where the terms were read, for messages.

    Raises:
        ConfigError: `AppTerms.of` or `AppTerms.read` finds no terms or invalid ones. The error names the
            file, the key and the nearest valid key.
    """

    plan: Plan
    updates: Updates
    source: str

    @classmethod
    def read(cls, path: Path) -> AppTerms:
        """The terms of a TOML file. Raises ConfigError if they are invalid, or can never be released."""
        return _terms(read_table(path), str(path))

    @classmethod
    def of(cls, config: Config, path: Sequence[str | Path] | None = None) -> AppTerms:
        """The terms that an app's run config states, or the file beside the app.

        Args:
            config: the run config. `securefl.terms` is the name of a packaged set or a path to a TOML file;
                without it, the file is `securefl.toml`.
            path: the folders in which a relative path is looked for. None: `sys.path`, in which Flower puts
                the app's folder first.

        Raises ConfigError if there are no terms, or invalid ones, or if they can never be released.
        """
        own = _nested(config)
        folders = [Path(one) for one in (sys.path if path is None else path)]
        said = own.pop(_TERMS, None)
        file = FILE if said is None else said
        if isinstance(file, str) and file.endswith(".toml"):
            found = next((one / file for one in folders if (one / file).is_file()), None)
            if found is None and said is None:
                raise ConfigError(
                    f'Expected terms in the run config, such as securefl.terms = "{PACKAGED[0]}", or a file '
                    f"{FILE} beside the app, got neither. The packaged sets are {', '.join(PACKAGED)}."
                )
            if found is None:
                raise ConfigError(
                    f"Expected a file {said} beside the app, as securefl.terms says, got none in "
                    f"{', '.join(map(str, folders[:3]))}."
                )
            source = f"{found} and the run config" if own else str(found)
            return _terms(_merged(read_table(found), own), source)
        return _terms({_TERMS: said, **own}, "the run config")


def read_table(path: Path) -> dict[str, Any]:
    """The table of a TOML file. Raises ConfigError, with the file's name, if it has none."""
    text = read_text(path)
    try:
        return toml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _terms(table: dict[str, Any], source: str) -> AppTerms:
    try:
        whole = _whole(table)
        plan = convert(Plan, whole.pop(_PLAN), _PLAN)
        if plan.noisy:
            # Clients make their noise for the least cohort, so that it suffices for every one.
            whole = {"cohort": plan.cohort_sizes[0], **whole}
        updates = convert(Updates, whole, "terms")
        updates.check(plan)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return AppTerms(plan=plan, updates=updates, source=source)


def _whole(table: dict[str, Any]) -> dict[str, Any]:
    """The table on top of its packaged set. Raises ConfigError for an unknown key or set."""
    for key in table:
        if key not in KEYS:
            raise ConfigError(f"Unknown key `{key}`{_hint(key, KEYS)}; known are {', '.join(KEYS)}.")
    if not isinstance(table.get(_PLAN, {}), dict):
        raise ConfigError(f"Expected a table [{_PLAN}], got {table[_PLAN]!r}.")
    name = table.pop(_TERMS, None)
    if name is None:
        if _PLAN not in table:
            raise ConfigError(
                f'Expected terms = "{PACKAGED[0]}" or another packaged set ({", ".join(PACKAGED)}), or a '
                f"table [{_PLAN}], got neither."
            )
        return table
    if name not in PACKAGED:
        hint = near(name, PACKAGED) if isinstance(name, str) else ""
        raise ConfigError(
            f"Expected `terms` as a packaged set, {' or '.join(PACKAGED)}, or in the run config a path to a "
            f"TOML file, got {name!r}{hint}."
        )
    return _merged(toml(packaged(name)), table)


def _hint(key: str, known: Sequence[str]) -> str:
    """The nearest valid key. A plan's key outside its table is named in it."""
    if key == "bound_quantile":
        return " (no strategy moves a bound from round to round: leave it out, and `update_bound` stays)"
    plan = [own.name for own in fields(Plan)]
    return f" (did you mean `{_PLAN}.{key}`?)" if key in plan else near(key, known)


def packaged(name: str) -> str:
    """The text of a packaged set."""
    return files("securefl.flower").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    plans = [table[_PLAN] for table in (base, own) if isinstance(table.get(_PLAN), dict)]
    merged = {**base, **own}
    if plans and isinstance(merged[_PLAN], dict):
        merged[_PLAN] = {key: value for plan in plans for key, value in plan.items()}
    return merged


# The run config -----------------------------------------------------------------------------------------


def _nested(config: Config) -> dict[str, Any]:
    """The keys of terms in a run config, as tables. Flower has neither tables nor lists in it."""
    found: dict[str, Any] = {}
    if (alone := PREFIX.removesuffix(".")) in config:  # it would be left out, with what it asks for
        raise ConfigError(
            f'the run config: Expected a table, such as {alone} = {{ terms = "{PACKAGED[0]}" }}, got '
            f"{alone} = {config[alone]!r}."
        )
    for key, value in config.items():
        name = key.removeprefix(PREFIX)
        if not key.startswith(PREFIX) or name in PLACE:
            continue
        *tables, last = name.split(".")
        first = name.split(".")[0]
        if first not in KEYS or (tables and first != _PLAN) or len(tables) > 2:
            raise ConfigError(
                f"the run config: Unknown key `{key}`{_hint(first, [*KEYS, *PLACE])}; known are "
                f"{', '.join(PREFIX + own for own in (*KEYS, *PLACE))}."
            )
        table = found
        for one in tables:
            table = table.setdefault(one, {})
            if not isinstance(table, dict):
                raise ConfigError(f"the run config: Expected a table or a value in `{key}`, got both.")
        if isinstance(table.get(last), dict):
            raise ConfigError(f"the run config: Expected a table or a value in `{key}`, got both.")
        table[last] = _listed(value) if (len(tables), last) in _LISTS else value
    return found


def _listed(value: object) -> object:
    return [one.strip() for one in value.split(",") if one.strip()] if isinstance(value, str) else value


def _lists(kind: type) -> list[str]:
    """The names of a dataclass's fields that hold lists."""
    return [name for name, hint in get_type_hints(kind).items() if get_origin(hint) is tuple]


PLACE: Final = ("server", "parties", "sessions", "deadline", "patience")
"""Keys of a run config that are no terms: they say where the server's parties are (`secured_strategy`)."""
_LISTS: Final = {*((0, name) for name in _lists(Updates)), *((1, name) for name in _lists(Plan))}
