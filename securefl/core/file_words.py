"""The words of fields in digests, signed texts and files, where they are not the fields' names.

A field states its word as metadata: `field(default=0, metadata=written_as("spare"))`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WORD: Final = "word"


def written_as(word: str) -> Mapping[str, str]:
    """Metadata of a dataclass field that has this word in digests and files."""
    return {_WORD: word}


def file_words(kind: type[Any]) -> dict[str, str]:
    """The word of each field of a dataclass, by the field's name."""
    fields: Mapping[str, Any] = kind.__dataclass_fields__
    return {name: own.metadata.get(_WORD, name) for name, own in fields.items()}


def by_field(kind: type[Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of a file by the names of fields. A word beside its field's name stays: it is then unknown."""
    names = {word: name for name, word in file_words(kind).items()}
    return {
        name if (name := names.get(word, word)) not in table else word: own for word, own in table.items()
    }
