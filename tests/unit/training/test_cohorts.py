"""Clients trained side by side: as each would be alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securefl.core.errors import DataError
from securefl.core.grid import Grid
from securefl.protocols.class_sums import Clipping
from securefl.protocols.feddbe import MeanPull
from securefl.protocols.fedlog.bodies import Clustering
from securefl.protocols.fedproto import Pull
from securefl.training import ModelConfig, cohorts
from securefl.training.cohorts import MOST_ROWS, SLOTS, Batched, slots_for, slots_within, why_alone
from securefl.training.heads import Bounded, last_dense, shifted
from securefl.training.jobs import TrainingJob, TrainingResult
from securefl.training.models import MLP, Changed
from securefl.training.own_models import OwnModel
from securefl.training.run_jobs import one_by_one
from securefl.training.task import Problem
from tests.support.side_by_side import (
    CLASSES,
    CLIENTS,
    SHAPE,
    assert_near,
    fits,
    local,
    overflowing,
    problem,
    records,
    vectors,
)


def steps_apart(
    here: Problem, one: Sequence[TrainingResult], other: Sequence[TrainingResult]
) -> np.ndarray[Any, Any]:
    """By how many steps of the default grid the sums of the quantised updates differ, in every entry."""
    grid = Grid()
    sums = [
        sum(grid.quantise(own.astype(np.float64) - here.initial).astype(np.int64) for own in vectors(came))
        for came in (one, other)
    ]
    return np.abs(sums[0] - sums[1])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.01},
        {"proximal": 0.5},
        {"momentum": 0.5, "weight_decay": 0.01, "proximal": 0.1, "decay": 0.5},
        {"epochs": None, "steps": 7},
        {"batch_size": 1000},
        {"batch_size": 33},
        {"batch_size": 1, "epochs": None, "steps": 8},
    ],
)
@pytest.mark.parametrize("kind", ["classification", "regression", "multi-label"])
def test_sums_are_within_a_grid_step_of_those_of_clients_alone(changes: dict[str, Any], kind: Any) -> None:
    # Of 4,196 entries: a share of 0.001 of fewer would be none or one, and a matter of luck.
    here = replace(problem(local(**changes), kind=kind), model=ModelConfig(kind="mlp", hidden=(64, 32)))
    apart = steps_apart(here, Batched(one_by_one)(fits(here)), one_by_one(fits(here)))
    assert apart.max() <= CLIENTS
    assert np.mean(apart <= 1) >= 0.999
    assert np.abs(vectors(one_by_one(fits(here))) - here.initial).max() > 1e-2, "they do train"


@pytest.mark.parametrize("hidden", [(16, 8), (13, 7)], ids=["even", "odd"])
@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("clip", [Clipping(), Clipping(kind="bounded", bound=0.25)])
def test_a_body_trains_under_its_head(hidden: tuple[int, ...], penalised: bool, clip: Clipping) -> None:
    head = CLASSES * (hidden[-1] + 1)
    statistic = np.random.default_rng(1).random((CLASSES, hidden[-1] + 1), dtype=np.float32) + 1
    penalty = Clustering(statistic=statistic.tobytes(), classes=CLASSES, compact=0.3, apart=0.05)
    here = replace(problem(local(weight_decay=0.01)), model=ModelConfig(kind="mlp", hidden=hidden))
    tail = {"under_head": True, "activation": clip.activation(), "penalty": penalty if penalised else None}
    together, alone = (run(fits(here, **tail)) for run in (Batched(one_by_one), one_by_one))
    assert steps_apart(here, together, alone).max() <= CLIENTS
    np.testing.assert_allclose(vectors(together), vectors(alone), atol=2e-6)
    assert np.array_equal(vectors(together)[:, -head:], np.tile(here.initial[-head:], (CLIENTS, 1)))
    moved = np.abs(vectors(together)[:, :-head] - here.initial[:-head]).max(axis=1)
    assert (moved > 1e-3).all()


@pytest.mark.parametrize("bound", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("kind", ["unit-l2", "bounded", "clip-l2"])
def test_the_slope_of_bounded_features_is_that_of_autograd(
    kind: Literal["unit-l2", "bounded", "clip-l2"], bound: float
) -> None:
    rng, own = np.random.default_rng(2), Bounded(kind=kind, bound=bound)
    features, slope = (torch.from_numpy(rng.standard_normal((6, 5))) for _ in range(2))
    features *= torch.tensor([0.0, 1e-14, 1e-3, 0.5, 1.0, 1e3])[:, None]
    inputs = features.clone().requires_grad_()
    (expected,) = torch.autograd.grad(own(inputs), inputs, slope)
    np.testing.assert_allclose(own.back(features, slope), expected, rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize("hidden", [(), (1,), (13, 7), (17, 5, 3)])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.5, "weight_decay": 0.01, "proximal": 0.1},
        {"optimizer": "adam", "learning_rate": 0.01},
    ],
)
def test_layers_of_any_width_train_as_alone(hidden: tuple[int, ...], changes: dict[str, Any]) -> None:
    """Zeros stand behind rows of such widths. They must neither take part nor leave zero."""
    for kind in ("classification", "regression", "multi-label"):
        here = problem(local(**changes), kind=kind)
        here = replace(here, model=ModelConfig(kind="mlp", hidden=hidden))
        together, alone = (vectors(run(fits(here))) for run in (Batched(one_by_one), one_by_one))
        assert_near(together, alone, 2e-4 if "optimizer" in changes else 2e-6)
        assert np.abs(together - here.initial).max(axis=1).min() > 1e-3


PULLS = {
    "fedproto": Pull(sent=np.ones((2, 4), np.float32).tobytes(), classes=2, lamda=0.7),
    "fedlog": Clustering(statistic=np.ones((2, 4), np.float32).tobytes(), classes=2, compact=0.3, apart=0.4),
    "feddbe": MeanPull(np.ones(3, np.float32).tobytes(), kappa=0.5, momentum=0.3),
}


@pytest.mark.parametrize("name", PULLS)
def test_the_slope_of_a_pull_is_that_of_its_value(name: str) -> None:
    """Of two mini-batches, the second with a row without a record, beside autograd's."""
    drawn = torch.Generator().manual_seed(3)
    y = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0]])
    weights = torch.tensor([[0.25] * 4, [0.5, 0.5, 0.0, 0.0]])
    pull = copy.copy(PULLS[name])
    for _ in range(2):
        features = torch.randn(2, 4, 3, generator=drawn, requires_grad=True)
        found, slopes = pull(features, y, weights)
        (wanted,) = torch.autograd.grad((found * weights).sum(), features)
        torch.testing.assert_close(slopes.detach(), wanted)
        if name == "feddbe":
            pull.running = pull.running.detach()  # type: ignore[union-attr]


def test_a_shift_trains_beside_others_as_alone() -> None:
    """FedDBE's: whichever clients train beside it, a client has the same bits."""
    plain = problem(local())
    here = replace(plain, model=Changed(plain.model, shifted))
    width, own = last_dense(plain.layers).in_features, records(CLIENTS, here.kind)
    tail = {"penalty": MeanPull(np.ones(width, np.float32).tobytes(), kappa=2.0, momentum=0.3)}
    together = vectors(Batched(_nobody)(fits(here, own, **tail)))
    np.testing.assert_allclose(together, vectors(one_by_one(fits(here, own, **tail))), atol=2e-6)
    assert np.abs(np.array(together)[:, -width:]).min(1).max() > 0
    for k in (0, CLIENTS - 1):
        (alone,) = vectors(Batched(_nobody)([fits(here, own, **tail)[k]]))
        np.testing.assert_array_equal(alone, together[k])


def _nobody(fits: Sequence[TrainingJob]) -> list[TrainingResult]:
    assert not fits, "all of them can train side by side"
    return []


def test_the_slots_of_a_run_follow_from_the_cohort_of_its_plan() -> None:
    cohorts = {0: SLOTS, 1: 1, 2: 2, 10: 10, 12: 12, 16: 16, 17: 9, 25: 9, 30: 10, 100: 10, 1001: 10}
    assert {cohort: slots_for(cohort) for cohort in cohorts} == cohorts


def test_wide_models_share_their_passes_with_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    here = problem(local(momentum=0.5))
    usual = vectors(Batched(one_by_one)(fits(here)))
    assert slots_within(SLOTS, len(here.initial)) == SLOTS
    for room, slots in ((4, 4), (3, 3), (1, 1), (0.5, 1)):
        monkeypatch.setattr(cohorts, "_MOST_WEIGHTS", int(room * len(here.initial)))
        assert slots_within(SLOTS, len(here.initial)) == slots
        np.testing.assert_array_equal(vectors(Batched(one_by_one)(fits(here))), usual)


def test_streams_are_drawn_from_as_alone() -> None:
    here = problem(local())
    together, alone = fits(here), fits(here)
    Batched(one_by_one)(together)
    one_by_one(alone)
    for one, other in zip(together, alone, strict=True):
        assert one.context.rng.integers(2**62) == other.context.rng.integers(2**62)


def test_a_loss_that_overflows_is_told_though_the_model_is_finite() -> None:
    here = problem(local(learning_rate=1e-30, epochs=1), kind="regression")
    own = list(records(3, "regression"))
    own[1] = own[1][0], np.full_like(own[1][1], 1e20)
    together, alone = (run(fits(here, own)) for run in (Batched(one_by_one), one_by_one))
    assert [isinstance(one, DataError) for one in together] == [False, True, False]
    assert [str(one) for one in together if isinstance(one, DataError)] == [
        str(one) for one in alone if isinstance(one, DataError)
    ]


class Rest:
    """The other trainer, and the clients that were left to it."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def __call__(self, given: Sequence[TrainingJob]) -> list[TrainingResult]:
        self.left.extend(fit.context.client for fit in given)
        return one_by_one(given)


def test_others_are_left_to_the_other_trainer() -> None:
    rest = Rest()
    here = problem(local())
    own = list(records(CLIENTS, "classification"))
    own[3] = own[3][0][:0], own[3][1][:0]
    came = Batched(rest)(fits(here, own))
    assert rest.left == [3], "who has no records trains nothing"
    assert np.array_equal(vectors(came)[3], here.initial)
    rest.left.clear()
    images = replace(here, model=ModelConfig(kind="lenet5"), shape=(1, 28, 28))
    pictures = [(np.zeros((4, 1, 28, 28), np.float32), np.arange(4))] * 2
    Batched(rest)(fits(images, pictures))
    assert rest.left == [0, 1], "convolutions do not stand side by side"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.5, "weight_decay": 0.01, "proximal": 0.1},
        {"optimizer": "adam", "learning_rate": 1e-3},
        {"epochs": None, "steps": 7, "batch_size": 40},
    ],
)
@pytest.mark.parametrize("slots", [4, 10, 16])
def test_a_client_has_the_same_bits_whoever_is_beside_it(changes: dict[str, Any], slots: int) -> None:
    """Noise covers what one client moves. If the others' bits moved with it, it would cover too little."""
    here, train = problem(local(**changes)), Batched(one_by_one, slots)
    own = fits(here)
    together = train(own)
    for left in ([4], [9, 0], [2, 3, 5, 7], [8, 6, 4, 2, 0]):
        for k, found in zip(left, train([fits(here)[k] for k in left]), strict=True):
            np.testing.assert_array_equal(found, together[k])


@pytest.mark.parametrize("sizes", [(5,), (32, 5)])
def test_a_row_without_a_record_adds_nothing_where_the_model_overflows(sizes: tuple[int, ...]) -> None:
    """Alone, and behind a client that fills its batches."""
    here = problem(local(learning_rate=1e-3, epochs=1, batch_size=32))
    own = [(np.ones((n, *SHAPE), np.float32), np.arange(n) % CLASSES) for n in sizes]
    beside, alone = (
        vectors(train([replace(fit, start=overflowing(here)) for fit in fits(here, own)]))
        for train in (Batched(one_by_one), one_by_one)
    )
    np.testing.assert_allclose(beside, alone, rtol=1e-5)


def test_a_row_without_a_record_has_no_loss_where_the_head_overflows() -> None:
    """Its output is the head's bias, whose square is infinite. At the records the loss is 0."""
    here = problem(local(learning_rate=1e-3, epochs=1), kind="regression")
    start = np.zeros_like(here.initial)
    start[-CLASSES:] = 2e19
    own = [(np.ones((5, *SHAPE), np.float32), np.full((5, CLASSES), 2e19, np.float32))]
    for train in (one_by_one, Batched(one_by_one)):
        (found,) = vectors(train([replace(fit, start=start) for fit in fits(here, own)]))
        np.testing.assert_array_equal(found, start)


@pytest.mark.parametrize("under_head", [False, True])
@pytest.mark.parametrize("penalised", [False, True])
def test_a_row_without_a_record_adds_nothing_where_an_activation_has_no_value(
    under_head: bool, penalised: bool
) -> None:
    """A unit vector at a row of zeros is zero over zero, and so is the slope of a norm."""

    class Unit:
        def __call__(self, features: torch.Tensor) -> torch.Tensor:
            return features / features.norm(dim=1, keepdim=True)

        def back(self, features: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
            unit = self(features)
            along = (unit * slope).sum(1, keepdim=True)
            return (slope - unit * along) / features.norm(dim=1, keepdim=True)

    def norm(features: torch.Tensor, _: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        lengths = features.norm(dim=2)
        return 0.1 * lengths, 0.1 * features * (weights / lengths)[..., None]

    here = problem(local())
    tail = {"under_head": under_head, "activation": Unit(), "penalty": norm if penalised else None}
    together, alone = (vectors(run(fits(here, **tail))) for run in (Batched(one_by_one), one_by_one))
    np.testing.assert_allclose(together, alone, atol=2e-6)


@pytest.mark.parametrize("spoil", [lambda x: x[:, :1, :1], lambda x: x.astype(np.float64)])
def test_records_of_another_form_fail_beside_others_as_alone(spoil: Any) -> None:
    here = problem(local())
    first, (x, y), *others = records(CLIENTS, here.kind)
    own = fits(here, [first, (spoil(x), y), *others])
    for train in (one_by_one, Batched(one_by_one)):
        with pytest.raises(RuntimeError):
            train(own)


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("clients", [1, CLIENTS])
def test_what_memory_held_before_adds_nothing(
    epochs: int, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are gathered into memory that nobody cleared."""
    here = problem(local(epochs=epochs))
    own = records(CLIENTS, here.kind)[:clients]
    clean = vectors(Batched(one_by_one)(fits(here, own)))
    filled = {torch.float32: float("nan"), torch.int64: 2**40}
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda self, size: torch.full(size, filled[self.dtype], dtype=self.dtype)
    )
    np.testing.assert_array_equal(vectors(Batched(one_by_one)(fits(here, own))), clean)


@pytest.mark.parametrize("length", [0, 1, 667, 669])
def test_a_start_of_another_length_costs_its_client_alone(length: int) -> None:
    here = problem(local())
    own = fits(here)
    own[3] = replace(own[3], start=np.zeros(length, np.float32))
    came = Batched(one_by_one)(own)
    assert [isinstance(one, DataError) for one in came] == [k == 3 for k in range(CLIENTS)]


def test_a_client_of_one_record_trains_beside_one_of_20_000() -> None:
    here, rng = problem(local(epochs=1, batch_size=500)), np.random.default_rng(6)
    own = [(rng.random((n, *SHAPE), dtype=np.float32), rng.integers(0, CLASSES, n)) for n in (1, 20_000)]
    found = vectors(Batched(one_by_one, 4)(fits(here, own)))
    assert_near(found, vectors(one_by_one(fits(here, own))), atol=1e-5)
    np.testing.assert_array_equal(found[0], vectors(Batched(one_by_one, 4)(fits(here, own[:1])))[0])


def test_large_mini_batches_are_left_to_the_other_trainer() -> None:
    rest = Rest()
    Batched(rest)(fits(problem(local(batch_size=MOST_ROWS + 1))))
    assert rest.left == list(range(CLIENTS))


def test_two_kinds_of_bodies_train_in_one_wave() -> None:
    here = problem(local())
    mixed = [*fits(here)[:5], *fits(here.shorter)[5:]]
    again = [*fits(here)[:5], *fits(here.shorter)[5:]]
    for one, other in zip(Batched(one_by_one)(mixed), one_by_one(again), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_global_generators_are_left_alone() -> None:
    here = problem(local())
    before = torch.get_rng_state()
    Batched(one_by_one)(fits(here))
    assert torch.equal(torch.get_rng_state(), before)


def test_clients_with_dropout_train_alone() -> None:
    """Each draws its masks from its own stream, in whatever wave it is."""
    here = replace(problem(local()), model=ModelConfig(kind="mlp", hidden=(16, 8), dropout=0.5))
    assert why_alone(here) == "dropout or augmentation draws from each client's own generator"
    together = [*Batched(one_by_one)(fits(here))]
    np.testing.assert_array_equal(vectors(together[1:2]), vectors([*Batched(one_by_one)(fits(here)[1:2])]))
    np.testing.assert_array_equal(vectors(together), vectors(one_by_one(fits(here))))
    none = replace(here, model=ModelConfig(kind="mlp", hidden=(16, 8)))
    assert np.abs(vectors(together) - vectors(one_by_one(fits(none)))).max() > 1e-3


class Tripled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


def tripled(inputs: int, outputs: int) -> nn.Module:
    model = MLP(inputs, outputs, (16, 8))
    model.fc1 = Tripled(inputs, 16)
    return model


def hooked(inputs: int, outputs: int) -> nn.Module:
    model = MLP(inputs, outputs, (16, 8))
    model.fc1.register_forward_hook(lambda layer, given, output: 3 * output)
    return model


@pytest.mark.parametrize("factory", [tripled, hooked])
def test_a_changed_copy_of_the_stack_is_trained_as_it_is(factory: Any) -> None:
    here = replace(problem(local()), model=OwnModel(factory=factory, name="mine"))
    assert why_alone(here) == "the model is not one of this package's"
    for one, other in zip(Batched(one_by_one)(fits(here)), one_by_one(fits(here)), strict=True):
        np.testing.assert_array_equal(one, other)
