"""FedLog-C: class means, and the loss that draws features to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.every import every
from support.trained_bodies import context, prepared, world

from securefl.protocols.class_sums import Clipping, class_means
from securefl.protocols.fedlog.bodies import Clustering, Trained
from securefl.protocols.fedlog.options import FedLog
from securefl.training.chunks import body_features
from securefl.training.heads import activated, with_features
from securefl.training.local import penalty_of
from securefl.training.task import Bodies


def test_class_means_do_not_trust_small_counts() -> None:
    statistic = np.array([[4.0, 8.0, -4.0], [0.5, 3.0, 3.0], [-2.0, 1.0, 1.0], [1.0, 5.0, 6.0]])
    means = class_means(statistic)
    np.testing.assert_array_equal(means[[0, 3]], [[2.0, -1.0], [5.0, 6.0]])
    assert np.isnan(means[[1, 2]]).all()


def clustering(means: Any, compact: float, apart: float) -> Clustering:
    """The penalty of a statistic of one record a class, and of none where a class has no mean."""
    there = np.isfinite(means).all(axis=1)
    statistic = np.column_stack([there, np.nan_to_num(means)]).astype(np.float32)
    return Clustering(statistic=statistic.tobytes(), classes=len(means), compact=compact, apart=apart)


def test_the_auxiliary_loss_is_equation_15_with_its_repulsion_capped() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3))
    means = np.array([[0.5, -0.5], [1.0, 2.0], [np.nan, np.nan]])
    x, y = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1])
    phi, logits = model[0](x).detach().numpy(), model(x).detach()
    plain_loss = float(torch.nn.functional.cross_entropy(logits, y))
    for alpha, beta in ((0.01, 0.0), (0.0, 5e-4), (0.3, 10.0)):
        extra = 0.0
        for features, label in zip(phi, y.tolist(), strict=True):
            for k in (0, 1):
                square = float(np.sum((features - means[k]) ** 2))
                extra += alpha * square if k == label else -min(beta * square, 1.0)
        found = float(penalty_of(clustering(means, alpha, beta))(torch.from_numpy(phi), y).mean())
        assert plain_loss + found == pytest.approx(plain_loss + extra / 5, rel=1e-5)


def test_the_auxiliary_loss_sees_what_the_head_sees() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3))
    x, y = torch.randn(4, 3, generator=torch.Generator().manual_seed(2)) * 50, torch.tensor([0, 1, 2, 0])
    with activated(model, Clipping().activation()):
        logits = model(x)
        outputs, features = with_features(model, x)
    assert torch.equal(logits, outputs)
    assert not model[1]._forward_pre_hooks
    found = penalty_of(clustering(np.zeros((3, 2)), 1.0, 0.0))(features, y).detach()
    np.testing.assert_allclose(found, np.ones(4), rtol=1e-5, err_msg="unit norm: one from the origin")


def test_fedlog_c_pulls_features_to_the_class_means() -> None:
    here = world()
    x, y = here.records[0]
    statistic = np.abs(np.random.default_rng(0).normal(size=(10, 33))) + 1
    means = class_means(statistic)

    def distance(alpha: float) -> float:
        body = Trained(Bodies(here.problem), None, compact=alpha)
        model, _ = prepared(body, context(here, x, y, statistic.ravel().astype(np.float32)))
        return float(np.mean((body_features(model, x) - means[y]) ** 2))

    assert distance(1.0) < 0.5 * distance(0.0)


@every(
    "options",
    [
        {"alpha": 0.01},
        {"shorter": 0.5},
    ],
)
def test_options_that_the_body_does_not_use_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Expected"):
        FedLog(**options)
