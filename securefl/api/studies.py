"""Reads a study from a Python caller's argument: a path, a name, a mapping, a text, or a Study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from securefl.core.errors import ConfigError
from securefl.storage.own_code import CALLER, Namer
from securefl.storage.processes import MOST_WORKERS
from securefl.study.config import Brought, Study, origin_of, parse, read
from securefl.study.packaged import text_of
from securefl.sweep.cells import has_sweep

Given = Study | Mapping[str, Any] | Path | str
"""A path, the name of a packaged study, a text in TOML, the mapping that TOML is read as, or a Study."""


def study_from(
    study: Given,
    *,
    data: object | None = None,
    model: Any = None,
    protocol: Any = None,
    workers: int | None = None,
    trust_code: Sequence[Path | str] = (),
) -> Study:
    """The study of a caller's arguments, with the caller's objects. trust_code: as for `securefl.run`.

    Raises ConfigError if the study is not valid, or is a sweep.
    """
    found = _read(study, Brought(data=data, model=model, protocol=protocol), trust_code)
    if workers is None:
        return found
    if not isinstance(workers, int) or not 1 <= workers <= MOST_WORKERS:
        raise ConfigError(f"Expected 1 to {MOST_WORKERS:,} workers, got {workers!r}.")
    return replace(found, runtime=replace(found.runtime, workers=workers))


def _read(study: Given, brought: Brought, trust_code: Sequence[Path | str]) -> Study:
    if isinstance(study, Study):
        if brought.protocol is not None:
            raise ConfigError(
                "Expected `protocol` beside a path, a text or a mapping, got it beside a Study, whose arms "
                "are read already. Pass study.text in its place."
            )
        return study if brought == Brought() else replace(study, brought=brought)
    text = text_from(study)
    if has_sweep(text):
        raise ConfigError("Expected a study without a section [sweep], got a sweep: call securefl.run_sweep.")
    if brought == Brought() and is_file(study):
        return read(Path(str(study)), paths(trust_code))  # its errors name the file
    home, namer = home_of(study, brought, trust_code)
    return parse(text, home=home, brought=brought, namer=namer)


def paths(trust_code: Sequence[Path | str]) -> tuple[Path, ...]:
    """The paths of --trust-code. Raises ConfigError for a text, which would be taken letter by letter."""
    if isinstance(trust_code, str):
        raise ConfigError(f"Expected trust_code as a list of paths, got {trust_code!r}. Write a list.")
    return tuple(map(Path, trust_code))


def is_file(study: Given) -> bool:
    """Whether the argument names a file, not a packaged study or a text."""
    return isinstance(study, Path) or (
        isinstance(study, str) and not _is_text(study) and Path(study).is_file()
    )


def home_of(
    study: Given, brought: Brought, trust_code: Sequence[Path | str] = ()
) -> tuple[Path | None, Namer]:
    """The folder of the study's own files and modules, and who names its code.

    It is that of the study's file, and for a text or a mapping the working folder. A packaged study has none,
    nor has a text to which the caller brings the records.
    """
    if not is_file(study):
        named = isinstance(study, str) and not _is_text(study)
        return None if named or brought.data is not None else Path.cwd(), CALLER
    file, trusted = Path(str(study)), paths(trust_code)
    return origin_of(file, trusted)


def text_from(study: Mapping[str, Any] | Path | str) -> str:
    """The TOML of a study.

    Raises ConfigError if TOML cannot hold the mapping, or the file does not exist.
    """
    match study:
        case Path() | str() if not _is_text(str(study)):
            return _found(str(study))
        case str():
            return study
        case Mapping():
            return _written(study)
    raise ConfigError(
        "Expected a study as a path, a packaged name, a mapping, a text or a Study, got "
        f"{type(study).__name__}."
    )


def _found(study: str) -> str:
    try:
        return text_of(study)
    except OSError as error:  # no file can have this name
        raise ConfigError(f"Expected a file or a packaged study, got a name with {error.strerror}.") from None


def _is_text(study: str) -> bool:
    # A text in TOML has sections and lines. A path or name has neither.
    return "\n" in study or "[" in study


def _written(table: Mapping[str, Any]) -> str:
    try:
        return tomli_w.dumps(_plain(table))
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            "Expected a mapping of text, numbers, truth values, lists and mappings, as TOML has them, got "
            f"another value: {error}. Objects go into `data`, `model` and `protocol` of the call."
        ) from None


def _plain(value: Any) -> Any:
    """A caller's values in TOML's types: tuples as lists, paths as texts, numpy numbers as numbers."""
    match value:
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case Path():
            return str(value)
        case _ if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
            return value.item()
    return value
