"""FedLog and LG-FedAvg on the synthetic data: these are the paper's, and both systems start alike."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from fedlog_synthetic import (
    RADIUS,
    SEEDS,
    SYSTEMS,
    Experiment,
    Outcome,
    Setting,
    accuracies,
    data,
    draw,
    head_of,
)
from kept import read

from securefl.protocols.fedlog.head import gradient, solve
from securefl.training.chunks import body_features
from securefl.training.heads import last_layers

FEW = 2


@cache
def experiment() -> Experiment:
    return Experiment(Setting(width=8, rate=0.05), FEW, seed=0)


@cache
def outcomes() -> dict[str, Outcome]:
    return experiment().outcomes()


# The data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_eighty_points_of_the_square_are_parted_by_the_circle_and_by_their_first_coordinate(
    seed: int,
) -> None:
    made = data(seed)
    (left, _), (right, _) = made.train
    assert len(left) == len(right) == 40
    assert left[:, 0].max() < made.split < right[:, 0].min()
    for x, y in (*made.train, *made.test):
        assert np.abs(x).max() <= 5
        assert np.array_equal(y == 0, (x.astype(float) ** 2).sum(axis=1) <= (26 / 7) ** 2)
    tested = np.concatenate([x for x, _ in made.test])
    assert made.test[0][0][:, 0].max() < made.split <= made.test[1][0][:, 0].min()
    inside = np.concatenate([y for _, y in made.test]) == 0
    assert inside.mean() == pytest.approx(np.pi * RADIUS**2 / 100, abs=0.05)
    assert np.abs(tested.mean(axis=0)).max() < 0.3
    assert tested.std(axis=0) == pytest.approx(10 / np.sqrt(12), abs=0.15)


def test_seeds_draw_other_points() -> None:
    assert len({data(seed).train[0][0].tobytes() for seed in SEEDS}) == len(SEEDS)


# The models ---------------------------------------------------------------------------------------


def test_client_0_has_three_layers_client_1_two_and_both_two_features_without_relu() -> None:
    for client, body in ((0, 3), (1, 2)):
        problem = experiment().bodies.of(client)
        model = problem.module(problem.initial)
        dense = last_layers(model, body + 1)
        assert dense[0].in_features == dense[-1].in_features == dense[-1].out_features == 2
        with pytest.raises(Exception, match="dense layers"):
            last_layers(model, body + 2)
        assert body_features(model, experiment().data.train[client][0]).min() < 0


def test_both_systems_have_a_head_of_one_shape() -> None:
    made = outcomes()
    assert {o.head.shape for o in made.values()} == {(2, 3)}
    assert not np.allclose(made["FedLog"].head, made["LG-FedAvg"].head)


def test_with_nothing_learned_both_systems_have_the_same_first_head() -> None:
    still = Experiment(Setting(rate=1e-30, width=8), 1, seed=1)
    fedlog, lg = still.outcomes().values()
    assert np.allclose(fedlog.head, still.first_head, atol=1e-5)
    assert np.allclose(lg.head, still.first_head, atol=1e-5)
    assert fedlog.test == pytest.approx(lg.test, abs=2e-3)


# The round ----------------------------------------------------------------------------------------


def test_the_head_of_fedlog_after_a_round_is_the_exact_one_of_the_summed_statistic() -> None:
    here, fedlog = experiment(), outcomes()["FedLog"]
    total = np.zeros((2, 3))
    for client, (x, y) in enumerate(here.data.train):
        model = here.bodies.of(client).module(np.asarray(fedlog.kept[client]["model"]))
        rows = np.column_stack([np.ones(len(x)), body_features(model, x)])
        for kind in (0, 1):
            total[kind] += rows[y == kind].sum(axis=0)
    assert total[:, 0].sum() == 80
    assert np.allclose(fedlog.head, solve(total), rtol=0, atol=2e-3)  # the statistic is on a grid of 2^-10
    assert np.abs(gradient(fedlog.head, total)).max() / 81 < 1e-3


def test_fedlog_freezes_the_head_and_lg_fedavg_averages_the_trained_ones() -> None:
    here = experiment()
    local = {
        system: [
            head_of(here.bodies.of(client).module(np.asarray(kept["model"])))
            for client, kept in enumerate(outcomes()[system].kept)
        ]
        for system in SYSTEMS
    }
    assert all(np.allclose(head, here.first_head, atol=1e-6) for head in local["FedLog"])
    assert not np.allclose(local["LG-FedAvg"][0], local["LG-FedAvg"][1], atol=1e-3)
    assert np.allclose(outcomes()["LG-FedAvg"].head, np.mean(local["LG-FedAvg"], axis=0), atol=1e-6)


def test_accuracies_are_by_iterations_and_seeds_and_repeat() -> None:
    found = accuracies(experiment().setting, (1, FEW), (0, 1)).set_index(["system", "iterations", "seed"])
    assert len(found) == 8
    for system, made in outcomes().items():
        assert found.loc[system, FEW, 0]["train"] == pytest.approx(made.train, abs=1e-4)
        assert found.loc[system, FEW, 0]["test"] == pytest.approx(made.test, abs=1e-4)


def test_the_picture_has_a_panel_for_training_and_one_for_testing() -> None:
    figure = draw(read("fedlog_synthetic.csv"))
    assert [len(axes.get_lines()) for axes in figure.axes] == [4, 4]
    figure.canvas.draw()
