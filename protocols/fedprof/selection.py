"""Selection by profile: lambda_k = exp(-alpha_k div(RP_k, RP^B)) (v2, Eq. 7 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from securefl.algorithm.clients import Offer, Population, State
from securefl.algorithm.queries import Each, Floats
from securefl.core.draws import gumbel_top_k
from securefl.matching.profiles import Anchor, Query, query
from securefl.protocols.averaging import Chosen, known_or_mean
from securefl.protocols.contributions import Size
from securefl.protocols.fedprof.statistic import RepresentationProfile
from securefl.protocols.selection import admitted, with_replacement
from securefl.training import probe_profile, profile
from securefl.training.task import Problem

Alpha = float | tuple[float, ...] | Literal["theorem-1"]


@dataclass(frozen=True, eq=False)
class ByProfile:
    """K clients with weights exp(-alpha_k div_k), in the log domain: the weights themselves underflow.

    A client's divergence is taken when its profile arrives, against the baseline of the same model version
    (Algorithm 1, lines 8, 12, 13). It stays until the client is selected again.
    """

    problem: Problem
    alpha: Alpha
    profile: RepresentationProfile
    replacement: bool

    @property
    def offers(self) -> tuple[Offer, ...]:
        own: tuple[Offer, ...] = (self.profile,)
        return (*own, Size(self.problem)) if self.alpha == "theorem-1" else own

    def watch(self, state: State) -> tuple[tuple[Each, ...], Mapping[str, Floats]]:
        """Line 18: the baseline profile of the current model on the server's records."""
        # The anchor comes from public inputs, not from the baseline: a rounded baseline would leak.
        anchor, baseline = self._baseline(state)
        public = {"anchor_centre": anchor.centre, "anchor_scale": anchor.scale}
        return (self.profile.ask(baseline),), public

    def _baseline(self, state: State) -> tuple[Anchor, Query]:
        problem = self.problem
        model = problem.to_read(state.broadcast)
        # a model of text puts out a number for each character that it reads
        characters = problem.outputs if problem.model.reads_text else None
        probed = probe_profile(model, problem.layer, problem.shape, problem.seed, characters=characters)
        anchor = Anchor.of(probed)
        return anchor, query(profile(model, problem.layer, problem.server_x), anchor, self.profile.bounds)

    def log_weights(self, state: State) -> Floats:
        """log lambda_k, shape (N,); NaN for a client whose profile never arrived.

        A divergence counts as at least 0. A smaller one is the noise of an encrypted score, or a lie, and
        must not raise a client's weight.
        """
        divergence: Floats = np.maximum(state.memory["profile"], 0.0)
        if self.alpha == "theorem-1":
            # alpha_k = -ln(Lambda rho_k) / div_k with Lambda = 1 is lambda_k = rho_k = n_k / n
            sizes = known_or_mean(state.memory["size"])
            return np.where(np.isnan(divergence), np.nan, np.log(sizes / sizes.sum()))
        return -np.asarray(self.alpha, dtype=np.float64) * divergence

    def choose(
        self, state: State, population: Population, count: int, number: int, rng: np.random.Generator
    ) -> Chosen:
        yield from ()
        chances = population.among(self.log_weights(state))
        if not self.replacement:
            return gumbel_top_k(chances, count, rng), state
        return admitted(lambda: with_replacement(chances, count, rng), population.admits), state

    def figures(self, state: State) -> Mapping[str, Floats]:
        """The newest known divergence, at least 0: smaller ones are the noise of encrypted scores."""
        return {"divergence": np.maximum(state.memory["profile"], 0.0)}
