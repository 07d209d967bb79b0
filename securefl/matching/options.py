"""What client and baseline owner choose in public, and must choose alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from securefl.errors import ConfigError, DataError, SecureFLError
from securefl.he.parameters import COMPACT, STRONG_ENCRYPTED, Parameters
from securefl.he.terms import Terms
from securefl.profiles import (
    Anchor,
    Bounds,
    Features,
    Profile,
    Query,
    Variant,
    features,
    query,
)

Word = Literal["strong", "compact"]


def default_bounds(parameters: Word) -> Bounds:
    """What is declared where nobody says otherwise."""
    match parameters:
        case "strong":
            return Bounds(weight=1024)
        case "compact":
            return Bounds(mean=16, variance_high=64, weight=16)


@dataclass(frozen=True, eq=False)
class Options:
    """Public choices of a matching.

    variant: "full" encrypts means and variances; "mean-only" leaves the variances readable by the evaluator.
    parameters: "strong", or "compact" (a quarter of the bytes, coarser scores, no encrypted baseline).
    bounds: what anchored values are clipped to before encryption; errors follow from them. By default
        those of `Bounds` with weights up to 1024 (strong), which takes profiles as models give them, or
        narrow ones (compact), whose modulus has less room.
    anchor: public centre and scale per element; None is 0 and 1.
    """

    variant: Variant = Variant.FULL
    parameters: Word = "strong"
    bounds: Bounds = None  # type: ignore[assignment]  # made below, where it depends on the parameters
    anchor: Anchor | None = None

    def __post_init__(self) -> None:
        if self.bounds is None:
            object.__setattr__(self, "bounds", default_bounds(self.parameters))

    def parameter_set(self) -> Parameters:
        """`strong` has room for an encrypted baseline: a client need not know whether there is one."""
        match self.parameters:
            case "strong":
                return STRONG_ENCRYPTED
            case "compact":
                return COMPACT

    def terms(self, length: int, openings: int) -> Terms:
        """What follows for profiles of `length` elements; ConfigError where scores could wrap."""
        return Terms(
            parameters=self.parameter_set(),
            bounds=self.bounds,
            length=length,
            variant=self.variant,
            scores=openings,
        )

    def _anchor(self, length: int) -> Anchor:
        if self.anchor is None:
            return Anchor(np.zeros(length), np.ones(length))
        if len(self.anchor.centre) != length:
            raise ConfigError(f"Expected an anchor of {length} elements, {len(self.anchor.centre)} came.")
        return self.anchor

    def features(self, profile: Profile) -> Features:
        """A client's values: floored, anchored, clipped."""
        return features(profile, self._anchor(len(profile)), self.bounds)

    def query(self, baseline: Profile) -> Query:
        """The baseline's values, treated alike. ConfigError where bounds would make it another baseline."""
        made = query(baseline, self._anchor(len(baseline)), self.bounds)
        if made.clipped:
            raise ConfigError(
                f"{made.clipped} of {len(baseline)} variances of the baseline lie outside the declared "
                "bounds: give everybody a public anchor near it, or wider bounds."
            )
        return made

    # As a header ----------------------------------------------------------------------------------

    def to_header(self, length: int) -> dict[str, Any]:
        anchor = self.anchor
        return {
            "length": length,
            "variant": self.variant.value,
            "parameters": self.parameters,
            "bounds": asdict(self.bounds),
            "anchor": anchor and {"centre": anchor.centre.tolist(), "scale": anchor.scale.tolist()},
        }

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> tuple[Options, int]:
        """Options and length of a file's header. Raises DataError where they are not such."""
        try:
            length, word, anchor = header["length"], header["parameters"], header["anchor"]
            if type(length) is not int or not 1 <= length <= 2**20 or word not in ("strong", "compact"):
                raise ValueError
            return cls(
                Variant(header["variant"]),
                word,
                Bounds(**{name: float(value) for name, value in header["bounds"].items()}),
                anchor and Anchor(np.array(anchor["centre"]), np.array(anchor["scale"])),
            ), length
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SecureFLError):
            raise DataError("The file's options are not what this package writes; get it again.") from None
