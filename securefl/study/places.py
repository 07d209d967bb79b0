"""Which file and section of a study an error is about, where it is found after the text was read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from securefl.core.errors import ConfigError

if TYPE_CHECKING:
    from securefl.study.config import Arm, Study


@contextmanager
def placed(study: Study, where: str) -> Iterator[None]:
    """A context whose ConfigErrors begin with the study's file and this place, such as "[data]".

    A message that begins with a section keeps its own, and one that has been placed is left as it is.
    """
    try:
        yield
    except ConfigError as error:
        if error.placed:
            raise
        text = str(error) if str(error).startswith("[") else f"{where} {error}"
        mended = ConfigError(f"{study.file}: {text}" if study.file else text)
        mended.placed = True
        raise mended from None


def place_of(arm: Arm) -> str:
    """An arm as a place in its file."""
    return f"[[arm]] {arm.name}:"
