"""A client takes the anchor of the broadcast model alone. A server that lies about both is shown as it is."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_study import FEDPROF, spied, study, world

from securefl.core.abstaining import Reason
from securefl.core.errors import DataError
from securefl.dp.moments import MeanVariance
from securefl.matching.profiles import Anchor, Bounds, Variant, features, linear_query
from securefl.protocols.fedprof import ByProfile
from securefl.protocols.fedprof.statistic import RepresentationProfile
from securefl.training import profile
from securefl.training.vector import to_vector

BOUNDS = Bounds()
PIXEL, UNIT = 19, 2
WORLD = world(study(FEDPROF, clients=60))
PROBLEM = WORLD.problem


def own(problem: Any = PROBLEM) -> RepresentationProfile:
    return RepresentationProfile(problem, Variant.FULL, BOUNDS)


def beside(anchor: Anchor) -> dict[str, Any]:
    return {"anchor_centre": anchor.centre, "anchor_scale": anchor.scale}


def sharp(anchor: Anchor) -> Anchor:
    """All elements but one are far below their scale, so at a known value."""
    scale = np.full(len(anchor.scale), 1e9)
    scale[UNIT] = anchor.scale[UNIT]
    return Anchor(anchor.centre, scale)


def test_the_model_s_own_anchor_is_taken_with_the_last_bits_of_another_machine() -> None:
    found = own().anchor(PROBLEM.initial)
    rounded = Anchor(np.float16(found.centre).astype(float), np.float16(found.scale).astype(float))
    for anchor in (found, rounded):
        bounds = own().linear_bounds(PROBLEM.initial, beside(anchor))
        assert bounds == BOUNDS.linear(len(found.centre), Variant.FULL)


@every(
    "lie",
    [
        sharp,
        lambda anchor: Anchor(anchor.centre + 0.06 * anchor.scale, anchor.scale),
        lambda anchor: Anchor(anchor.centre, anchor.scale * 0.94),
        lambda anchor: Anchor(anchor.centre, anchor.scale * 1.06),
        lambda anchor: Anchor(anchor.centre[:-1], anchor.scale[:-1]),
    ],
)
def test_another_anchor_is_refused(lie: Any) -> None:
    with pytest.raises(DataError, match="anchor"):
        own().linear_bounds(PROBLEM.initial, beside(lie(own().anchor(PROBLEM.initial))))
    with pytest.raises(DataError, match="anchor"):
        own().linear_bounds(PROBLEM.initial, {})


def test_a_new_model_has_a_new_anchor() -> None:
    one, other = PROBLEM.initial, (PROBLEM.initial * 2).astype(np.float32)
    known = own()
    first = known.anchor(one)
    assert not np.allclose(known.anchor(other).scale, first.scale)
    assert np.array_equal(known.anchor(one).scale, first.scale)
    with pytest.raises(DataError, match="anchor of the broadcast"):
        known.linear_bounds(other, beside(first))


@every("scores", ["pads", "ckks"])
def test_a_server_with_an_anchor_of_its_own_learns_nothing_and_burns_nothing(
    scores: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ByProfile.watch

    def lying(self: ByProfile, state: Any) -> Any:
        queries, public = honest(self, state)
        return queries, beside(sharp(Anchor(public["anchor_centre"], public["anchor_scale"])))

    monkeypatch.setattr(ByProfile, "watch", lying)
    of = study(FEDPROF, rounds=1, clients=4, scores=scores)
    spy, finished = spied(of, tmp_path)
    assert all(not answers.per_client.get("profile") for _, answers in spy.asks)
    (record,) = finished.records
    assert set(record["reasons"].values()) == {Reason.ORDER.told}
    (path,) = tmp_path.rglob("ledger.sqlite")
    with sqlite3.connect(path) as ledger:
        assert ledger.execute("SELECT COUNT(*) FROM releases").fetchone() == (0,)


def crafted() -> np.ndarray:
    """A model whose profiled layer has one unit that is not constant: it is one pixel of the input."""
    module = PROBLEM.module(PROBLEM.initial)
    for parameter in module.parameters():
        parameter.data.zero_()
    weight = dict(module.named_parameters())[f"{PROBLEM.layer}.weight"]
    weight.data[UNIT, PIXEL] = 1.0
    return to_vector(module)


def test_not_held_a_server_that_chooses_the_model_too_reads_the_mean_that_it_chose() -> None:
    """The anchor is bound to the model, and nobody can tell a crafted model from a trained one."""
    model = crafted()
    anchor = own().anchor(model)
    q = len(anchor.centre)
    own().linear_bounds(model, beside(anchor))  # a client finds nothing wrong
    mean = np.zeros(q)
    mean[UNIT] = -0.99 * BOUNDS.weight_norm(q) * BOUNDS.variance_high
    baseline = MeanVariance(mean, np.full(q, BOUNDS.variance_high), 1)
    query = linear_query(baseline, Anchor(np.zeros(q), np.ones(q)), BOUNDS)
    query.row(encrypted=False)
    scores, means = [], []
    for x, _ in WORLD.records:
        found = profile(PROBLEM.to_read(model), PROBLEM.layer, x)
        parts = features(found, anchor, BOUNDS).split(Variant.FULL)
        scores.append(query.number(parts.hidden, parts.clear))
        means.append(float(x.reshape(len(x), -1)[:, PIXEL].mean()))
    told = np.stack([scores, np.ones(len(scores))], axis=1)
    left = told @ np.linalg.lstsq(told, np.array(means), rcond=None)[0] - means
    assert np.std(left) / np.std(means) < 0.02, "docs/threat-model.md states it"
