"""The card of an exported model: the description from which the model is built and its records are read.

The card is parsed strictly, since an untrusted party may have written the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any, Final

from securefl.core.errors import ConfigError
from securefl.core.reading import convert
from securefl.core.text_safety import is_legible
from securefl.data.dataset import Task
from securefl.data.schema import Schema
from securefl.training.exported import MOST_PARAMETERS
from securefl.training.heads import Bounded

_LONGEST: Final = 1000
"""The most characters of a name."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """The part `model` of a card: the description from which the model is built.

    kind: a packaged model, or the name of own code. hidden, width: of a packaged model. options: of own code,
    by name. code: SHA-256 of the file of own code in hex, or None. shape: of the model's input. changes: the
    changes for private training. features: the bound of the head's input, or None. records: how a record
    becomes the input, from the part `records` of the card.
    """

    kind: str
    hidden: tuple[int, ...] | None
    width: float | None
    options: Mapping[str, Any]
    code: str | None
    reads_text: bool
    shape: tuple[int, ...]
    outputs: int
    task: Task
    features: Bounded | None
    changes: tuple[str, ...]
    records: Schema = field(default_factory=lambda: Schema(columns=None, shape=(1,)))

    def __post_init__(self) -> None:
        _require_name("model", self.kind)
        for size in (*self.shape, self.outputs, prod(self.shape)):
            if not 1 <= size <= MOST_PARAMETERS:
                raise ValueError(f"Expected sizes from 1 to {MOST_PARAMETERS:,}, got {size}.")
        bounded = self.features
        if bounded is not None and not 0 < bounded.bound < inf:
            raise ValueError(f"Expected a finite features.bound above 0, got {bounded.bound}.")
        map_ = None if bounded is None else bounded.projection
        # The map is drawn from its seed, so a short file could name a map of any size.
        if map_ is not None and not (
            0 <= map_.seed < 2**64 and map_.features * map_.width <= MOST_PARAMETERS
        ):
            raise ValueError(f"Expected a projection of at most {MOST_PARAMETERS:,} numbers, got {map_}.")


def described(card: Mapping[str, Any]) -> Described:
    """Parse the model and the records of a card, and check the other entries that a `Trained` shows.

    Raises KeyError, TypeError, ValueError or ConfigError if `securefl export` cannot have written the card.
    """
    for name in (card["arm"], card["study"]["name"]):
        _require_name("arm and study", name)
    if card["part"] not in ("whole", "shared", "client"):
        raise ValueError(f"a part {str(card['part'])[:80]!r}")
    for number in (card["seed"], card["client"] or 0):
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError("a seed or client that is no number")
    model, records = card["model"], Schema.parse(card["records"])
    if isinstance(model, dict) and "records" in model:
        raise ConfigError("[model] Unknown key `records`: it stands beside `model`.")
    about = convert(Described, model, "model")
    _require_agreement(about, records)
    return replace(about, records=records)


def _require_agreement(about: Described, records: Schema) -> None:
    """Raises ConfigError unless the records become the model's input, and its outputs the labels."""
    if records.features is None and records.shape != about.shape:
        raise ConfigError(
            f"[records] Expected records of the model's shape {about.shape}, got {records.shape}."
        )
    if records.features is not None and len(about.shape) != 1:
        raise ConfigError(f"[records] Expected features of shape (k,), got {about.shape}.")
    labels = {"classification": about.outputs, "multi-label": 2, "regression": 0}[about.task]
    if len(records.labels) not in (0, labels):
        raise ConfigError(
            f"[records] Expected no labels, or {labels} of a {about.task} model, got {len(records.labels)}."
        )
    targets = 1 if about.task == "classification" else about.outputs
    if len(records.targets) not in (0, targets):
        raise ConfigError(
            f"[records] Expected {targets} targets of a {about.task} model, got {len(records.targets)}."
        )


def _require_name(what: str, name: object) -> None:
    if not isinstance(name, str) or len(name) > _LONGEST or not is_legible(name):
        raise ConfigError(f"Expected a printable name of {what}, got {str(name)[:80]!r}.")
