"""FedProf's options, and the composition they name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from securefl.algorithm.clients import Algorithm
from securefl.core.errors import ConfigError
from securefl.matching.profiles import Bounds, Variant
from securefl.protocols.averaging import Aggregation, Averaging, aggregated, check_fraction
from securefl.protocols.fedprof.selection import Alpha, ByProfile
from securefl.protocols.fedprof.statistic import Clip, RepresentationProfile
from securefl.training.task import Problem


@dataclass(frozen=True, kw_only=True)
class FedProf:
    """Options of FedProf.

    fraction: C; K = ceil(C N) clients a round.
    aggregation: as in FedAvg.
    alpha: penalty on divergence: one number, one per client, or "theorem-1" (v2: lambda_k = n_k / n). The
        papers use 10 (GasTurbine, EMNIST) and 25 (CIFAR-10). 0 is uniform selection.
    replacement: draw with replacement, as Theorem 1 needs. The default is without.
    variant: which part of a profile is concealed if `scores` are not clear: "full", or "mean-only" (variances
        then reach the server in plaintext).
    bounds: public bounds that profiles are clipped to before they leave.
    clip: public bounds that each record's outputs are clipped to. Without them profiles cannot be noised.
    refresh: chosen clients send a new profile in rounds refresh, 2 refresh and so on. A larger number leaves
        fewer releases to divide the noise among. The papers use 1.
    max_releases: the most profiles that leave a client, as its ledger counts them over all studies. A score
        is one linear function of a profile, so enough of them tell all of it. By default as many as one study
        asks for: a further study on the same ledger declares more.
    """

    fraction: float
    aggregation: Aggregation = field(default="partial", metadata={"words": aggregated})
    alpha: Alpha = 10.0
    replacement: bool = False
    variant: Variant = Variant.FULL
    bounds: Bounds = field(default_factory=Bounds)
    clip: Clip | None = None
    refresh: int = 1
    max_releases: int | None = None

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        numbers = (
            ()
            if isinstance(self.alpha, str)
            else (self.alpha,)
            if isinstance(self.alpha, (int, float))
            else self.alpha
        )
        if any(not 0 <= number < float("inf") for number in numbers):
            raise ValueError(f"Expected alpha >= 0 and finite, got {self.alpha}.")
        if self.refresh < 1:
            raise ValueError(f"Expected refresh >= 1, got {self.refresh}.")
        if self.max_releases is not None and self.max_releases < 1:
            raise ValueError(f"Expected max_releases >= 1, got {self.max_releases}.")

    def build(self, problem: Problem) -> Algorithm:
        if isinstance(self.alpha, tuple) and len(self.alpha) != problem.clients:
            raise ConfigError(
                f"Expected one alpha for each of {problem.clients} clients, got {len(self.alpha)}."
            )
        # one object, so that what clients offer and what the selection asks for cannot differ
        most: int | Literal["schedule"] = "schedule" if self.max_releases is None else self.max_releases
        profile = RepresentationProfile(problem, self.variant, self.bounds, self.clip, self.refresh, most)
        selection = ByProfile(problem, self.alpha, profile, self.replacement)
        return Averaging(
            problem=problem,
            selection=selection,
            fraction=self.fraction,
            aggregation=self.aggregation,
            replacement=self.replacement,
        )
