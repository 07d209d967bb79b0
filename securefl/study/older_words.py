"""Reads the study of a finished run, which may be written in older words.

The words of [privacy] are those of `Plan`, which has them all. Its own section is not loaded for them: that
loads what trains and accounts, and a reader of finished runs needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from securefl.algorithm.plan import Plan
from securefl.core.renamed import with_new_words
from securefl.storage.texts import toml
from securefl.study.data_section import DataSection

KINDS: Final[Mapping[str, type[Any]]] = {"privacy": Plan, "data": DataSection}
"""The classes that know the older words (`core.renamed`), by section. Other sections have none."""


def with_new_names(table: dict[str, Any]) -> dict[str, Any]:
    """A study's table with the new name of each older word."""
    return {
        name: with_new_words(KINDS[name], own) if name in KINDS and isinstance(own, dict) else own
        for name, own in table.items()
    }


def in_older_words(text: str, other: str) -> bool:
    """Whether the first text is the second one, a study or a sweep, in older words.

    Two texts of one table that differ otherwise, such as in a comment, are not: files are bound to the text.
    """
    stored, now = toml(text), toml(other)
    return stored != now and with_new_names(stored) == now
