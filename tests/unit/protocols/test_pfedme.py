"""pFedMe: a personal model near the proximal point, and the global one that follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.private_studies import client_level, private
from support.tiny_problem import client_context, tiny_problem
from support.tiny_study import composed, spied, study, world

from securefl.algorithm.clients import ClientContext
from securefl.core.errors import ConfigError
from securefl.protocols.pfedme import PFedMe
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Study
from securefl.training import Problem
from securefl.training.cohorts import Batched
from securefl.training.evaluation import evaluate
from securefl.training.run_jobs import one_by_one

LAMDA = 3.0


def problem(kind: Any = "regression", *, hidden: tuple[int, ...] = (), **local: Any) -> Problem:
    settings = {"steps": 1, "batch_size": 50, **local}
    return tiny_problem(width=4, hidden=hidden, kind=kind, outputs=2, **settings)


def context(here: Problem, w: NDArray[np.float32], client: int = 0, n: int = 30) -> ClientContext:
    rng = np.random.default_rng(40 + client)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    y = (
        rng.integers(2, size=n)
        if here.kind == "classification"
        else rng.normal(size=(n, 2)).astype(np.float32)
    )
    return client_context(x, y, client=client, broadcast=w, rng=np.random.default_rng(client))


def parted(vector: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The weights (2, 4) and the bias (2,)."""
    return vector[:8].reshape(2, 4).astype(np.float64), vector[8:].astype(np.float64)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_it_trains_side_by_side_as_alone(optimizer: str) -> None:
    here = problem(
        "classification", hidden=(7,), optimizer=optimizer, learning_rate=0.05, steps=6, batch_size=8
    )
    (update,) = PFedMe(lamda=2.0, personal_steps=3, eta=0.2).build(here).contributions

    def nobody(alone: Any) -> Any:
        assert not alone, "all train side by side"
        return []

    def fits() -> Any:
        return [update.fit(context(here, here.initial, k, 9 + 4 * k)) for k in range(3)]

    for one, other in zip(Batched(nobody, 3)(fits()), one_by_one(fits()), strict=True):
        assert len(one) == 2 * len(here.initial)
        np.testing.assert_allclose(one, other, atol=2e-5)


def tiny(options: str = "lamda = 2.0\neta = 0.4", rounds: int = 2) -> Study:
    return study(f'[[arm]]\nname = "x"\nprotocol = "pfedme"\n{options}\n', rounds=rounds, clients=4)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_the_server_goes_beta_of_the_way(beta: float, tmp_path: Path) -> None:
    of = tiny(f"lamda = 2.0\neta = 0.4\nbeta = {beta}", rounds=1)
    spy, _ = spied(of, tmp_path)
    before, after = (state.broadcast.astype(np.float64) for state in spy.states)
    (_, answers), *_ = spy.asks
    mean = answers.totals["update"].value / answers.totals["update"].weight  # of w_k - w
    np.testing.assert_allclose(after, (1 - beta) * before + beta * (before + mean), atol=1e-6)


def test_both_models_are_tested(tmp_path: Path) -> None:
    of = tiny()
    here = world(of)
    spy, finished = spied(of, tmp_path, here)
    with Checkpoint(checkpoint_file(arm_folder(tmp_path, of.arms[0], 3))) as checkpoint:
        own = {client: state["personal"] for client, state in checkpoint.kept().items()}
    theta, common = (
        [
            evaluate(here.problem.module(m), *here.tests[k], "classification").accuracy
            for k, m in models.items()
        ]
        for models in (own, dict.fromkeys(own, spy.states[-1].broadcast))
    )
    counts = [len(x) for x, _ in here.tests]
    last = finished.records[-1]
    assert last["accuracy"] == pytest.approx(np.average(theta, weights=counts))
    newest = np.full(4, np.nan)
    for record in finished.records:
        clients, values = record["figures"]["global accuracy"]
        newest[clients] = values
    assert newest.tolist() == common
    assert theta != common


def test_private_training_is_refused_and_steps_that_diverge() -> None:
    of = private("pfedme", "")
    with pytest.raises(ConfigError, match=r"no \[dpsgd\] with pFedMe"):
        composed(of)
    of = tiny("lamda = 15.0")
    with pytest.raises(ConfigError, match=r"below 2 .* got 0.2 \* 15"):
        composed(of)


def test_its_update_is_bounded_for_a_client_and_endless_for_a_record(tmp_path: Path) -> None:
    here = world(client_level("fedavg"))
    (own,) = PFedMe(lamda=2.0, eta=0.4).build(here.problem).contributions
    assert own.spec.sensitivity == {("client", "zero-out"): 0.5, ("client", "replace-one"): 1.0}
    _, finished = spied(tiny(rounds=1), tmp_path)
    assert finished.records[-1]["epsilon"]["server"] == np.inf


def test_a_step_that_passes_the_personal_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"eta \* lamda"):
        tiny("eta = 0.5")
