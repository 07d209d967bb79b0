"""Reading a profile from a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from securefl.core.errors import DataError
from securefl.matching.sealed import Profile
from securefl.storage.inputs import content, shown
from securefl.storage.texts import MOST_ELEMENTS, elements

_LONGEST_NAME: Final = 64
LARGEST_PROFILE: Final = 2**24
"""The largest JSON profile, in bytes: some 400,000 elements."""


def require_readable(raw: bytes) -> None:
    """Raises DataError if `read_profile` would refuse a profile's text for its size."""
    if len(raw) > LARGEST_PROFILE or elements(raw) > MOST_ELEMENTS:
        raise DataError(
            f"Expected at most {MOST_ELEMENTS:,} numbers in at most {LARGEST_PROFILE:,} bytes, got up to "
            f"{elements(raw):,} numbers in {len(raw):,} bytes. Profile a smaller layer."
        )


def read_profile(path: Path) -> Profile:
    """The profile in a JSON file. Raises DataError, with the path, for any other file."""
    raw = content(path, LARGEST_PROFILE)
    try:
        require_readable(raw)
        found = json.loads(raw.decode("utf-8-sig"))
        # numpy would turn true, "1" and null into numbers
        if any(type(v) not in (int, float) for name in ("mean", "variance") for v in found[name]):
            raise ValueError
        count, model = found.get("count", 1), found.get("model", "")
        if type(count) is not int or not isinstance(model, str) or len(model) > _LONGEST_NAME:
            raise ValueError
        return Profile(found["mean"], found["variance"], count, model)
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}") from None
    except KeyError as error:
        came = f"no {error}"
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        came = "other text" if raw.strip() else "an empty file"
    example = '{"mean": [0.1, 0.2], "variance": [1.0, 0.5]}'
    raise DataError(f"{shown(path)}: Expected JSON like {example}, of equal lengths, got {came}.")
