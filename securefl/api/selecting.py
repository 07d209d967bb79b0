"""`securefl.select_by_profile`: client selection by encrypted profiles, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from securefl.accounting.named_ledger import Id
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import PerClient, Schedule, Value, ValueSpec
from securefl.api.ledgers import ask
from securefl.api.vectors import named
from securefl.core.arguments import checked
from securefl.core.draws import sample_without_replacement
from securefl.core.errors import ConfigError, DataError, ProtocolError
from securefl.dp.moments import MeanVariance
from securefl.matching import Options, Profile
from securefl.matching.profiles import Anchor, Bounds

ProfileLike = Profile | MeanVariance | tuple[Any, Any]
_NAME: Final = "profile"
_STEEPEST: Final = 1e100
"""The largest alpha: its product with any score is finite."""


@dataclass(frozen=True, eq=False)
class Selected:
    """A selection of clients by their profiles.

    Attributes:
        clients: the selected clients' ids, in the order of the draw.
        scores: the divergence of each client's profile from the baseline, as the server learnt it.
        absent: the reason for each client without a score. Such a client is not selected.
        learns: what each party learnt, in words, by "server", "key-holder" and "others".
        epsilon: for each party, the largest epsilon that any client of the ledger has spent. A score has no
            noise, so it is infinite against the server and the others.
    """

    clients: tuple[Any, ...]
    scores: Mapping[Any, float]
    absent: Mapping[Any, str]
    learns: Mapping[str, str]
    epsilon: Mapping[str, float]


# It checks `rng` too: if the draw failed behind the scores, these would be spent in vain.
@checked
def select_by_profile(
    profiles: Mapping[Any, ProfileLike] | Sequence[ProfileLike],
    baseline: ProfileLike,
    count: int,
    *,
    alpha: float,
    rng: np.random.Generator,
    scores: Literal["ckks", "pads"] = "pads",
    parameters: str = "strong",
    anchor: Anchor | None = None,
    bounds: Bounds | None = None,
    delta: float | None = None,
    budget: float | None = None,
    ledger: Path | str | None = None,
    max_releases: int = 1,
) -> Selected:
    """Select clients by the divergence of their profiles from a baseline, computed encrypted (FedProf).

        >>> import numpy as np, securefl
        >>> near, far = ([0.1, 0.0], [1.0, 1.1]), ([3.0, -2.0], [1.0, 4.0])
        >>> profiles = {"ann": near, "bob": near, "eve": far}
        >>> rng = np.random.default_rng(0)
        >>> middle = ([0.0, 0.0], [1.0, 1.0])
        >>> found = securefl.select_by_profile(profiles, middle, 2, alpha=50.0, rng=rng)
        >>> sorted(found.clients), found.scores["eve"] > found.scores["ann"]
        (['ann', 'bob'], True)

    All parties run in this process, and every message passes as bytes. The server learns one score of each
    client. The key holder must not collude with the server. It learns the baseline, and under "ckks" who
    takes part.

    Args:
        profiles: each client's profile by its id, or a list, as for `masked_sum`: a `Profile`, or a pair of
            mean and variance, (q,) each.
        baseline: the server's own profile.
        count: the number of clients to select. If fewer have a score, all of these are selected.
        alpha: clients are drawn without replacement with probability proportional to exp(-alpha * score).
        rng: for the draw. Keys and pads come from the operating system.
        scores: "pads", with which clients mask integers and no party has a homomorphic key; or "ckks".
        parameters: of the key: "strong" or "compact". Of pads: "words-64", which is also
            "strong", or "words-128".
        anchor: a public centre and scale of every element. By default profiles are not standardised.
        bounds: the bounds to which values are clipped, in units of the anchor.
        ledger, delta, budget: as for `masked_sum`. A score has no noise, so a ledger with a budget refuses
            it: share one without.
        max_releases: the most scores of one client that the ledger allows, in all calls with it. Each score
            is one linear function of the profile: as many scores as the profile has numbers can reveal it
            whole.

    Returns:
        The selected clients with all scores and reasons.

    Raises:
        ConfigError: an argument is of another type, the count is above the number of clients, or the bounds
            would change the baseline.
        DataError: profiles are not valid, or have different lengths.
        BudgetExceeded: the ledger does not bear the scores. No score left.
        ProtocolError: no client has a score.
    """
    given = {name: _plain(name, own) for name, own in named(profiles, "profiles").items()}
    middle = _plain("the baseline", baseline)
    _require(given, middle, count, alpha)
    if max_releases < 1:
        raise ConfigError(f"Expected max_releases of 1 or more, got {max_releases}.")
    if ledger is not None and delta is None:
        raise ConfigError("Expected `delta` with a ledger, since it is one of the ledger's terms.")
    if budget is not None and ledger is None:
        raise ConfigError("Expected `ledger` with `budget`: without a ledger charges do not add up.")
    options = Options(bounds=bounds or Bounds(weight=1024), anchor=anchor)
    spec = ValueSpec(
        name=_NAME,
        reduction="none",
        reveals="its whole profile",
        reveals_encrypted="one score, its profile's divergence from the baseline",
        on_model=False,
        schedule=Schedule(max_releases=max_releases),
        spread=True,
    )
    plan = Plan(
        scores=scores,
        unit="client",
        adjacency="zero-out",
        # A score has no noise, so epsilon is infinite at every delta.
        delta=0.5 if delta is None else delta,
        budget=budget,
        non_private=(_NAME,),
        max_rounds=1,
    )
    linear = options.query(middle).linear(options.variant, options.bounds)

    def compute(name: Id) -> Value:
        parts = options.features(given[name]).split(options.variant)
        return Value(hidden=parts.hidden, clear=parts.clear)

    asked = (PerClient(spec, linear),)
    answers, there, told, _ = ask(
        plan,
        spec,
        list(given),
        compute,
        ledger,
        bounds=linear.bounds,
        parameters=parameters,
        per_client=asked,
    )
    if not there:
        raise ProtocolError(
            f"Expected a score of some client, got none: {'; '.join(told['absent'].values())}"
        )
    found = {name: answers.per_client[_NAME][name] for name in there}
    drawn = sample_without_replacement(-alpha * np.array(list(found.values())), min(count, len(found)), rng)
    return Selected(clients=tuple(list(found)[place] for place in drawn), scores=found, **told)


def _plain(name: Id, own: ProfileLike) -> MeanVariance:
    """A checked profile. Raises DataError, with the name, if it is not valid."""
    try:
        match own:
            case MeanVariance():
                return own
            case (mean, variance):
                return Profile(mean, variance)
    except (DataError, ValueError, TypeError) as error:
        raise DataError(f"{name}: {error}") from None
    raise DataError(f"{name}: expected a Profile, or a pair of mean and variance, got {type(own).__name__}.")


def _require(given: Mapping[Id, MeanVariance], middle: MeanVariance, count: int, alpha: float) -> None:
    if not 1 <= count <= len(given):
        raise ConfigError(f"Expected a count from 1 to {len(given)}, the number of clients, got {count}.")
    if not abs(alpha) <= _STEEPEST:
        raise ConfigError(f"Expected a finite alpha within +-{_STEEPEST:g}, got {alpha}.")
    for name, own in given.items():
        if len(own) != len(middle):
            raise DataError(
                f"Expected profiles of {len(middle)} elements, as the baseline has, got {len(own)} of {name}."
            )
