"""What the card of an exported model says of the model, read strictly: a stranger may have written it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Any, Final, Literal

from securefl.core.errors import ConfigError
from securefl.core.legible import is_legible
from securefl.core.reading import convert
from securefl.training.heads import Bounded
from securefl.training.models import MOST_PARAMETERS

_LONGEST: Final = 1000
"""Characters of a name."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """The part `model` of a card: how the model is built, and what its outputs are.

    hidden, width: of a packaged model. shape: of one record. changes: what was changed to train privately.
    features: how the head's input is bounded, or None.
    """

    kind: str
    hidden: tuple[int, ...] | None
    width: float | None
    reads_text: bool
    shape: tuple[int, ...]
    outputs: int
    task: Literal["classification", "regression"]
    features: Bounded | None
    changes: tuple[str, ...]

    def __post_init__(self) -> None:
        _require_name("model", self.kind)
        for size in (*self.shape, self.outputs, prod(self.shape)):
            if not 1 <= size <= MOST_PARAMETERS:
                raise ValueError(f"Expected sizes from 1 to {MOST_PARAMETERS:,}, got {size}.")
        bounded = self.features
        if bounded is not None and not 0 < bounded.bound < inf:
            raise ValueError(f"Expected a finite features.bound above 0, got {bounded.bound}.")
        map_ = None if bounded is None else bounded.projection
        # the map is drawn anew from its seed, so a short file could name one of any size
        if map_ is not None and not (
            0 <= map_.seed < 2**64 and map_.features * map_.width <= MOST_PARAMETERS
        ):
            raise ValueError(f"Expected a projection of at most {MOST_PARAMETERS:,} numbers, got {map_}.")


def described(card: Mapping[str, Any]) -> Described:
    """The model of a card, whose other entries that a `Trained` shows are checked too.

    Raises KeyError, TypeError, ValueError or ConfigError for a card that `securefl export` cannot have
    written.
    """
    for name in (card["arm"], card["study"]["name"]):
        _require_name("arm and study", name)
    if card["part"] not in ("whole", "shared", "client"):
        raise ValueError(f"a part {str(card['part'])[:80]!r}")
    for number in (card["seed"], card["client"] or 0):
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError("a seed or client that is no number")
    return convert(Described, card["model"], "model")


def _require_name(what: str, name: object) -> None:
    if not isinstance(name, str) or len(name) > _LONGEST or not is_legible(name):
        raise ConfigError(f"Expected a legible name of {what}, got {str(name)[:80]!r}.")
