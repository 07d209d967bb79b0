"""A target epsilon that private training and other noised values share."""

from __future__ import annotations

import pytest
from support.private_studies import DPSGD
from support.tiny_study import composed, text, with_privacy

from securefl.accounting.composition import compose
from securefl.dp.calibration import epsilon_of
from securefl.study.config import parse

ARM = '[[arm]]\nname = "x"\nprotocol = "fedlog"\nbody = "dp-sgd"\n'


def test_training_costs_as_much_as_all_other_noised_values() -> None:
    target = DPSGD.replace("noise_multiplier = 1.2", "epsilon = 2.0").replace("rate = 0.1", "rate = 0.5")
    whole = text(ARM, rounds=4, clients=4, non_private="[]", extra=target)
    of = parse(with_privacy(whole, {"noise": '"local"', "adjacency": '"add-remove"'}))
    algorithm, plan = composed(of)
    (spec,) = [own.spec for own in algorithm.contributions]
    assert spec.training is not None
    releases = plan.max_releases[spec.name]
    training = compose({spec.training: releases - spec.schedule.initial}, plan.delta)
    noised = epsilon_of(plan.noise_multiplier, plan.delta, releases=releases, sensitivity=1.0)
    assert training == pytest.approx(noised, rel=5e-3)
