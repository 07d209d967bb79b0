"""FedProf's options, and its selection of clients by profile (v2, Eq. 7 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from securefl.algorithm import (
    Algorithm,
    Contribution,
    Floats,
    PerClient,
    Population,
    State,
    sample_without_replacement,
)
from securefl.core.ranges import Count, Weight
from securefl.errors import ConfigError
from securefl.matching import Bounds, Variant
from securefl.matching.profiles import query
from securefl.protocols.averaging import (
    Aggregation,
    Averaging,
    Cohort,
    Selection,
    aggregated,
    known_or_mean,
)
from securefl.protocols.contributions import Size
from securefl.protocols.fedprof.statistic import Clip, RepresentationProfile
from securefl.protocols.selection import with_replacement
from securefl.protocols.stale import Aggregating, part_of
from securefl.training import Problem, profile

Alpha = Weight | tuple[Weight, ...] | Literal["theorem-1"]


def log_weights(divergences: Floats, alpha: float | Sequence[float] | Floats) -> Floats:
    """log lambda_k = -alpha_k div_k, the log weight of each client (FedProf v2, Eq. 7).

    It stays a logarithm, since the weights themselves underflow. A divergence below 0 counts as 0: it is the
    noise of an encrypted score, or a lie, and must not raise a client's weight.

    Args:
        divergences: div(RP_k, RP^B), float64 (N,). nan is unknown.
        alpha: the penalty on divergence, one number or one per client, (N,).

    Returns:
        float64 (N,), nan for a client of unknown divergence.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.fedprof import log_weights
    >>> log_weights(np.array([0.1, 0.4]), alpha=10.0)
    array([-1., -4.])
    """
    return -np.asarray(alpha, dtype=np.float64) * np.maximum(divergences, 0.0)


@dataclass(frozen=True, eq=False)
class ByProfile(Selection):
    """Selects K clients with weights exp(-alpha_k div_k), as a `Selection` of federated averaging.

    A client's divergence is taken when its profile arrives, against the baseline of the same model version
    (Algorithm 1, lines 8, 12, 13). It stays until the client is selected again.

    Raises nothing when it is made. `choose` raises ConfigError if `count` is above the number of clients.

    >>> import numpy as np
    >>> from securefl.algorithm.clients import State
    >>> from securefl.protocols.fedprof import FedProf
    >>> from securefl.training import LocalTraining, ModelConfig
    >>> from securefl.training.task import Problem
    >>> local = LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=8)
    >>> problem = Problem(
    ...     model=ModelConfig(kind="mlp"), local=local, kind="classification", shape=(4,), outputs=2,
    ...     clients=2, records=30, server_x=np.zeros((2, 4)), server_y=np.zeros(2, np.int64), seed=0
    ... )
    >>> selection = FedProf(fraction=0.5, alpha=10.0).build(problem).selection
    >>> selection.log_weights(State(problem.initial, {"profile": np.array([0.1, 0.4])}))
    array([-1., -4.])
    """

    problem: Problem
    options: FedProf
    profile: RepresentationProfile

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        own: tuple[Contribution, ...] = (self.profile,)
        return (*own, Size(self.problem)) if self.options.alpha == "theorem-1" else own

    def watch(self, state: State) -> tuple[tuple[PerClient, ...], Mapping[str, Floats]]:
        """Return the query for profiles on the current model, with its baseline (Algorithm 1, line 18).

        Args:
            state: the server's state, with the current model.

        Returns:
            One linear query, and the anchor of the broadcast model: "anchor_centre" and "anchor_scale",
            float64 (q,) each. Both follow from public inputs. The baseline's weights stay with the server.
        """
        # The anchor comes from public inputs. An anchor made from the baseline would reveal the baseline.
        problem, anchor = self.problem, self.profile.anchor(state.broadcast)
        x = problem.server_x
        if not len(x):  # an error would reveal that no client's record became the server's
            x = np.zeros((1, *problem.shape), x.dtype)
        own = profile(problem.to_read(state.broadcast), problem.layer, x)
        baseline = query(own, anchor, self.profile.bounds)
        public = {"anchor_centre": anchor.centre, "anchor_scale": anchor.scale}
        return (self.profile.query(baseline),), public

    def log_weights(self, state: State) -> Floats:
        """Return log lambda_k, the clients' log weights (Eq. 7; with alpha "theorem-1" log n_k / n).

        Args:
            state: the server's state, with the newest divergences.

        Returns:
            float64 (N,), nan for a client whose profile never arrived.
        """
        divergence: Floats = state.memory["profile"]
        if self.options.alpha == "theorem-1":
            # alpha_k = -ln(Lambda rho_k) / div_k with Lambda = 1 is lambda_k = rho_k = n_k / n
            sizes = known_or_mean(state.memory["size"])
            return np.where(np.isnan(divergence), np.nan, np.log(sizes / sizes.sum()))
        return log_weights(divergence, self.options.alpha)

    def draw(self, state: State, population: Population, count: int, rng: np.random.Generator) -> Cohort:
        chances = population.among(self.log_weights(state))
        if not self.options.replacement:
            return sample_without_replacement(chances, count, rng)
        return with_replacement(chances, count, rng, population.admits)

    def figures(self, state: State) -> Mapping[str, Floats]:
        """Return the newest known divergence of each client.

        Args:
            state: the server's state after the round.

        Returns:
            "divergence": float64 (N,), at least 0, nan for a client whose profile never arrived.
        """
        return {"divergence": np.maximum(state.memory["profile"], 0.0)}


@dataclass(frozen=True, kw_only=True)
class FedProf(Aggregating):
    """Options of FedProf.

    aggregation, stale: as in FedAvg; a cache needs full aggregation.
    alpha: penalty on divergence: one number, one per client, or "theorem-1" (v2: lambda_k = n_k / n). The
        papers use 10 (GasTurbine, EMNIST) and 25 (CIFAR-10). 0 is uniform selection.
    replacement: draw with replacement, as Theorem 1 needs. The default is without.
    variant: the part of a profile that is concealed if `scores` are not clear: "full", or "mean-only"
        (variances then reach the server in plaintext).
    bounds: public bounds that profiles are clipped to before they leave a client.
    clip: public bounds that each record's outputs are clipped to. Without them profiles cannot be noised.
    refresh: chosen clients send a new profile in rounds refresh, 2 refresh and so on. A larger number gives
        fewer releases, and so less noise on each. The papers use 1.
    max_releases: the most profiles that leave a client, as its ledger counts them over all studies. A score
        is one linear function of a profile, so enough scores reveal all of it. By default the number that one
        study asks for. A second study on the same ledger declares more.

    Raises ValueError for options out of range.

    >>> from securefl.protocols.fedprof import FedProf
    >>> FedProf(fraction=0.1).alpha
    10.0
    """

    aggregation: Aggregation = field(default="partial", metadata={"words": aggregated})
    alpha: Alpha = 10.0
    replacement: bool = False
    variant: Variant = Variant.FULL
    bounds: Bounds = field(default_factory=Bounds)
    clip: Clip | None = None
    refresh: Count = 1
    max_releases: Count | None = None

    def build(self, problem: Problem) -> Algorithm:
        if isinstance(self.alpha, tuple) and len(self.alpha) != problem.clients:
            raise ConfigError(
                f"Expected one alpha for each of {problem.clients} clients, got {len(self.alpha)}."
            )
        # one contribution, so that the selection asks for the very value that clients contribute
        most: int | Literal["schedule"] = "schedule" if self.max_releases is None else self.max_releases
        profile = RepresentationProfile(problem, self.variant, self.bounds, self.clip, self.refresh, most)
        return Averaging(
            problem=problem,
            selection=ByProfile(problem, self, profile),
            fraction=self.fraction,
            aggregation=self.aggregation,
            part=part_of(problem, self.stale),
            replacement=self.replacement,
        )
