"""FedProto: prototypes and predictions by numpy, the pull of training, and a class that nobody holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.tiny_study import spied
from support.trained_bodies import context, run, study, world

from securefl.core.errors import ConfigError, DataError
from securefl.core.release import OTHERS
from securefl.mechanisms.charges import Protection, unbounded
from securefl.protocols.class_sums import Clipping
from securefl.protocols.fedproto import FedProto, OwnModels, Prototypes, Pull, prototypes
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.composition import composition
from securefl.study.config import Study
from securefl.study.export import taken
from securefl.study.seeded import World
from securefl.training.cohorts import fit_together
from securefl.training.jobs import TrainingJob
from securefl.training.run_jobs import one_by_one
from securefl.training.task import Bodies

Floats = NDArray[np.float64]
ARM = 'name = "FedProto"\nprotocol = "fedproto"'


def features(here: World, vector: Any, x: Any) -> Floats:
    """The input of the head of digits' network of one hidden layer, by numpy."""
    w, b = vector[: 64 * 32].reshape(32, 64), vector[64 * 32 : 65 * 32]
    return np.maximum(x.reshape(len(x), -1) @ w.T + b, 0).astype(np.float64)


def kept(of: Any, folder: Path) -> Any:
    with Checkpoint(checkpoint_file(arm_folder(folder, of.arms[0], 0))) as checkpoint:
        return checkpoint.kept()


def test_prototypes_are_the_means_of_all_clients_records(tmp_path: Path) -> None:
    """And accuracy is that of the nearest one, each client with its own body."""
    of, here = study(ARM), world()
    spy, finished = spied(of, tmp_path, here)
    models = kept(of, tmp_path)
    phi = np.concatenate([features(here, models[k]["model"], here.records[k][0]) for k in range(10)])
    labels = np.concatenate([here.records[k][1] for k in range(10)])
    sent = spy.states[-1].broadcast.reshape(10, 33)
    means = np.stack([phi[labels == c].mean(0) for c in range(10)])
    np.testing.assert_array_equal(sent[:, 0], 1)
    np.testing.assert_allclose(sent[:, 1:], means, atol=2e-3)
    right = []
    for k in range(10):
        x, y = here.tests[k]
        away = np.linalg.norm(features(here, models[k]["model"], x)[:, None] - means[None], axis=2)
        right += (away.argmin(1) == y).tolist()
    assert finished.records[-1]["accuracy"] == pytest.approx(np.mean(right), abs=0.004)
    assert finished.records[-1]["accuracy"] > 0.8, "two classes a client: 0.5 is chance"


# A class that nobody holds -------------------------------------------------------------------------


def lacking(here: World, label: int) -> World:
    """The same world, in which no client has a record of this class."""
    records = [(x[y != label], y[y != label]) for x, y in here.records]
    return replace(here, records=records)


def test_a_class_that_no_client_holds_is_never_predicted(tmp_path: Path) -> None:
    of, here = study(ARM), lacking(world(), 4)
    spy, _ = spied(of, tmp_path, here)
    for state in spy.states[1:]:
        sent = state.broadcast.reshape(10, 33)
        assert not sent[4].any()
        np.testing.assert_array_equal(np.delete(sent[:, 0], 4), 1)
    x = torch.from_numpy(np.concatenate([x for x, _ in here.tests]))
    said: set[int] = set()
    for client in range(10):
        with torch.no_grad():
            said |= set(taken(of, tmp_path, "FedProto", 0, client).learnt.module()(x).argmax(1).tolist())
    assert said == set(range(10)) - {4}


def test_a_class_whose_clients_are_absent_keeps_its_prototype() -> None:
    before = np.array([[1, 2, 3], [0, 0, 0], [1, 5, 5]], np.float32)
    total = np.array([[0, 0, 0], [2, 3, 4], [0.5, 1, 1]])
    found = prototypes(total, before)
    np.testing.assert_array_equal(found, np.array([[1, 2, 3], [1, 1.5, 2], [1, 5, 5]], np.float32))


def test_a_client_that_lies_moves_prototypes_and_stops_nobody() -> None:
    """It may send any sum within the grid. What the server makes of it is finite, and each client answers."""
    here = world()
    (statistic,) = FedProto(lamda=100.0).build(here.problem).contributions
    honest = sum(
        statistic.compute(context(here, *own, np.zeros(0, np.float32))).floats() for own in here.records
    )
    before = np.zeros((10, 33), np.float32)
    most = Clipping().grid.bound
    for count, features in product((-most, -3.0, 0.5, most), (-most, 0.0, most)):
        lie = np.column_stack([np.full(10, count), np.full((10, 32), features)])
        sent = prototypes(honest.reshape(10, 33) + lie, before)  # type: ignore[union-attr]
        assert np.isfinite(sent).all()
        assert set(sent[:, 0].tolist()) <= {0.0, 1.0}
        if count < -1000:
            np.testing.assert_array_equal(sent, before)
        value = statistic.compute(context(here, *here.records[0], sent.ravel()))
        assert value.integers is not None
        assert value.new_state is not None
        assert np.isfinite(value.new_state["model"]).all()


# Training ----------------------------------------------------------------------------------------


def test_the_pull_by_hand() -> None:
    sent = np.array([[1, 0.5, -1], [0, 0, 0]], np.float32)
    phi, y = torch.tensor([[[1.0, 1.0], [3.0, 4.0]]]), torch.tensor([[0, 1]])
    found, _ = Pull(sent=sent.tobytes(), classes=2, lamda=2.0)(phi, y, torch.full((1, 2), 0.5))
    assert found.tolist() == [[2 * (0.25 + 4), 0.0]]


def test_clients_train_side_by_side_as_alone() -> None:
    here = world()
    rows = np.column_stack([np.ones(10), np.random.default_rng(0).random((10, 32))]).astype(np.float32)
    own = OwnModels(Bodies(here.problem), Clipping().activation(), 32, 1.0)

    def fits() -> list[TrainingJob]:
        asked = [context(here, *here.records[k], rows.ravel()) for k in range(4)]
        return [own.fit(replace(one, client=k)) for k, one in enumerate(asked)]

    for one, other in zip(fit_together(fits(), 4), one_by_one(fits()), strict=True):
        assert not isinstance(one, DataError)
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_training_that_diverges_leaves_the_model_and_answers() -> None:
    here = world()
    x, y = here.records[0]
    (statistic,) = FedProto().build(here.problem).contributions
    own = context(here, x, y, np.zeros(0, np.float32), {"model": here.problem.initial + np.float32(0.01)})
    value = statistic.value(own, DataError("it diverged"))  # type: ignore[attr-defined]
    assert value.new_state is not None
    np.testing.assert_array_equal(value.new_state["model"], own.kept["model"])
    total = value.floats().reshape(10, 33)
    np.testing.assert_allclose(total[:, 0], np.bincount(y, minlength=10))
    phi = features(here, own.kept["model"], x)
    np.testing.assert_allclose(total[y[0], 1:], phi[y == y[0]].sum(0), atol=0.05)


@pytest.mark.parametrize(
    "sent",
    [np.ones(329), np.ones(331), np.full(330, np.nan), np.full(330, 2.0)],
    ids=["too short", "too long", "nan", "no flag"],
)
def test_prototypes_that_no_server_makes_are_refused(sent: Any) -> None:
    here = world()
    own = OwnModels(Bodies(here.problem), None, 32, 1.0)
    with pytest.raises(DataError, match="the client abstains"):
        own.fit(context(here, *here.records[0], sent.astype(np.float32)))


# What epsilon is true ------------------------------------------------------------------------------


def noised(more: str = "", **words: str) -> Study:
    """A study with local noise on statistics."""
    return study(ARM + more, noise='"local"', epsilon="8.0", **words)


BOUNDED = '\nclip = { kind = "unit-l2" }\nclient_bound = 20.0'
CLIENT = {"unit": '"client"', "adjacency": '"zero-out"', "non_private": "[]"}


def endless(of: Study) -> bool:
    """Whether epsilon against other clients is infinite."""
    algorithm, plan = composition(of, of.arms[0], world())
    return unbounded([Protection(plan, algorithm.contributions[0].spec).charge()], (OTHERS,))


def test_epsilon_is_infinite_for_a_record_and_finite_for_a_client() -> None:
    assert endless(noised(BOUNDED))
    assert not endless(noised(BOUNDED, **CLIENT))


def test_a_refusal_names_what_would_bound_it() -> None:
    for more, words, said in ((BOUNDED, {"non_private": "[]"}, "non_private"), ("", CLIENT, "client_bound")):
        of = noised(more, **words)
        with pytest.raises(ConfigError, match=said):
            composition(of, of.arms[0], world())


def test_a_regression_and_several_labels_are_refused() -> None:
    with pytest.raises(ConfigError, match="classes for FedProto, got numeric targets"):
        FedProto().build(replace(world().problem, kind="regression"))
    with pytest.raises(ConfigError, match="classes for FedProto, got several labels"):
        FedProto().build(replace(world().problem, kind="multi-label"))
    assert isinstance(FedProto().build(world().problem), Prototypes)


def test_a_client_without_usable_records_answers_like_any_other(tmp_path: Path) -> None:
    """At a finite epsilon per client, silence would tell of the records."""
    of, here = noised(BOUNDED, **CLIENT), world()
    x, y = here.records[2]
    for count, spoilt in ((0, x[:0]), (len(x), np.full_like(x, np.nan))):
        records = [*here.records[:2], (spoilt, y[:count]), *here.records[3:]]
        finished = run(of, tmp_path / str(count), replace(here, records=records))
        assert all(record["answered"] == list(range(10)) for record in finished.records)
        assert finished.records[-1]["epsilon"]["server"] < 10
