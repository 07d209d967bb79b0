"""FedPer, FedRep and FedBABU: bodies are averaged, and what each client keeps is its own."""

from __future__ import annotations

import inspect
import sys
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.every import every
from support.private_studies import private
from support.tiny_dpsgd import config
from support.tiny_problem import client_context, tiny_problem
from support.tiny_study import composed, run, spied, study, world
from torch import nn
from torch.nn.functional import cross_entropy

from securefl.accounting.composition import compose
from securefl.accounting.events import steps_event
from securefl.algorithm.clients import ClientContext, Device
from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.protocols.fedbabu import FedBABU
from securefl.protocols.fedlog import FedLog
from securefl.protocols.fedper import FedPer
from securefl.protocols.fedproto import FedProto
from securefl.protocols.fedrep import FedRep
from securefl.protocols.pfedme import PFedMe
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Study
from securefl.study.seeded import World
from securefl.training import ModelConfig, evaluate, run_jobs
from securefl.training.chunks import body_features
from securefl.training.cohorts import Batched
from securefl.training.jobs import TrainingJob
from securefl.training.own_models import OwnModel
from securefl.training.run_jobs import _again, one_by_one, run_job

HEAD = 10 * 9
"""The values of the head of a tiny study: 8 features, a bias, 10 classes."""


def one(name: str, options: str = "", *, rounds: int = 2, deep: bool = False, **more: Any) -> Study:
    arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{options}\n'
    of = study(arm, rounds=rounds, clients=4, non_private='["update", "consensus"]', **more)
    return replace(of, model=replace(of.model, hidden=(8, 6))) if deep else of


def kept(of: Study, folder: Path) -> dict[int, dict[str, NDArray[Any]]]:
    with Checkpoint(checkpoint_file(arm_folder(folder, of.arms[0], 3))) as checkpoint:
        return {client: dict(own) for client, own in checkpoint.kept().items()}


# What is shared -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2])
def test_what_fedper_shares_is_what_lg_fedavg_keeps(layers: int) -> None:
    starts = []
    for name in ("fedper", "lg_fedavg"):
        of = one(name, f"layers = {layers}", deep=True)
        here = world(of)
        starts.append(of.arms[0].options.build(here.problem).start().broadcast)
    np.testing.assert_array_equal(np.concatenate(starts), here.problem.initial)
    assert len(starts[1]) == 7 * 10 + (9 * 6 if layers == 2 else 0)


def test_a_second_training_starts_under_the_averaged_layers() -> None:
    """Whatever is tested: `at` changes no value that is sent."""
    sent = []
    for at in ("own", "averaged"):
        here = replace(tiny_problem(), tested_at=at)  # type: ignore[arg-type]
        (update,) = FedPer().build(here).contributions
        sent.append(update.compute(context(here.initial[:56], kept={"model": here.initial * 2})).clear)
    np.testing.assert_array_equal(*sent)


def _exported(of: Study, client: int, states: Any) -> NDArray[np.float32]:
    algorithm: Any = composed(of)[0]
    state = algorithm.start()
    return algorithm.learnt(  # type: ignore[no-any-return]
        replace(state, broadcast=np.zeros_like(state.broadcast)), client, states.get(client, {})
    ).vector


def at_own(name: str, options: str = "", **model: Any) -> Study:
    of = one(name, options)
    privacy = replace(of.privacy, non_private=(*of.privacy.non_private, "statistic"))
    return replace(
        of, measures=replace(of.measures, at="own"), privacy=privacy, model=replace(of.model, **model)
    )


NORMS = {"kind": "adds_cnn", "hidden": None, "width": 0.02, "buffers": "local"}


@every("model", [{}, NORMS])
@every("name", ["fedavg", "fedbabu", "feddbe"])
def test_at_own_is_refused_where_no_client_keeps_what_it_trained(name: str, model: dict[str, Any]) -> None:
    """FedBABU's and FedDBE's clients have a model of their own, and keep no trained layer of those shared."""
    options = {"fedavg": "fraction = 0.5", "fedbabu": 'fine_tuned = "never"'}.get(name, "")
    with pytest.raises(ConfigError, match="Leave `at` out, or take a protocol such as fedrep"):
        composed(at_own(name, options, **model))
    of = at_own(name, options, **model)
    composed(replace(of, measures=replace(of.measures, at="averaged")))


def test_at_own_is_refused_for_bodies_that_nobody_trains() -> None:
    composed(at_own("fedlog", 'body = "private"'))
    with pytest.raises(ConfigError, match="a protocol such as fedrep"):
        composed(at_own("fedlog"))


@every("name", ["fedrep", "fedper", "pfedme", "lg_fedavg", "fedproto"])
def test_at_own_is_taken_where_clients_keep_what_they_trained(name: str) -> None:
    composed(at_own(name, "lamda = 1.0" if name == "pfedme" else ""))
    if name in ("fedper", "lg_fedavg"):
        composed(at_own(name, **NORMS))


# FedRep -------------------------------------------------------------------------------------------


def context(broadcast: NDArray[np.float32], *, client: int = 0, n: int = 13, **more: Any) -> ClientContext:
    rng = np.random.default_rng(40 + client)
    x, y = rng.normal(size=(n, 6)).astype(np.float32), rng.integers(3, size=n)
    given = {"kept": {}, "rng": np.random.default_rng(client), **more}
    return client_context(x, y, client=client, broadcast=broadcast, **given)


def by_hand(
    model: nn.Sequential, trained: Any, own: ClientContext, rng: Any, rate: float, epochs: int
) -> None:
    """Plain SGD of these parameters on shuffled mini-batches of 5, in torch's own loop."""
    optimizer = torch.optim.SGD(list(trained), lr=rate)
    for _ in range(epochs):
        for batch in np.array_split(order := rng.permutation(len(own.y)), range(5, len(order), 5)):
            optimizer.zero_grad()
            cross_entropy(model(torch.from_numpy(own.x[batch])), torch.from_numpy(own.y[batch])).backward()
            optimizer.step()


def plain(vector: NDArray[np.float32], hidden: tuple[int, ...] = (8,)) -> nn.Sequential:
    """Dense layers of these values, with a ReLU between two of them."""
    sizes = pairwise((6, *hidden, 3))
    model = nn.Sequential(*[layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())][:-1])
    nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), model.parameters())
    return model


def flat(model: nn.Module) -> NDArray[np.float32]:
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


@every(("hidden", "layers", "rate"), [((8,), 1, 5.0), ((8, 7), 2, 1.0)])
def test_a_head_of_one_layer_or_two_is_trained_whole_and_then_the_body_under_it(
    hidden: tuple[int, ...], layers: int, rate: float
) -> None:
    """`rate`: how much faster the head learns."""
    here = tiny_problem(hidden=hidden)
    algorithm = FedRep(head_epochs=3, head_rate=rate, layers=layers).build(here)
    (update,) = algorithm.contributions
    start = algorithm.start().broadcast
    assert len(start) == 56
    head = np.linspace(-1, 1, len(here.initial) - 56, dtype=np.float32)
    own = context(start, kept={"model": np.concatenate([np.zeros(56, np.float32), head])})
    value = update.compute(own)

    model, rng = plain(np.concatenate([start, head]), hidden), np.random.default_rng(0)
    by_hand(model, model[2:].parameters(), own, rng, 0.1 * rate, 3)
    assert np.abs(flat(model)[56:] - head).max() > 1e-2
    by_hand(model, model[0].parameters(), own, rng, 0.1, 2)
    assert value.new_state is not None
    np.testing.assert_allclose(value.new_state["model"], flat(model), atol=2e-6)
    np.testing.assert_allclose(value.clear, flat(model)[:56] - start, atol=2e-6)


def test_a_head_of_several_layers_of_an_own_model_is_refused() -> None:
    """What is between its layers is not known."""
    own = OwnModel(factory=lambda: plain(tiny_problem().initial), name="mine").resolved((6,), 3, 2)
    with pytest.raises(ConfigError, match="Set layers = 1, or take `kind"):
        FedRep(layers=2).build(tiny_problem(model=own))
    FedRep(layers=1).build(tiny_problem(model=own))
    FedRep(layers=2).build(tiny_problem(hidden=(8, 7)))


def test_the_body_is_in_evaluation_mode_while_the_head_learns() -> None:
    """Dropout would change the features from one mini-batch to the next."""
    here = replace(tiny_problem(), model=ModelConfig(kind="mlp", hidden=(8,), dropout=0.5))
    plain_one = tiny_problem()
    first, second = (FedRep().build(own).contributions[0] for own in (here, plain_one))
    start = plain_one.initial[:56]
    fits = [own.fit(context(start)) for own in (first, second)]
    heads = [
        run_job(fit.on_features(body_features(fit.problem.module(fit.start), fit.context.x))) for fit in fits
    ]
    np.testing.assert_allclose(heads[0], heads[1], atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("private_training", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_fedrep_trains_side_by_side_as_alone(optimizer: str, private_training: bool, layers: int) -> None:
    here = tiny_problem(optimizer=optimizer, learning_rate=0.02, hidden=(8, 7)[:layers])
    if private_training:
        here = replace(here, private=config(expected_batch=4))
    (update,) = FedRep(head_epochs=2, layers=layers).build(here).contributions
    start = here.initial[:56]

    def fits() -> list[TrainingJob]:
        keys = [SecretKey(bytes([k]) * 32) for k in range(3)]
        return [update.fit(context(start, client=k, n=7 + k, source=Source(keys[k]))) for k in range(3)]

    def nobody(alone: Any) -> Any:
        assert not alone, "all train side by side"
        return []

    for one_, other in zip(Batched(nobody, 3)(fits()), one_by_one(fits()), strict=True):
        np.testing.assert_allclose(one_, other, atol=2e-5)


def test_fedrep_pays_for_both_of_its_private_trainings(tmp_path: Path) -> None:
    of = private("fedrep", "", rounds=2)
    finished = run(of, tmp_path)
    whole = compose({steps_event(0.1, 1.2, 10): 2}, of.privacy.delta)
    assert finished.records[-1]["epsilon"]["server"] == pytest.approx(whole, rel=2e-3)
    assert whole > 1.1 * compose({steps_event(0.1, 1.2, 5): 2}, of.privacy.delta)


def test_turns_of_head_and_body_are_counted_in_epochs() -> None:
    for here in (tiny_problem(steps=3), tiny_problem(private=config())):
        with pytest.raises(ConfigError, match="Or set alternating = false"):
            FedRep(alternating=True).build(here)
        FedRep(alternating=False).build(here)


def test_turns_are_not_nested_in_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn for each of many epochs. Nested, they met Python's limit and kept the models of all turns."""
    here, limit = tiny_problem(epochs=200), sys.getrecursionlimit()
    (update,) = FedRep(alternating=True, head_epochs=1).build(here).contributions
    came: list[weakref.ref[Any]] = []

    def trained(fit: TrainingJob) -> NDArray[np.float32]:
        model = fit.start + np.float32(1)
        came.append(weakref.ref(model))
        return model

    monkeypatch.setattr(run_jobs, "_trained", trained)
    sys.setrecursionlimit(len(inspect.stack(0)) + 150)
    try:
        result = run_job(update.fit(context(here.initial[:56], kept={"model": here.initial})))
    finally:
        sys.setrecursionlimit(limit)
    assert len(came) == 2 * (here.local.epochs or 0)
    assert [own() is result for own in came if own() is not None] == [True]
    np.testing.assert_allclose(result[56:] - here.initial[56:], len(came), atol=1e-3)
    np.testing.assert_allclose(result[:56] - here.initial[:56], len(came) / 2, atol=1e-3)


def test_a_second_attempt_draws_no_noise_twice() -> None:
    """After a GPU runs out of memory both trainings begin again, on one stream and not on two equal ones."""
    (update,) = FedRep().build(tiny_problem()).contributions
    fit = update.fit(context(tiny_problem().initial[:56], source=Source()))
    again = _again(fit)
    assert again.head_first is not None
    assert again.context.source is again.head_first.context.source
    assert again.context.rng is again.head_first.context.rng
    assert again.context.rng is not fit.context.rng
    assert again.context.source is not fit.context.source


# FedBABU ------------------------------------------------------------------------------------------


def test_fedbabu_without_fine_tuning_ends_with_the_body_under_the_fixed_head(tmp_path: Path) -> None:
    of = one("fedbabu", 'fine_tuned = "never"', rounds=2)
    here = world(of)
    spy, finished = spied(of, tmp_path)
    assert [[s.spec.name for s in query.sums] for query, _ in spy.asks] == [["update"], ["update"]]
    assert not any(kept(of, tmp_path).values())
    body = spy.states[-1].broadcast
    whole = np.concatenate([body, here.problem.initial[-HEAD:]])
    counts = [len(x) for x, _ in here.tests]
    own = [evaluate(here.problem.module(whole), x, y, here.problem.kind).accuracy for x, y in here.tests]
    assert finished.records[-1]["accuracy"] == pytest.approx(np.average(own, weights=counts))


def test_fine_tuning_of_the_head_by_hand() -> None:
    """`reference/test_baselines.py` has that of the whole model."""
    here = tiny_problem()
    _, tuned = FedBABU(fine_tuned="head", fine_tune_epochs=3).build(here).contributions
    body = np.linspace(-1, 1, 56, dtype=np.float32)
    own = context(body)
    value = tuned.compute(context(body))
    model = plain(np.concatenate([body, here.initial[-27:]]))
    by_hand(model, model[2].parameters(), own, np.random.default_rng(0), 0.1, 3)
    assert value.new_state is not None
    np.testing.assert_allclose(value.new_state["tuned"], flat(model), atol=2e-6)


@pytest.mark.parametrize("spoilt", ["nan", "none", "labels", "diverging"])
@pytest.mark.parametrize("which", ["full", "head"])
def test_fine_tuning_tells_nothing_of_the_records(spoilt: str, which: str) -> None:
    here = tiny_problem(learning_rate=3e38 if spoilt == "diverging" else 0.1)
    _, tuned = FedBABU(fine_tuned=which).build(here).contributions  # type: ignore[arg-type]
    own = context(here.initial[:56])
    x, y = {
        "nan": (own.x * np.nan, own.y),
        "none": (own.x[:0], own.y[:0]),
        "labels": (own.x, own.y + 9),
        "diverging": (own.x, own.y),
    }[spoilt]
    value = tuned.compute(replace(own, x=x, y=y))
    assert value.clear.tolist() == [1.0]
    assert value.new_state is not None
    np.testing.assert_array_equal(value.new_state["tuned"], here.initial)


# Client state -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu"])
def test_a_model_without_a_body_is_refused_before_a_run(name: str) -> None:
    of = one(name)
    of = replace(of, model=replace(of.model, hidden=()))
    with pytest.raises(ConfigError, match="before its last 1 dense"):
        composed(of)


def test_layers_that_a_preset_sets_are_named_with_it_and_the_arm_can_set_them() -> None:
    hidden = {"preset": 'preset = "authors"', "remedied": 'preset = "authors"\nlayers = 1'}
    of = {name: one("fedrep", options) for name, options in hidden.items()}
    with pytest.raises(ConfigError, match=r"its last 2 dense.*set `layers` in the arm if it or its `preset`"):
        composed(of["preset"])
    composed(of["remedied"])


def test_a_client_without_test_records_counts_nowhere() -> None:
    here: World = world(one("fedper"))
    x, y = here.tests[0]
    devices = [Device(x=x[:0], y=y[:0], kept={}), Device(x=x, y=y, kept={})]
    for options in (PFedMe(lamda=1.0), FedProto(), FedLog(body="private"), FedRep()):
        algorithm = options.build(here.problem)
        assert np.isnan(algorithm.evaluate(algorithm.start(), devices[:1]).accuracy)
    near = PFedMe(lamda=1.0).build(here.problem)
    found = near.evaluate(near.start(), devices)
    assert np.isnan(found.figures["global accuracy"][0])
    assert found.accuracy == found.figures["global accuracy"][1]
