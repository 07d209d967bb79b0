"""Older words of configurations: a word that has a new name is an error that says the new one.

A field keeps its older word as metadata: `field(default=0, metadata=formerly("spare"))`. Files that were
written with older words, such as the study in a run folder, are read through `with_new_words`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_FORMERLY: Final = "formerly"


def formerly(word: str) -> Mapping[str, str]:
    """Metadata of a dataclass field whose word in configurations was another one."""
    return {_FORMERLY: word}


def renamed(kind: type[Any]) -> Mapping[str, str]:
    """The field of a dataclass by each older word (`formerly`)."""
    fields: Mapping[str, Any] = kind.__dataclass_fields__
    return {own.metadata[_FORMERLY]: name for name, own in fields.items() if _FORMERLY in own.metadata}


def first_words(kind: type[Any]) -> list[str]:
    """The first word of each field: that of digests and files, which never changes."""
    fields: Mapping[str, Any] = kind.__dataclass_fields__
    return [own.metadata.get(_FORMERLY, name) for name, own in fields.items()]


def new_name(kind: type[Any], word: str) -> str | None:
    """The sentence that refuses an older word of this dataclass; None for any other word."""
    if word in kind.__dataclass_fields__ or (newer := renamed(kind).get(word)) is None:
        return None
    return f"The word `{word}` has a new name: write `{newer}` in its place. Its value stays."


def with_new_words(kind: type[Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with the new name of each older word of this dataclass. A word that comes twice stays twice."""
    newer = renamed(kind)
    return {
        newer[key] if key in newer and newer[key] not in table else key: own for key, own in table.items()
    }
