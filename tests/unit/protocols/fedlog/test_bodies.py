"""FedLog with bodies that are trained, FedLog-C, LG-FedAvg, and what epsilon is true for each body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import ComposedDpEvent, GaussianDpEvent
from scipy import stats
from support.tiny_fedlog import world as digits_world
from support.tiny_study import plain, spied

from securefl.accounting.ledger import Ledger, Terms
from securefl.core.errors import ConfigError, DataError
from securefl.core.keys import SecretKey
from securefl.core.release import UNPROTECTED
from securefl.dp.noise import Source
from securefl.plan import Plan, charge_of
from securefl.protect import noise
from securefl.protocols.fedlog.bodies import Trained, class_means, clustering
from securefl.protocols.fedlog.head import solve
from securefl.protocols.fedlog.options import FedLog
from securefl.protocols.fedlog.statistic import GRID, Clipping, Statistic
from securefl.protocols.lg_fedavg import LastLayers, LGFedAvg
from securefl.rounds import Job
from securefl.study.config import Study, parse
from securefl.study.run import ArmRun, composition, run_arm
from securefl.study.world import World, build
from securefl.training import client
from securefl.training.bodies import Bodies
from securefl.training.dpsgd_config import DPSGD
from securefl.training.heads import activated, body_features, last_dense
from securefl.training.models import ModelConfig
from securefl.training.vector import to_vector

FEDLOG = 'name = "FedLog"\nprotocol = "fedlog"\nbody = "private"'
LG = 'name = "LG"\nprotocol = "lg_fedavg"'


def study(arm: str = FEDLOG, *, rounds: int = 3, hidden: str = "[32]", **privacy: str) -> Study:
    words = {
        "noise": '"none"',
        "unit": '"record"',
        "unprotected": '["statistic", "update"]' if "lg" in arm else '["statistic"]',
        "against": '["server", "others"]',
        "adjacency": '"add-remove"',
        **privacy,
    }
    if "lg" in arm:
        words["unprotected"] = '["update"]'
    lines = "\n".join(f"{key} = {value}" for key, value in words.items())
    return parse(
        f"""
[study]
name = "bodies"
rounds = {rounds}
[data]
source = "digits"
clients = 10
partition = {{ kind = "classes", per_client = 2 }}
[model]
kind = "mlp"
hidden = {hidden}
[local]
optimizer = "adam"
learning_rate = 0.003
epochs = 2
batch_size = 10
[privacy]
sum = "clear"
scores = "clear"
delta = 1e-5
budget = inf
{lines}
[[arm]]
{arm}
"""
    )


@cache
def world(hidden: str = "[32]") -> World:
    return build(study(hidden=hidden), 0)


def run(of: Study, folder: Path, here: World | None = None, tell: Any = lambda record: None) -> ArmRun:
    return run_arm(of, of.arms[0], here or world(), folder, tell)


def ledger(of: Study, folder: Path, schedule: dict[str, int] | None) -> Ledger:
    terms = Terms(
        unit=of.privacy.unit,
        adjacency=of.privacy.adjacency,
        delta=1e-5,
        against=of.privacy.against,
        schedule=schedule,
    )
    return Ledger(folder / "arms" / "fedlog" / "seed-0" / "ledger.sqlite", terms)


# What is true of each body -----------------------------------------------------------------------


def moved(body: str, client_bound: float | None = None, records: int = 6) -> list[float]:
    """|T - T'| of a client's statistic over removed records, each time prepared anew as the protocol does."""
    here = world()
    if body == "dp-sgd":
        here = replace(here, problem=replace(here.problem, private=DPSGD_CONFIG))
    options = FedLog(body=body, client_bound=client_bound)  # type: ignore[arg-type]
    (made,) = options.build(here.problem).offers
    x, y = here.records[0]
    y = y.copy()
    y[0] = (y[0] + 5) % 10  # one record has a wrong label
    head = made.compute(job(here, x, y, np.zeros(0, np.float32))).floats(GRID).astype(np.float32)

    def twice(x: Any, y: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        first = made.compute(job(here, x, y, head))
        return made.compute(job(here, x, y, head, first.keep or {})).floats(GRID)

    whole = twice(x, y)
    return [float(np.linalg.norm(whole - twice(np.delete(x, i, 0), np.delete(y, i)))) for i in range(records)]


def job(here: World, x: Any, y: Any, model: Any, kept: Mapping[str, Any] | None = None) -> Job:
    rng = np.random.default_rng(1)
    return Job(client=0, round=1, x=x, y=y, broadcast=model, public={}, rng=rng, kept=kept or {})


DPSGD_CONFIG = DPSGD(
    clip_norm=1.0,
    noise_multiplier=1.0,
    sampling_rate=0.5,
    expected_batch=10,
    steps=20,
    optimizer="sgd",
    learning_rate=0.3,
)


def test_a_private_mechanisms_body_moves_too_and_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same sampling and noise a record moves the statistic further than D, by way of the body: what
    holds is no sensitivity but a composition, of the training's event and the statistic's given the body."""
    monkeypatch.setattr(client, "Source", lambda: Source(SecretKey(bytes(range(32)))))
    assert max(moved("dp-sgd")) > np.sqrt(2)
    problem = replace(world().problem, private=DPSGD_CONFIG)
    (made,) = FedLog(body="dp-sgd").build(problem).offers
    charge = charge_of(replace(PLAN, noise="local"), made.sends)
    assert charge.server == ComposedDpEvent((GaussianDpEvent(3.0), DPSGD_CONFIG.event))


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, 1e20])
@pytest.mark.parametrize("label", [3, -1, 99])
def test_no_record_silences_a_client_that_is_charged_a_finite_epsilon(
    value: float, label: int, tmp_path: Path
) -> None:
    """Not by features that are not finite or make training diverge, nor by a label that is none."""
    of = study(
        FEDLOG + "\nclient_bound = 30.0",
        rounds=2,
        noise='"local"',
        epsilon="3.0",
        unit='"client"',
        adjacency='"zero-out"',
        unprotected="[]",
    )
    here = world()
    x, y = here.records[0]
    x, y = x.copy(), y.copy()
    x[0], y[0] = value, label
    finished = run(of, tmp_path, replace(here, records=[(x, y), *here.records[1:]]))
    assert [record["answered"] for record in finished.records] == [[1] * 10] * 2
    assert finished.records[-1]["epsilon"]["server"] == pytest.approx(3.0, abs=1e-6)


def test_central_noise_is_fresh_in_every_run(tmp_path: Path) -> None:
    """With a public body the true sum is the same in each: only the noise differs."""
    arm = 'name = "FedLog"\nprotocol = "fedlog"'
    of = study(arm, rounds=1, noise='"central"', epsilon="1.0", against='["others"]', unprotected="[]")
    drawn = []
    for name in "abc":
        spy, _ = spied(of, tmp_path / name, world())
        sums = [state.memory["sum"] for state in spy.states]
        drawn += [after - before for before, after in pairwise(sums)]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert np.mean(one == other) < 0.01


def test_a_broadcast_of_another_size_costs_an_answer_and_not_the_process() -> None:
    here = world()
    x, y = here.records[0]
    for size in (1, 329, 331):
        model = np.zeros(size, np.float32)
        for options in (FedLog(body="private"), LGFedAvg()):
            made = options.build(here.problem).offers[0]
            with pytest.raises(DataError, match="Expected"):
                made.compute(job(here, x, y, model))


def test_the_papers_claim_holds_for_a_public_body_only() -> None:
    """Specification of DP, 2.12: D = sqrt(2) per record at unit norm; the private body breaks it."""
    claimed = np.sqrt(2)
    assert max(moved("public")) <= claimed
    assert max(moved("private")) > 3 * claimed
    assert max(moved("private", client_bound=20.0)) <= 2 * 20.0, "what a client does at most, trained or not"


def test_a_private_body_has_no_record_level_epsilon_whatever_the_noise(tmp_path: Path) -> None:
    central: dict[str, str] = {"noise": '"central"', "epsilon": "0.1", "against": '["others"]'}
    with pytest.raises(ConfigError, match="reads state that was trained on the records"):
        composition(study(**{**central, "unprotected": "[]"}), study().arms[0], world())
    finished = run(study(**central), tmp_path)
    assert finished.records[-1]["epsilon"]["others"] == np.inf
    quiet = run(study(), tmp_path / "quiet")
    assert finished.records[-1]["accuracy"] < quiet.records[-1]["accuracy"], "the noise is there all the same"


def test_a_clipped_client_has_a_finite_epsilon_that_counts_the_first_exchange(tmp_path: Path) -> None:
    of = study(
        FEDLOG + "\nclient_bound = 30.0",
        noise='"local"',
        epsilon="3.0",
        unit='"client"',
        adjacency='"zero-out"',
        unprotected="[]",
    )
    finished = run(of, tmp_path)
    assert finished.records[-1]["epsilon"]["server"] == pytest.approx(3.0, abs=1e-6)
    _, plan = composition(of, of.arms[0], world())
    assert plan.releases == {"statistic": 4}, "three rounds and the exchange before them"
    with ledger(of, tmp_path, {"statistic": 4}) as book:
        assert len(book.rows()) == 4 * 10
        assert {row[3] for row in book.rows() if row[2] == 1} == {0, 1}


@pytest.mark.parametrize("bound", [0.5, 20.0, 1000.0])
def test_a_clients_whole_statistic_is_scaled_to_its_bound(bound: float) -> None:
    here = world()
    (made,) = FedLog(body="private", client_bound=bound).build(here.problem).offers
    x, y = here.records[0]
    clipped = made.compute(job(here, x, y, np.zeros(0, np.float32))).floats(GRID)
    (free,) = FedLog(body="private").build(here.problem).offers
    whole = free.compute(job(here, x, y, np.zeros(0, np.float32))).floats(GRID)
    assert np.linalg.norm(clipped) <= bound
    factor = min(1.0, bound / float(np.linalg.norm(whole)))
    np.testing.assert_allclose(clipped, factor * whole, atol=3 * GRID.step)
    assert made.sends.sensitivity["client", "zero-out"] == bound
    assert made.sends.sensitivity["client", "replace-one"] == 2 * bound


# Training the bodies -----------------------------------------------------------------------------


def test_bodies_are_trained_kept_and_tested_on_their_own_clients_classes(tmp_path: Path) -> None:
    finished = run(study(rounds=4), tmp_path)
    accuracy = [record["accuracy"] for record in finished.records]
    assert accuracy[-1] > 0.97
    assert accuracy[-1] > accuracy[0]
    again = run(study(rounds=4), tmp_path / "again")
    assert plain(again.records) == plain(finished.records)


def test_a_cut_off_run_goes_on_with_the_bodies_it_had(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(record: Any) -> None:
        if record["round"] == 2:
            raise Stopped

    whole = run(study(rounds=4), tmp_path / "whole")
    with pytest.raises(Stopped):
        run(study(rounds=4), tmp_path / "cut", tell=stop)
    assert plain(run(study(rounds=4), tmp_path / "cut").records) == plain(whole.records)


def test_the_head_is_frozen_and_the_body_is_not() -> None:
    here = world()
    body = Trained(Bodies(here.problem), None)
    x, y = here.records[0]
    statistic = np.random.default_rng(0).normal(size=(10, 33)) + 5
    before = to_vector(here.problem.module(here.problem.initial))
    model, kept = body.prepare(job(here, x, y, statistic.ravel().astype(np.float32)))
    head = solve(statistic.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(last_dense(model).weight.detach(), head[:, 1:], rtol=1e-6)
    assert all(parameter.requires_grad for parameter in model.parameters()), "free again afterwards"
    assert kept is not None
    assert not np.array_equal(kept["model"][: 64 * 32], before[: 64 * 32])


def test_messages_are_two_statistics_whatever_the_body(tmp_path: Path) -> None:
    for hidden in ("[32]", "[128, 32]"):
        record = run(study(hidden=hidden, rounds=2), tmp_path / hidden, world(hidden)).records[1]
        statistic = 10 * 4 * 10 * 33  # clients, bytes, classes, features
        assert statistic < record["bytes_up"] < statistic + 10 * 200
        assert statistic < record["bytes_down"] < statistic + 10 * 350


def test_bodies_may_differ_and_share_a_head(tmp_path: Path) -> None:
    arm = FEDLOG + "\nshorter = 0.5"
    spy, finished = spied(study(arm, hidden="[48, 32]"), tmp_path, world("[48, 32]"))
    assert finished.records[-1]["accuracy"] > 0.9
    assert spy.states[-1].broadcast.shape == (10 * 33,)
    bodies = Bodies(world("[48, 32]").problem, 0.5)
    sizes = [len(bodies.of(client).initial) for client in range(10)]
    assert sizes[:5] == [64 * 32 + 32 + 33 * 10] * 5
    assert sizes[5:] == [64 * 48 + 48 + 48 * 32 + 32 + 33 * 10] * 5
    with pytest.raises(ConfigError, match="without the first"):
        composition(study(arm), study(arm).arms[0], world())


# FedLog-C ----------------------------------------------------------------------------------------


def test_class_means_do_not_trust_small_counts() -> None:
    statistic = np.array([[4.0, 8.0, -4.0], [0.5, 3.0, 3.0], [-2.0, 1.0, 1.0], [1.0, 5.0, 6.0]])
    means = class_means(statistic)
    np.testing.assert_array_equal(means[[0, 3]], [[2.0, -1.0], [5.0, 6.0]])
    assert np.isnan(means[[1, 2]]).all()


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
        found = float(clustering(means, alpha, beta)(model, x, y).detach())
        assert found == pytest.approx(plain_loss + extra / 5, rel=1e-5)
    assert not model[1]._forward_pre_hooks


def test_the_auxiliary_loss_sees_what_the_head_sees() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3))
    x, y = torch.randn(4, 3, generator=torch.Generator().manual_seed(2)) * 50, torch.tensor([0, 1, 2, 0])
    with activated(model, Clipping().activation()):
        logits = model(x)
        found = float(clustering(np.zeros((3, 2)), 1.0, 0.0)(model, x, y).detach())
    own = float(torch.nn.functional.cross_entropy(logits, y).detach())
    assert found == pytest.approx(own + 1.0, rel=1e-5), "unit norm: one from the origin"


def test_fedlog_c_pulls_features_to_the_class_means() -> None:
    here = world()
    x, y = here.records[0]
    statistic = np.abs(np.random.default_rng(0).normal(size=(10, 33))) + 1
    means = class_means(statistic)

    def distance(alpha: float) -> float:
        body = Trained(Bodies(here.problem), None, compact=alpha)
        model, _ = body.prepare(job(here, x, y, statistic.ravel().astype(np.float32)))
        return float(np.mean((body_features(model, x) - means[y]) ** 2))

    assert distance(1.0) < 0.5 * distance(0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.01},
        {"shorter": 0.5},
        {"body": "private", "alpha": -1.0},
        {"body": "private", "beta": float("nan")},
        {"body": "private", "shorter": 1.5},
        {"client_bound": 0.0},
        {"client_bound": float("inf")},
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Expected"):
        FedLog(**options)


# LG-FedAvg ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2])
def test_lg_fedavg_averages_the_last_layers_alone(layers: int, tmp_path: Path) -> None:
    of = study(LG + f"\nlayers = {layers}", rounds=3, hidden="[48, 32]")
    here = world("[48, 32]")
    spy, finished = spied(of, tmp_path, here)
    shared = 33 * 10 + (49 * 32 if layers == 2 else 0)
    assert spy.states[-1].broadcast.shape == (shared,)
    np.testing.assert_array_equal(spy.states[0].broadcast, here.problem.initial[-shared:])
    assert finished.records[-1]["accuracy"] > 0.8, "two classes a client: 0.5 is chance"
    statistic = 10 * 4 * shared
    assert statistic < finished.records[0]["bytes_up"] < statistic + 10 * 200


def test_lg_fedavg_keeps_each_body_and_takes_the_shared_layers() -> None:
    here = world()
    part = LastLayers(Bodies(here.problem), 1)
    x, y = here.records[0]
    shared = np.arange(330, dtype=np.float32) / 1000
    value = part.update(0).compute(job(here, x, y, shared))
    assert value.keep is not None
    trained = value.keep["model"]
    np.testing.assert_allclose(value.clear, trained[-330:].astype(np.float64) - shared)
    assert not np.array_equal(trained[:-330], here.problem.initial[:-330])
    put = part.model(0, shared, value.keep)
    np.testing.assert_array_equal(put, np.concatenate([trained[:-330], shared]))


def test_lg_fedavg_refuses_layers_there_are_not() -> None:
    with pytest.raises(ValueError, match="layers >= 1"):
        LGFedAvg(layers=0)
    with pytest.raises(ConfigError, match="at least 5 dense layers"):
        composition(study(LG + "\nlayers = 5"), study(LG + "\nlayers = 5").arms[0], world())


# Distributed noise -------------------------------------------------------------------------------

PLAN = Plan(
    noise="distributed",
    noise_multiplier=3.0,
    dropout=0.2,
    corrupt=0.2,
    adjacency="add-remove",
    delta=1e-5,
    schedule=1,
)


def sends() -> Any:
    (made,) = FedLog().build(world().problem).offers
    assert isinstance(made, Statistic)
    return made.sends


def test_honest_shares_add_up_to_the_promised_noise() -> None:
    """Of 6 honest shares; chi-square over 30,000 coordinates, false alarm 1e-6; one share short is caught."""
    shares = [noise(PLAN, sends(), 30_000, Source()) for _ in range(6)]
    sigma = np.sqrt((3.0 * np.sqrt(2) / GRID.step) ** 2 + 4)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 30_000)
    assert low < np.sum((np.sum(shares, axis=0) / sigma) ** 2) < high
    assert np.sum((np.sum(shares[1:], axis=0) / sigma) ** 2) < low


def test_a_server_that_sums_in_the_clear_is_charged_with_what_it_sees() -> None:
    charge = charge_of(PLAN, sends())
    assert charge.others.noise_multiplier == 3.0
    assert charge.server.noise_multiplier == pytest.approx(3.0 / np.sqrt(6), rel=1e-3)
    assert charge.server.noise_multiplier <= 3.0 / np.sqrt(6)
    private = FedLog(body="private").build(world().problem).offers[0].sends
    assert charge_of(replace(PLAN, unprotected=("statistic",)), private) == UNPROTECTED


def test_a_grid_that_is_too_coarse_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="too coarse"):
        charge_of(replace(PLAN, noise_multiplier=0.03), sends())
    with pytest.raises(ConfigError, match="shares of at least 4 grid units"):
        charge_of(replace(PLAN, noise_multiplier=0.1), replace(sends(), cohort=2500))
    charge_of(replace(PLAN, noise_multiplier=0.1), sends())


def distributed(dropout: float, extra: str = "") -> Study:
    of = study(
        'name = "FedLog"\nprotocol = "fedlog"',
        rounds=1,
        noise='"distributed"',
        epsilon="8.0",
        dropout=str(dropout),
        corrupt="0.2",
        least_cohort="1",
        least_honest="1",
        largest_share="1.0",
        unprotected="[]",
    )
    return parse(of.text + extra)


def test_a_run_with_distributed_noise(tmp_path: Path) -> None:
    finished = run(distributed(0.2), tmp_path)
    (record,) = finished.records
    assert record["epsilon"]["others"] == pytest.approx(8.0, abs=1e-6)
    assert record["epsilon"]["server"] > 15, "the trusted sum: it sees single contributions"
    assert record["accuracy"] > 0.5


def test_a_sum_of_too_few_is_thrown_away(tmp_path: Path) -> None:
    """Fewer shares of noise than were promised are no release."""
    lossy = distributed(0.0, "\n[network]\ndropout = 0.3\n")
    (record,) = run(lossy, tmp_path).records
    assert record["answered"] == [0] * 10
    assert "the noise would fall short" in record["abstained"]["server"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("dropout = 0.2\ncorrupt = 0.8", "less than 1 together"),
        ("corrupt = 0.0", "Expected `dropout`"),
    ],
)
def test_distributed_noise_needs_its_numbers(changed: str, said: str, tmp_path: Path) -> None:
    text = distributed(0.2).text.replace("dropout = 0.2\ncorrupt = 0.2", changed)

    def prepare() -> None:
        of = parse(text)
        composition(of, of.arms[0], world())

    with pytest.raises(ConfigError, match=said):
        prepare()


# What the observer tests on ----------------------------------------------------------------------


def test_test_records_are_dealt_like_the_training_records() -> None:
    here = world()
    tests = here.tests
    for (_, trained), (_, tested) in zip(here.records, tests, strict=True):
        assert set(tested) <= set(trained)
        assert len(set(trained)) == 2
    assert sum(len(y) for _, y in tests) == len(here.problem.server_y)
    seen = np.concatenate([x.reshape(len(x), -1) for x, _ in tests])
    assert sorted(map(bytes, seen)) == sorted(map(bytes, here.problem.server_x.reshape(len(seen), -1)))


def test_a_class_that_nobody_holds_is_tested_by_nobody() -> None:
    here = digits_world()
    records = [(x[y != 7], y[y != 7]) for x, y in here.records]
    tests = replace(here, records=records).tests
    assert not any((y == 7).any() for _, y in tests)


def test_the_paper_s_networks_have_its_shapes() -> None:
    for size, channels, width in ((28, 1, 50), (32, 3, 100)):
        config = ModelConfig(kind="fedlog_cnn")
        model = config.build((channels, size, size), 10, 0)
        assert last_dense(model).in_features == width
        assert model(torch.zeros(2, channels, size, size)).shape == (2, 10)
        assert config.layer == "dense.fc1"
    with pytest.raises(ConfigError, match="28x28 or 32x32"):
        ModelConfig(kind="fedlog_cnn").build((1, 30, 30), 10, 0)
