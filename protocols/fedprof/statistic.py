"""FedProf's representation profile of a client: the plain one, and one of clipped outputs for noise.

`profile_spec` gives its specification, and the function that makes it from arrays. `RepresentationProfile` is
a client's contribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import sqrt
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    ClientContext,
    Float32s,
    Floats,
    PerClient,
    Schedule,
    Value,
    ValueSpec,
)
from securefl.core.ranges import Positive, Ranged
from securefl.dp import MeanVariance, Moments
from securefl.dp.moments import GRID, require_same_length
from securefl.errors import DataError
from securefl.linear import LinearBounds
from securefl.matching import Anchor, Bounds, Variant
from securefl.matching.profiles import ProfileQuery, features
from securefl.protocols.contributions import ADJACENCIES, Sensitivity
from securefl.training import Problem, outputs, probe_profile, profile
from securefl.training.jobs import readable

ANCHORS_APART: Final = 0.05
"""How far a client lets an anchor be from that of the model, in the model's scales.

Kernels of machines differ by less, and a server gains nothing within it.
"""
_ENCRYPTED = {
    Variant.FULL: "one score of its profile",
    Variant.MEAN_ONLY: "one score of its profile, and the variances in it",
}
_CLIPPED: Sensitivity = {("record", a): Moments.sensitivity(a) for a in ADJACENCIES}


_BOUNDS: Final = Bounds()


@dataclass(frozen=True, kw_only=True)
class Clip(Ranged):
    """Public bounds on a record's anchored outputs, in standard deviations of the anchor.

    outputs, squares: the largest root mean square of the outputs, and of their squares. A record beyond it is
    scaled down. Noise is scaled to these bounds, so values near the typical record are better than the
    largest.

    Raises ValueError for a bound that is not finite and above 0.

    >>> from securefl.protocols.fedprof import Clip
    >>> Clip(outputs=1.5, squares=4.0).moments(16).bound
    6.0
    """

    outputs: Positive
    squares: Positive

    def moments(self, length: int) -> Moments:
        """The moments of a layer with this many outputs, whose bounds grow with the root of that number."""
        return Moments(bound=self.outputs * sqrt(length), square_bound=self.squares * sqrt(length))


def profile_spec(
    clip: Clip,
    *,
    bounds: Bounds = _BOUNDS,
    variant: Variant = Variant.FULL,
    refresh: int = 1,
    max_releases: int | Literal["schedule"] = "schedule",
) -> tuple[ValueSpec, Callable[[Floats, Anchor], Value]]:
    """The specification of a client's profile, and the function that computes it (FedProf v2, section 3.2).

    The server learns a score of the profile, and the variances too with the variant "mean-only". Each record
    becomes integers for a count, its outputs and their squares, and these are summed. A record with outputs
    that are not finite is left out. Without a record the sums are 0. Means, variances and the parts that a
    score reads are made after the noise (Eq. 2).

    Sensitivity (L2): one record moves the sums by 1.5 under add-remove, and by sqrt(6) under replace-one.

    Args:
        clip: public bounds on a record's anchored outputs.
        bounds: public bounds on the profile, to which it is clipped after the noise.
        variant: the part of a profile that is concealed if scores are encrypted.
        refresh: the number of rounds from one profile of a client to its next one.
        max_releases: the most profiles that leave a client, as in `Schedule`.

    Returns:
        The specification, with the name "profile", and a function of the outputs of the profiled layer,
        float64 (n, q), where n may be 0, and the public anchor of its q outputs. Its value has 2 q + 1
        `integers`, and `after_noise`, which makes the profile of noised sums. The function raises DataError
        for outputs that are not of q elements.

    Raises:
        LocalProtocolError: `max_releases` is neither a whole number from 1 nor "schedule".

    >>> import numpy as np
    >>> from securefl.matching.profiles import Anchor
    >>> from securefl.protocols.fedprof import Clip, profile_spec
    >>> spec, profile = profile_spec(Clip(outputs=1.5, squares=4.0))
    >>> spec.sensitivity["record", "add-remove"]
    1.5
    >>> value = profile(np.array([[0.5, -0.5], [1.0, 0.0]]), Anchor(np.zeros(2), np.ones(2)))
    >>> value.after_noise(value.floats()).hidden.round(2)  # means, squares with variances, logarithms
    array([ 0.75, -0.25,  0.62,  0.12, -5.55])
    """
    return _spec(variant, clip, refresh, max_releases), partial(_clipped, clip, bounds, variant)


def _spec(
    variant: Variant, clip: Clip | None, refresh: int, max_releases: int | Literal["schedule"]
) -> ValueSpec:
    """The specification. Without `clip` there is no bound, and no noise."""
    return ValueSpec(
        name="profile",
        reduction="none",
        reveals="its whole profile",
        reveals_encrypted=_ENCRYPTED[variant],
        sensitivity={} if clip is None else _CLIPPED,
        bounded_by={"record": "`clip` in its arm, and noise"},
        grid=GRID,
        schedule=Schedule(period=refresh, initial=1, max_releases=max_releases),
        spread=True,
    )


def _clipped(clip: Clip, bounds: Bounds, variant: Variant, own: Floats, anchor: Anchor) -> Value:
    """The profile of outputs (n, q): clipped, summed, and ready for noise."""
    q = len(anchor.centre)
    moments = clip.moments(q)

    # Outputs are anchored before the noise, so that clipping has one scale. The noised profile then needs the
    # anchor of centre 0 and scale 1.
    def then(noised: Floats) -> Value:
        return _value(moments.profile(noised), Anchor(np.zeros(q), np.ones(q)), bounds, variant)

    return Value(integers=moments.sums(anchor.apply(own)), step=GRID.step, after_noise=then)


def _anchor(public: Mapping[str, Floats]) -> Anchor:
    """The anchor that was broadcast beside the model. Raises DataError if there is none."""
    try:
        return Anchor(public["anchor_centre"], public["anchor_scale"])
    except KeyError as missing:
        raise DataError(f"Expected an anchor beside the model, got none: {missing} is missing.") from None


def _value(own: MeanVariance, anchor: Anchor, bounds: Bounds, variant: Variant) -> Value:
    found = features(own, anchor, bounds)
    parts = found.split(variant)
    return Value(
        hidden=parts.hidden,
        clear=parts.clear,
        clipped=found.clipped,
        floored=found.floored,
    )


@dataclass(frozen=True, eq=False)
class RepresentationProfile:
    """A client's contribution: its profile on the broadcast model, anchored and clipped to public bounds.

    The server learns a score of it, and the variances too with the variant "mean-only".

    clip, refresh: as in the options.
    max_releases: as in `Schedule`.
    """

    problem: Problem
    variant: Variant
    bounds: Bounds
    clip: Clip | None = None
    refresh: int = 1
    max_releases: int | Literal["schedule"] = "schedule"

    @property
    def spec(self) -> ValueSpec:
        return replace(_spec(self.variant, self.clip, self.refresh, self.max_releases), reads_state="none")

    def anchor(self, broadcast: Float32s) -> Anchor:
        """The public anchor of a broadcast model: its statistics on public random inputs.

        Raises DataError for a broadcast that is no model of the problem.
        """
        return self._anchors(broadcast.tobytes())

    @cached_property
    def _anchors(self) -> Callable[[bytes], Anchor]:
        """Makes anchors. All clients of a machine take that of the newest broadcast from here."""

        def made(broadcast: bytes) -> Anchor:
            problem = self.problem
            model, codes = problem.to_read(np.frombuffer(broadcast, np.float32)), problem.codes
            least = None if codes is None else int(codes.min())
            return Anchor.of(
                probe_profile(model, problem.layer, problem.shape, problem.seed, characters=least)
            )

        return lru_cache(maxsize=1)(made)

    def linear_bounds(self, broadcast: Float32s, public: Mapping[str, NDArray[Any]]) -> LinearBounds:
        """The bounds of its queries on this model.

        Raises DataError unless the anchor beside the model is that of the model. A server that chooses the
        anchor moves all elements but one to their bounds, so that the score tells that element.
        """
        came, own = _anchor(public), self.anchor(broadcast)
        require_same_length("the anchor", came.centre, "the model's anchor", own.centre)
        moved, wider = (came.centre - own.centre) / own.scale, came.scale / own.scale - 1
        apart = np.abs([moved, wider]).max()
        if not apart <= ANCHORS_APART:
            raise DataError(
                f"Expected the anchor of the broadcast model, within {ANCHORS_APART:g} of its scale, got one "
                f"that is {apart:.3g} from it."
            )
        return self.bounds.linear(len(own.centre), self.variant)

    def query(self, baseline: ProfileQuery) -> PerClient:
        return PerClient(self.spec, baseline.linear(self.variant, self.bounds))

    def nothing(self, context: ClientContext) -> Value:
        """The value without records: noised zeros, or a profile at the public bounds, the worst to select."""
        if self.clip is not None:
            return self.compute(context)
        anchor = _anchor(context.public)
        far = anchor.centre + 1e9 * anchor.scale
        return _value(MeanVariance(far, np.square(anchor.scale), 1), anchor, self.bounds, self.variant)

    def compute(self, context: ClientContext) -> Value:
        model, layer = self.problem.to_read(context.broadcast), self.problem.layer
        if self.clip is None:
            own = profile(model, layer, context.x)
            return _value(own, _anchor(context.public), self.bounds, self.variant)
        anchor = _anchor(context.public)
        x = context.x[readable(self.problem, context.x)]
        # Without records it sends noised zeros: silence would tell that it has none.
        read = outputs(model, layer, x) if len(x) else np.zeros((0, len(anchor.centre)))
        return _clipped(self.clip, self.bounds, self.variant, read, anchor)
