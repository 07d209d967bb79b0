"""A plan is what every party computes charges from: its digest, its session and its terms have all of it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from support.every import every

from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError
from securefl.core.release import OTHERS, SERVER

SIZES: dict[str, Any] = {
    "min_cohort_size": 20,
    "max_cohort_size": 40,
    "min_honest": 8,
    "max_client_weight": 0.1,
}
PLAN = Plan(
    sum="masked",
    corrupt=0.2,
    dropout=0.1,
    delta=1e-5,
    max_rounds=10,
    noise="distributed",
    noise_multiplier=2.0,
    adversaries=(SERVER, OTHERS),
    budget=3.0,
    max_releases={"step": 4},
    **SIZES,
)
OTHER: dict[str, Any] = {
    "sum": "ckks",
    "scores": "pads",
    "noise": "local",
    "noise_multiplier": 1.9,
    "dropout": 0.0,
    "separation": 3,
    "coefficients": (1.0, 0.5),
    "decays": (0.9,),
    "sampling_rate": 0.5,
    "corrupt": 0.1,
    "min_cohort_size": 21,
    "max_cohort_size": 39,
    "min_honest": 7,
    "max_client_weight": 0.2,
    "weights": {"step": "draws"},
    "draws": 50,
    "min_num_examples": 2,
    "max_num_examples": 9,
    "min_records": 3,
    "max_records": 99,
    "fixed_batch": 20,
    "public_num_examples": 5,
    "secagg": "semi-honest",
    "max_retries": 1,
    "accepts_kept_state": True,
    "unit": "client",
    "adjacency": "add-remove",
    "delta": 1e-6,
    "non_private": ("step",),
    "adversaries": (SERVER,),
    "budget": 4.0,
    "max_rounds": 11,
    "max_releases": {"step": 5},
}
BESIDE: dict[str, dict[str, Any]] = {
    "weights": {"draws": 50},
    "coefficients": {"separation": 2},
    "decays": {"coefficients": (1.0, 0.5), "separation": 2},
    "fixed_batch": {"dropout": 0.0},
}
"""What a changed field needs beside it."""


def test_every_field_is_in_the_digest() -> None:
    """Two parties with one digest must compute one charge, so no field may differ unseen."""
    assert {one.name for one in fields(Plan)} == set(OTHER), "name another value of a new field"
    for name, value in OTHER.items():
        beside = replace(PLAN, **BESIDE.get(name, {}))
        assert replace(beside, **{name: value}).digest() != beside.digest(), name


def test_a_session_binds_plan_clients_and_run() -> None:
    """A message of another run, or to other clients, is none of this session."""
    own = PLAN.session(["a", "b"], b"run")
    others = [
        PLAN.session(["a", "b"], b"another"),
        PLAN.session(["a", "c"], b"run"),
        PLAN.session(["b", "a"], b"run"),
        replace(PLAN, max_rounds=11).session(["a", "b"], b"run"),
    ]
    assert len({own, *others}) == 5
    assert own == PLAN.session(["a", "b"], b"run")


def test_a_ledger_has_the_plans_terms() -> None:
    terms = PLAN.terms()
    assert (terms.unit, terms.adjacency, terms.delta, terms.budget) == ("record", "replace-one", 1e-5, 3.0)
    assert (terms.adversaries, terms.max_releases) == ((SERVER, OTHERS), {"step": 4})
    assert replace(PLAN, noise="none").terms().max_releases is None


@every(
    "words",
    [{"min_cohort_size": 1}, {"corrupt": 0.9}, {"min_honest": 14}, {"max_client_weight": 0.05}],
)
def test_a_plan_in_which_one_client_stands_out_is_refused(words: dict[str, Any]) -> None:
    """18 of 20 remain, 4 may collude: 14 are honest. One observes, and 12 others surely hide the last."""
    assert (PLAN.survivors(20), PLAN.colluding(20), PLAN.beside(20)) == (18, 4, 12)
    assert PLAN.beside(20, told=False) == 13, "the server observes from outside of the cohort"
    with pytest.raises(ConfigError):
        replace(PLAN, **{**words, **({"min_honest": 15} if "min_honest" in words else {})})
    replace(PLAN, min_honest=14)


@every(
    "wrong",
    [
        *({name: "x"} for name in ("delta", "budget", "noise_multiplier", "dropout", "sampling_rate")),
        *({name: None} for name in ("delta", "max_rounds", "noise_multiplier", "adversaries", "non_private")),
        *({"non_private": "profiles"}, {"adversaries": "server"}, {"adversaries": [SERVER]}),
        *({"max_releases": ["step"]}, {"max_releases": {"step": 1.5}}, {"weights": {"step": "count"}}),
        *({"secagg": "Active"}, {"scores": "none"}, {"unit": "people"}, {"adjacency": "add"}),
        *({"max_retries": -1}, {"max_rounds": 1.5}, {"max_rounds": 0}),
    ],
)
def test_a_misspelt_word_or_another_kind_is_refused_by_name(wrong: dict[str, Any]) -> None:
    """A word that no check reads fails open: non_private = "profiles" let "profile" leave without noise."""
    [name] = wrong
    with pytest.raises(ConfigError, match=f"Expected `?{name}`? as"):
        replace(PLAN, **wrong)
