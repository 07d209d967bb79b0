"""A client's representation profile, as it is, or from clipped outputs, which noise can protect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal

import numpy as np

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.queries import Floats, PerClient, Value, ValueSpec
from securefl.core.errors import DataError
from securefl.core.release import Adjacency, Unit
from securefl.dp.moments import GRID, MeanVariance, Moments
from securefl.matching.profiles import Anchor, Bounds, ProfileQuery, Variant, features
from securefl.protocols.contributions import ADJACENCIES
from securefl.training import outputs, profile
from securefl.training.fit import readable
from securefl.training.task import Problem

_ENCRYPTED = {
    Variant.FULL: "one score of its profile",
    Variant.MEAN_ONLY: "one score of its profile, and the variances in it",
}
_CLIPPED: Mapping[tuple[Unit, Adjacency], float] = {
    ("record", a): Moments.sensitivity(a) for a in ADJACENCIES
}


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Public bounds on a record's anchored outputs, in standard deviations of the anchor.

    outputs, squares: the largest root mean square of the outputs, and of their squares. A record beyond it is
    scaled down. Noise is scaled to these bounds, so values near the typical record are better than the
    largest.
    """

    outputs: float
    squares: float

    def __post_init__(self) -> None:
        if not (0 < self.outputs < inf and 0 < self.squares < inf):
            raise ValueError(f"Expected finite bounds > 0, got {self.outputs} and {self.squares}.")

    def moments(self, length: int) -> Moments:
        """For outputs of this length."""
        return Moments(bound=self.outputs * sqrt(length), square_bound=self.squares * sqrt(length))


def profile_sends(
    variant: Variant = Variant.FULL,
    clip: Clip | None = None,
    refresh: int = 1,
    max_releases: int | Literal["schedule"] = "schedule",
) -> ValueSpec:
    """A profile as a release. The server sees a score of it, and whatever the variant does not hide.

    With `clip` its sensitivity is declared, so that a plan can noise it. refresh: as in the options.
    max_releases: as in `ValueSpec`.
    """
    return ValueSpec(
        name="profile",
        reduction="none",
        reveals="its whole profile",
        reveals_encrypted=_ENCRYPTED[variant],
        sensitivity={} if clip is None else _CLIPPED,
        bounded_by={"record": "`clip` in its arm, and noise"},
        grid=GRID,
        period=refresh,
        initial_queries=1,
        max_releases=max_releases,
    )


def profile_value(
    own: Floats, anchor: Anchor, *, bounds: Bounds, variant: Variant = Variant.FULL, clip: Clip
) -> Value:
    """A client's contribution from its records' outputs (n, q): clipped, summed, ready for noise."""
    q = len(anchor.centre)
    moments = clip.moments(q)

    # Anchored before the noise, so that clipping has one scale. The profile is then anchored already: centre
    # 0, scale 1.
    def then(noised: Floats) -> Value:
        return _value(moments.profile(noised), Anchor(np.zeros(q), np.ones(q)), bounds, variant)

    return Value(integers=moments.sums(anchor.apply(own)), after_noise=then)


def _anchor(public: Mapping[str, Floats]) -> Anchor:
    """The anchor that was broadcast beside the model. DataError where there is none."""
    try:
        return Anchor(public["anchor_centre"], public["anchor_scale"])
    except KeyError as missing:
        raise DataError(f"Expected an anchor beside the model, got none: {missing} is missing.") from None


def _value(own: MeanVariance, anchor: Anchor, bounds: Bounds, variant: Variant) -> Value:
    found = features(own, anchor, bounds)
    parts = found.split(variant)
    return Value(hidden=parts.hidden, clear=parts.clear, clipped=found.clipped, floored=found.floored)


@dataclass(frozen=True, eq=False)
class RepresentationProfile:
    """A client's profile on the broadcast model, anchored and clipped to public bounds.

    The server sees a score of it, and whatever the variant does not hide. clip, refresh: as in the options.
    max_releases: as in `ValueSpec`.
    """

    problem: Problem
    variant: Variant
    bounds: Bounds
    clip: Clip | None = None
    refresh: int = 1
    max_releases: int | Literal["schedule"] = "schedule"

    @property
    def spec(self) -> ValueSpec:
        return profile_sends(self.variant, self.clip, self.refresh, self.max_releases)

    def query(self, baseline: ProfileQuery) -> PerClient:
        return PerClient(self.spec, baseline.linear(self.variant, self.bounds))

    def nothing(self, context: ClientContext) -> Value:
        """Without records: noised zeros, or a profile at the public bounds, which no server prefers."""
        if self.clip is not None:
            return self.compute(context)
        anchor = _anchor(context.public)
        far = anchor.centre + 1e9 * anchor.scale
        return _value(MeanVariance(far, np.square(anchor.scale), 1), anchor, self.bounds, self.variant)

    def compute(self, context: ClientContext) -> Value:
        model, layer = self.problem.to_read(context.broadcast), self.problem.layer
        anchor = _anchor(context.public)
        if self.clip is None:
            return _value(profile(model, layer, context.x), anchor, self.bounds, self.variant)
        # Without records it sends noised zeros all the same: silence would tell that it has none
        x = context.x[readable(self.problem, context.x)]
        own = outputs(model, layer, x) if len(x) else np.zeros((0, len(anchor.centre)))
        return profile_value(own, anchor, bounds=self.bounds, variant=self.variant, clip=self.clip)
