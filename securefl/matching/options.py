"""The public options of a matching. Clients and the baseline's owner must choose the same."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import numpy as np

from securefl.core.errors import ConfigError, DataError
from securefl.dp.moments import MeanVariance
from securefl.he.parameters import COMPACT, STRONG_ENCRYPTED, Parameters
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Anchor, Bounds, Features, ProfileQuery, Variant, features, query

Word = Literal["strong", "compact"]
LONGEST: Final = 2**20
"""The largest number of elements of a profile in a file."""


def default_bounds(parameters: Word) -> Bounds:
    """The default bounds of each parameter set."""
    # `strong` has room for models' profiles without an anchor; the modulus of `compact` has less room
    match parameters:
        case "strong":
            return Bounds(weight=1024)
        case "compact":
            return Bounds(mean=16, variance_high=64, weight=16)


@dataclass(frozen=True, eq=False)
class Options:
    """The public options of a matching.

        >>> from securefl.matching import Options
        >>> Options().error_bound(length=100, openings=10) < 1e-3, Options(parameters="compact").bounds.mean
        (True, 16.0)

    Attributes:
        variant: "full" encrypts means and variances. "mean-only" leaves the variances readable by the
            evaluator.
        parameters: "strong", or "compact" (a quarter of the bytes, coarser scores, no encrypted baseline).
        bounds: a client clips anchored values to these before encryption. Error bounds follow from them.
            None: those of `Bounds` with weights up to 1024 (strong), which have room for models' profiles, or
            narrow ones (compact), whose modulus has less room.
        anchor: public centre and scale per element. None is 0 and 1.

    Raises:
        ConfigError: `anchor` is no `Anchor`.
    """

    variant: Variant = Variant.FULL
    parameters: Word = "strong"
    bounds: Bounds = None  # type: ignore[assignment]  # set below, since it depends on the parameters
    anchor: Anchor | None = None

    def __post_init__(self) -> None:
        if self.bounds is None:
            object.__setattr__(self, "bounds", default_bounds(self.parameters))
        if not isinstance(self.anchor, Anchor | None):
            raise ConfigError(
                f"Expected anchor as an Anchor or None, got {reprlib.repr(self.anchor)}: "
                "make one of public values with Anchor.of."
            )

    def parameter_set(self) -> Parameters:
        """The ring parameters. Those of `strong` always have room for an encrypted baseline."""
        match self.parameters:
            case "strong":
                return STRONG_ENCRYPTED
            case "compact":
                return COMPACT

    def terms(self, length: int, openings: int) -> LinearTerms:
        """The terms for profiles of `length` elements. Raises ConfigError if scores could wrap."""
        return LinearTerms(
            parameters=self.parameter_set(),
            bounds=self.bounds.linear(length, self.variant),
            scores=openings,
        )

    def error_bound(self, length: int, openings: int) -> float:
        """The largest |score - divergence| of all scores that a key opens, except with probability 1e-6."""
        return self.terms(length, openings).error_bound(openings, floods=2)

    def _anchor(self, length: int) -> Anchor:
        if self.anchor is None:
            return Anchor(np.zeros(length), np.ones(length))
        if len(self.anchor.centre) != length:
            raise ConfigError(f"Expected an anchor of {length} elements, got {len(self.anchor.centre)}.")
        return self.anchor

    def features(self, profile: MeanVariance) -> Features:
        """A client's values: floored, anchored, clipped."""
        return features(profile, self._anchor(len(profile)), self.bounds)

    def query(self, baseline: MeanVariance) -> ProfileQuery:
        """The baseline's values, floored and anchored in the same way.

        Raises ConfigError if the bounds would change the baseline.
        """
        made = query(baseline, self._anchor(len(baseline)), self.bounds)
        if made.clipped:
            raise ConfigError(
                f"Expected the baseline's {len(baseline)} variances inside the bounds, got {made.clipped} "
                "that lie outside the declared bounds. Give all parties a public anchor near it, or wider "
                "bounds."
            )
        return made

    # As a header ----------------------------------------------------------------------------------

    def to_header(self, length: int) -> dict[str, Any]:
        """The options as a file's header."""
        anchor = self.anchor
        return {
            "length": length,
            "variant": self.variant.value,
            "parameters": self.parameters,
            "bounds": self.bounds.words(),
            "anchor": None
            if anchor is None
            else {"centre": anchor.centre.tolist(), "scale": anchor.scale.tolist()},
        }

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> tuple[Options, int]:
        """The options and the length in a file's header. Raises DataError that names the invalid option."""
        length, word, variant = (header.get(name) for name in ("length", "parameters", "variant"))
        if type(length) is not int or not 1 <= length <= LONGEST:
            raise _unfit("length", f"a whole number from 1 to {LONGEST}", length)
        if word not in ("strong", "compact"):
            raise _unfit("parameters", "'strong' or 'compact'", word)
        if variant not in [one.value for one in Variant]:
            raise _unfit("variant", "'full' or 'mean-only'", variant)
        # null is no anchor; an absent entry, or another false value, is damage
        anchor = None if header.get("anchor", ...) is None else _anchor(header.get("anchor"), length)
        return cls(Variant(variant), word, _bounds(header.get("bounds")), anchor), length


def _bounds(found: Any) -> Bounds:
    names = {one.name for one in fields(Bounds)}
    try:
        if set(found) != names or not _are_numbers(found.values()):
            raise ValueError
        return Bounds(**found)
    except (TypeError, ValueError, AttributeError, OverflowError, ConfigError):
        raise _unfit("bounds", f"numbers above 0 for {', '.join(sorted(names))}", found) from None


def _anchor(found: Any, length: int) -> Anchor:
    try:
        if set(found) != {"centre", "scale"}:
            raise ValueError
        centre, scale = found["centre"], found["scale"]
        if not (len(centre) == len(scale) == length and _are_numbers([*centre, *scale])):
            raise ValueError
        return Anchor(np.array(centre, dtype=np.float64), np.array(scale, dtype=np.float64))
    except (TypeError, ValueError, OverflowError, DataError):
        wanted = f"null, or {length} numbers each as centre and as scale"
        raise _unfit("anchor", wanted, found) from None


def _are_numbers(values: Iterable[object]) -> bool:
    return all(type(value) in (int, float) for value in values)


def _unfit(name: str, wanted: str, found: object) -> DataError:
    # reprlib: a peer's text may be long or contain terminal escapes
    return DataError(
        f"Expected {name} in the file's header as {wanted}, got {reprlib.repr(found)}. Get the file again."
    )
