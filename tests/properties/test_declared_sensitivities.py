"""No neighbour moves any value of any protocol by more than is declared, and a search comes close to it.

The search is in `support.sensitivities`. As a program it prints the worst case of each declaration.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any
from unittest import mock

import numpy as np
import pytest
from support.every import every
from support.sensitivities import ACROSS, CASES, ODD, SEARCHES, declared, worst

import securefl
import securefl.protocols
from securefl.algorithm.clients import ClientContext
from securefl.algorithm.plan import Plan
from securefl.core.installed import entry_points
from securefl.deployment.messages import Computed
from securefl.deployment.updates import Updates
from securefl.protocols.class_counts import COUNTS, Counts

_LOOSE = {
    "statistic client/replace-one": 0.4,  # counts are positive, so two clients are never opposite
    "profile record/replace-one": 0.8,
    "loss record/add-remove": 0.4,  # a cross-entropy of float32 stays far below a bound of 10^6
    "loss record/replace-one": 0.4,
}
"""How close the search comes, where it is not 98 % of what is declared."""


def contributions(slow: bool) -> list[Any]:
    """Each contribution that declares a sensitivity, with its case."""
    return [
        pytest.param(contribution, id=f"{case} {contribution.spec.name}")
        for case in CASES
        for contribution in case.contributions()
        if case.slow == slow and contribution.spec.sensitivity
    ]


def hold(contribution: Any, draws: int) -> None:
    for pair, most in contribution.spec.sensitivity.items():
        found = worst(contribution, pair, draws)
        if not most:
            assert found == 0, pair
            continue
        least = _LOOSE.get(f"{contribution.spec.name} {'/'.join(pair)}", 0.98)
        # the integers are exact, and so is their square; the declared number is rounded once or twice
        assert least <= found <= 1 + 2**-50, f"{pair}: {found} of what is declared"


@pytest.mark.parametrize("contribution", contributions(slow=False))
def test_no_neighbour_moves_a_value_further_than_declared(contribution: Any) -> None:
    hold(contribution, 10)


@pytest.mark.slow
@pytest.mark.parametrize("contribution", [*contributions(slow=False), *contributions(slow=True)])
def test_nor_does_a_longer_search_find_one(contribution: Any) -> None:
    hold(contribution, 300)


def test_every_declared_pair_of_every_protocol_is_searched() -> None:
    """A protocol more, a kind of value more or a unit more fails here, until somebody adds a search."""
    assert {case.protocol for case in CASES} == {p.name for p in entry_points(group="securefl.protocols")}
    missing = {
        (type(contribution).__name__, pair)
        for _, contribution, pair in declared()
        if (type(contribution), pair[0]) not in SEARCHES
    }
    assert not missing
    # A value that declares no sensitivity has nothing to be searched.
    # The counts beside a hidden sum without noise are of no case, since cases are in the open.
    assert not COUNTS.sensitivity
    met = {Counts} | {type(contribution) for case in CASES for contribution in case.contributions()}
    for module in pkgutil.walk_packages(securefl.protocols.__path__, "securefl.protocols."):
        if ".studies" in module.name:
            continue
        for kind in vars(importlib.import_module(module.name)).values():
            own = isinstance(kind, type) and kind.__module__ == module.name
            made = own and hasattr(kind, "compute") and hasattr(kind, "spec")  # a base states no value
            if made and not getattr(kind, "_is_protocol", False):
                assert kind in met, f"{kind.__name__} is in no case of `support.sensitivities`"


def test_the_search_finds_what_truncation_adds_to_a_clipped_statistic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The defect that it was written for: FedLog declared sqrt 2 with a `client_bound`, too."""
    monkeypatch.setattr("securefl.dp.clipping.spread", lambda entries, limit: 0.0)
    at_the_edge = [entry for entry in declared() if entry[0].options.get("client_bound") == ACROSS]
    found = [
        worst(contribution, pair, 3)
        for _, contribution, pair in at_the_edge
        if pair == ("record", "add-remove")
    ]
    assert max(found) > 1.001


# Values that no protocol sends -------------------------------------------------------------------


class _App:
    """An app that computes whatever it likes."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def note(self, what: str, why: str) -> None:
        """Nobody owns this party."""

    def compute(self, asked: Any) -> Computed:
        own = self.values if asked.kind == "train" else np.zeros(0)
        metrics = self.values[: len(asked.metrics)]
        return Computed(values=own, metrics=metrics, examples=5)


@every("bound", [1e-6, 0.3, 1.0, 1e6])
def test_updates_of_an_app_keep_to_their_bound(bound: float) -> None:
    made = Updates(evaluation=("accuracy", "loss"), update_bound=bound, evaluation_bound=bound)
    plan = Plan(
        unit="client", adjacency="zero-out", delta=1e-5, max_rounds=1, noise="local", noise_multiplier=1.0
    )
    rng = np.random.default_rng(0)
    vectors = [
        *(np.full(6, odd) for odd in ODD),
        *(10 ** rng.uniform(-7, 7) * rng.normal(size=6) for _ in range(60)),
    ]
    for values in vectors:
        for given in made.contributions(plan, _App(values)):  # type: ignore[arg-type]
            context = ClientContext(
                client=0, round=1, x=np.zeros((1, 1)), y=np.zeros(1), broadcast=np.zeros(6, np.float32),
                public={}, rng=rng,
            )  # fmt: skip
            found = given.compute(context).integers
            assert found is not None
            limit = given.spec.sensitivity["client", "zero-out"] / given.spec.grid.step
            assert sum(int(v) ** 2 for v in found) <= limit**2
            assert given.spec.sensitivity["client", "replace-one"] == 2 * bound


@every("clip", [1e-9, 0.3, 1.0, 7e12])
def test_a_vector_in_a_masked_sum_keeps_to_its_clip(clip: float) -> None:
    rng = np.random.default_rng(0)
    for direction in (np.ones(5), np.eye(5)[0], *rng.normal(size=(6, 5))):
        with mock.patch(
            "securefl.mechanisms.distributed.discrete", lambda *drawn: np.zeros(drawn[0], np.int64)
        ):
            found = securefl.masked_sum(
                [direction * clip * 1e3, np.zeros(5)],
                clip=clip, noise_multiplier=2.0, delta=1e-5, corrupt=0.0, min_honest=1, max_client_weight=0.5,
            )  # fmt: skip
        integers = np.rint(found.total / (clip * 2.0**-16)).astype(np.int64)
        assert 0.99 * 2**32 < sum(int(v) ** 2 for v in integers) <= 2**32
