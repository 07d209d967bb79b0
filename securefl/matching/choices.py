"""What the commands of a matching read from people: public options as flags, and profiles as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import numpy as np

from securefl.errors import DataError
from securefl.matching.document import shown
from securefl.matching.options import Options, Word, default_bounds
from securefl.matching.sealed import Profile
from securefl.profiles import Anchor, Bounds, Variant
from securefl.texts import MOST_ELEMENTS, elements

FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
LARGEST_PROFILE: Final = 2**24
"""Bytes of the largest profile in JSON: some 400,000 elements."""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that clients, the baseline's owner and the evaluator must choose alike."""
    for option in (
        click.option("--weight-bound", type=float, help="Largest root mean square weight of a baseline."),
        click.option("--variance-high", type=float, help="Largest anchored variance; larger is clipped."),
        click.option("--variance-low", type=float, help="Smallest anchored variance."),
        click.option("--mean-bound", type=float, help="Largest anchored |mean|; larger is clipped."),
        click.option("--anchor", type=FILE, help="Public profile (JSON) that values are standardised by."),
        click.option(
            "--params",
            type=click.Choice(["strong", "compact"]),
            help="strong unless said; compact takes a quarter of the bytes, and scores are coarser.",
        ),
        click.option(
            "--variant",
            type=click.Choice([variant.value for variant in Variant]),
            help="full unless said; mean-only leaves the variances readable by the evaluator.",
        ),
    ):
        command = option(command)
    return command


def chosen_options(
    variant: str | None, params: Word | None, anchor: Path | None, **bounds: float | None
) -> Options | None:
    """What the flags say, defaults where some were given, and None where none was."""
    if all(flag is None for flag in (variant, params, anchor, *bounds.values())):
        return None
    params = params or "strong"
    names = {"mean_bound": "mean", "weight_bound": "weight"}
    said = {names.get(name, name): value for name, value in bounds.items() if value is not None}
    return Options(
        variant=Variant(variant or Variant.FULL),
        parameters=params,
        bounds=Bounds(**{**vars(default_bounds(params)), **said}),
        anchor=None if anchor is None else Anchor.of(read_profile(anchor).plain),
    )


def read_profile(path: Path) -> Profile:
    """A profile in JSON. Raises DataError, naming the path, for anything else."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_PROFILE:
            raise DataError(f"Expected a file of at most {LARGEST_PROFILE:,} bytes.")
        raw = path.read_bytes()
        if elements(raw) > MOST_ELEMENTS:
            raise DataError(f"Expected at most {MOST_ELEMENTS:,} numbers.")
        found = json.loads(raw.decode("utf-8-sig"))
        if any(type(v) not in (int, float) for name in ("mean", "variance") for v in found[name]):
            raise ValueError
        mean, variance = (np.array(found[name], dtype=np.float64) for name in ("mean", "variance"))
        count = found.get("count", 1)
        if type(count) is not int:
            raise ValueError
        profile = Profile(mean, variance, count)
        _ = profile.plain
        return profile
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        example = '{"mean": [0.1, 0.2], "variance": [1.0, 0.5]}'
        raise DataError(f"{shown(path)}: Expected JSON like {example}, of equal lengths.") from None
