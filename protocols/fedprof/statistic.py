"""A client's representation profile: as it is, or of clipped outputs, which noise can protect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from protocols.contributions import ADJACENCIES
from securefl.dp.moments import STEP, Moments
from securefl.grid import Grid
from securefl.profiles import Anchor, Bounds, Profile, Query, Variant, features
from securefl.release import Adjacency, Unit
from securefl.rounds import Each, Floats, Job, Sends, Value
from securefl.training import outputs, profile
from securefl.training.task import Problem

_ENCRYPTED = {
    Variant.FULL: "one score of its profile",
    Variant.MEAN_ONLY: "one score of its profile, and the variances in it",
}
_CLIPPED: Mapping[tuple[Unit, Adjacency], float] = {
    ("record", a): Moments.sensitivity(a) for a in ADJACENCIES
}
_GRID = Grid(step=STEP, bound=2.0**10)


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Public bounds on a record's anchored outputs, in standard deviations of the anchor.

    outputs, squares: the largest root mean square of the outputs, and of their squares; a record beyond is
    scaled down. What noise is scaled to, so near the typical record is better than at the largest.
    """

    outputs: float
    squares: float

    def __post_init__(self) -> None:
        if not (0 < self.outputs < inf and 0 < self.squares < inf):
            raise ValueError(f"Expected finite bounds > 0, got {self.outputs} and {self.squares}.")

    def moments(self, length: int) -> Moments:
        """For outputs of this length."""
        return Moments(bound=self.outputs * sqrt(length), square_bound=self.squares * sqrt(length))


@dataclass(frozen=True, eq=False)
class RepresentationProfile:
    """A client's profile on the broadcast model, anchored and clipped to public bounds.

    The server sees a score of it, and what the variant does not hide. clip, refresh: as in the options.
    """

    problem: Problem
    variant: Variant
    bounds: Bounds
    clip: Clip | None = None
    refresh: int = 1

    @property
    def sends(self) -> Sends:
        return Sends(
            name="profile",
            how="each",
            reveals="its whole profile",
            reveals_encrypted=_ENCRYPTED[self.variant],
            sensitivity={} if self.clip is None else _CLIPPED,
            grid=_GRID,
            extra=1,
            every=self.refresh,
        )

    def ask(self, baseline: Query) -> Each:
        return Each(self.sends, baseline, self.variant, self.bounds)

    def compute(self, job: Job) -> Value:
        model, layer = self.problem.module(job.model), self.problem.layer
        anchor = Anchor(job.public["anchor_centre"], job.public["anchor_scale"])
        if self.clip is None:
            return self._value(profile(model, layer, job.x), anchor)
        q = len(anchor.centre)
        moments = self.clip.moments(q)
        own = anchor.apply(outputs(model, layer, job.x)) if len(job.x) else np.zeros((0, q))
        anchored = Anchor(np.zeros(q), np.ones(q))

        def then(noised: Floats) -> Value:
            return self._value(moments.profile(noised), anchored)

        return Value(clear=moments.sums(own).astype(np.float64) * STEP, then=then)

    def _value(self, own: Profile, anchor: Anchor) -> Value:
        parts = features(own, anchor, self.bounds).split(self.variant)
        return Value(hidden=parts.hidden, clear=parts.clear)
