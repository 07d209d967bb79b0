"""Running statistics of batch norm: no optimiser, compression, bound or noise treats them as weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.every import every
from support.private_studies import DISTRIBUTED, client_level
from support.tiny_problem import client_context
from support.tiny_study import charged, composed, run, spied, study, world
from torch import nn

from securefl.algorithm.clients import ClientContext, Device, State
from securefl.algorithm.queries import Answers, Total
from securefl.core.errors import ConfigError, DataError
from securefl.core.streams import stream
from securefl.dp import Source
from securefl.protocols.averaging import Adam, Replace
from securefl.protocols.client_state import FIRST, digest_of
from securefl.protocols.parts import Part, stepped
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Brought, Study
from securefl.study.forecast import final_epsilon, forecast, lines
from securefl.training import DPSGD
from securefl.training.devices import in_mode
from securefl.training.dpsgd import train_privately
from securefl.training.kept_norms import NORMS, KeptNorms
from securefl.training.own_models import OwnModelSection
from securefl.training.private_layers import make_private
from securefl.training.vector import kept_statistics, running_statistics

WIDTH, CLIENTS = 6, 4


def normed(inputs: int, outputs: int) -> nn.Module:
    body, norm = nn.Linear(inputs, WIDTH), nn.BatchNorm1d(WIDTH)
    return nn.Sequential(nn.Flatten(), body, norm, nn.ReLU(), nn.Linear(WIDTH, outputs))


def brought(of: Study, buffers: str | None = None) -> Study:
    section = OwnModelSection() if buffers is None else OwnModelSection(buffers=buffers)  # type: ignore[arg-type]
    return replace(of, model=section, brought=Brought(model=normed))


def of(name: str, options: str = "fraction = 1.0", buffers: str | None = None, **changes: Any) -> Study:
    arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{options}\n'
    return brought(study(arm, **{"clients": CLIENTS, "rounds": 2} | changes), buffers)


def models(of: Study, folder: Path, clients: Sequence[int | None] = (None,)) -> list[dict[str, Any]]:
    """The values of the model after the last round, of these clients."""
    spy, _ = spied(of, folder)
    algorithm: Any = composed(of)[0]
    return [algorithm.learnt(spy.states[-1], client, {}).tensors() for client in clients]


SPARSE = "fraction = 1.0\np = 0.003"
NOISES: dict[str, dict[str, str]] = {
    "central": {},
    "shares": {**DISTRIBUTED, "sum": '"masked"'},
    "local": {"noise": '"local"'},
}


def under_noise(noise: dict[str, str], buffers: str) -> Study:
    return brought(client_level(bound="2.0", **{"epsilon": "0.5"} | noise), buffers)


REFUSED_SUMS = [(under_noise(noise, "averaged"), under_noise(noise, "local")) for noise in NOISES.values()]


@every(("name", "options"), {"stc": SPARSE, "cs_fl": "fraction = 1.0\nvote_rate = 0.6"}.items())
def test_a_compression_moves_no_variance_below_zero(name: str, options: str, tmp_path: Path) -> None:
    """It fell to -0.85 in these rounds of STC. Votes move a variance as any value."""
    sparse = of(name, options, rounds=4, non_private='["update", "votes"]')
    variances = world(sparse).problem.averaged[1]
    spy, _ = spied(sparse, tmp_path)
    assert min(state.broadcast[variances].min() for state in spy.states) >= 0
    assert len(variances)


@every("options", [SPARSE, f"{SPARSE}\nper_tensor = true\nties = true"])
def test_a_compression_averages_statistics_as_they_are(options: str, tmp_path: Path) -> None:
    """One size for weights and statistics left a convolutional network at 0.63 for FedAvg's 0.94."""
    (plain,) = models(of("fedavg", 'fraction = 1.0\naggregation = "partial"', rounds=1), tmp_path / "plain")
    spy, _ = spied(sparse := of("stc", options, rounds=3), tmp_path / "sparse")
    averaged = (here := world(sparse).problem).averaged[0]
    after = here.module(spy.states[1].broadcast).state_dict()
    for name in ("2.running_mean", "2.running_var"):
        np.testing.assert_allclose(after[name], plain[name], atol=1e-6)
    for state in spy.states:
        assert np.abs(state.memory["residual"][averaged]).max() < 1e-7


@every(("plain", "mended"), REFUSED_SUMS)
def test_what_would_move_a_variance_as_a_weight_is_refused_and_the_remedy_works(
    plain: Study, mended: Study, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match='buffers = "local"'):
        composed(plain)
    spied(mended, tmp_path)
    place = arm_folder(tmp_path, mended.arms[0], 3)
    with Checkpoint(checkpoint_file(place)) as checkpoint:
        kept = checkpoint.kept()
    assert len(kept) == mended.data.clients
    for own in kept.values():
        means, variances = np.split(own[NORMS], 2)
        assert variances.min() >= 0
        assert not {0.0} & {*means.tolist()}


def test_a_query_that_a_training_answers_is_in_the_bounds_that_its_protocol_declares(tmp_path: Path) -> None:
    """A contribution around it that forgot them once left every client silent."""
    finished = run(of("fltrust", buffers="local", scores="pads"), tmp_path)
    assert [record["abstained"] for record in finished.records] == [{}, {}]


def test_no_server_optimiser_moves_what_is_averaged(tmp_path: Path) -> None:
    """After one round, FedAdam's statistics are FedAvg's, bit for bit, and its weights are not."""
    (plain,) = models(of("fedavg", 'fraction = 1.0\naggregation = "partial"', rounds=1), tmp_path / "plain")
    (adam,) = models(of("fedadam", rounds=1), tmp_path / "adam")
    same = {name for name in plain if plain[name].tobytes() == adam[name].tobytes()}
    assert {"2.running_mean", "2.running_var"} <= same
    assert not {"1.weight", "2.weight", "4.weight"} & same


def test_a_step_leaves_no_variance_below_zero_and_a_zero_stays() -> None:
    problem = world(of("fedavg")).problem
    averaged, variances = problem.averaged
    assert (len(averaged), len(variances)) == (2 * WIDTH, WIDTH)
    start, step = np.zeros(len(problem.initial), np.float32), np.full(len(problem.initial), -(2.0**-20))
    start[variances[:2]], step[variances[1]] = (0.0, 2.0**-30), 0.0
    for server in (Replace(), Adam(learning_rate=1.0, beta1=0.9, beta2=0.99)):
        after = stepped(Part(problem), server, State(start), step).broadcast
        assert after[variances].min() == 0
        assert after[variances[1]] == np.float32(2.0**-30)
        assert (after[np.setdiff1d(averaged, variances)] == np.float32(-(2.0**-20))).all()


# Under a bound of their own ---------------------------------------------------------------------------


def declared(own: Study, bound: float = 2.0) -> Study:
    return replace(own, local=replace(own.local, buffers_bound=bound))


@every("noise", NOISES.values())
def test_under_a_bound_of_their_own_they_are_noised_apart_and_epsilon_counts_them(
    noise: dict[str, str], tmp_path: Path
) -> None:
    own = declared(under_noise(noise, "averaged"))
    here = world(own)
    algorithm, plan = composed(own, here)
    update, buffers = (one.spec for one in algorithm.contributions)
    assert (update.name, buffers.name) == ("update", "buffers")
    assert buffers.sensitivity["client", "zero-out"] == 2.0
    one, both = (final_epsilon(plan, sent)["others"] for sent in ([update], [update, buffers]))
    assert one < 0.45 < both <= 0.5  # the target, from which the noise was calibrated
    spy, _ = spied(own, tmp_path)
    assert charged(tmp_path) == {"update": 12, "buffers": 12}  # of 6 clients in 2 rounds
    averaged, variances = here.problem.averaged
    last, first = spy.states[-1].broadcast, here.problem.initial
    assert last[variances].min() >= 0
    assert (last[averaged] != first[averaged]).any()


def test_a_step_of_statistics_is_clipped_to_its_own_bound_and_the_weights_step_is_not() -> None:
    """Without noise on it: the two values of one client, beside the plain update."""
    whole = under_noise(NOISES["shares"], "averaged")
    whole = replace(whole, local=replace(whole.local, update_bound=1000.0))
    own, here = declared(whole, 0.01), world(declared(whole, 0.01))
    update, buffers = composed(own, here)[0].contributions
    x, y = here.records[0]
    context = _context(here, 0, x, y, {})
    first = update.compute(context)
    assert first.new_state is not None
    step = first.new_state["step"]
    assert np.linalg.norm(step) > 0.1
    told = replace(context, kept=first.new_state, public={FIRST: digest_of(context.broadcast)})
    second = buffers.compute(told)
    assert 0.005 < np.linalg.norm(second.floats()) <= 0.01
    assert second.new_state == {}
    assert len(first.floats()) + len(second.floats()) == len(here.problem.initial)
    with pytest.raises(DataError, match="abstains"):  # of another model, as an active server would ask
        buffers.compute(replace(told, public={FIRST: digest_of(context.broadcast + 1)}))


def test_without_noise_they_move_as_they_would_beside_the_weights(tmp_path: Path) -> None:
    """Wide bounds clip nothing: what is summed apart is the mean of before, to the grid."""
    options = 'fraction = 1.0\naggregation = "full"'
    (plain,) = models(of("fedavg", options, rounds=1), tmp_path / "plain")
    own = of("fedavg", options, rounds=1, non_private='["update", "buffers"]')
    wide = replace(own.local, update_bound=1000.0, buffers_bound=1000.0)
    (apart,) = models(replace(own, local=wide), tmp_path / "apart")
    for name, values in plain.items():
        np.testing.assert_allclose(apart[name], values, atol=2e-3, err_msg=name)


def test_a_client_that_is_lost_leaves_enough_to_ask_for_the_statistics() -> None:
    """The second query named the clients of the first sum, fewer than `min_cohort_size`: no sum opened."""
    own = declared(under_noise(NOISES["shares"], "averaged"))
    here = world(own)
    algorithm: Any = composed(own, here)[0]
    state, averaged = algorithm.start(), here.problem.averaged[0]
    population = replace(here.population(), fewest=lambda cohort: 1, admits=lambda *of: True)
    rounds = algorithm.round(state, population, 1, np.random.default_rng(0))
    first = next(rounds)
    lost, (update,) = first.cohort[0], first.sums
    here_are = tuple(k for k in first.cohort if k != lost)
    total = Total(np.full(update.size, 0.5), float(len(here_are)))
    second = rounds.send(Answers(survivors=here_are, totals={"update": total}, per_client={}))
    assert (second.cohort, second.weights) == (first.cohort, first.weights)
    (buffers,) = second.sums
    moved = Total(np.full(buffers.size, 5.0), 5.0)
    with pytest.raises(StopIteration) as ended:
        rounds.send(Answers(survivors=here_are, totals={"buffers": moved}, per_client={}))
    after = ended.value.value.state
    assert (after.broadcast[averaged] == np.float32(1) + state.broadcast[averaged]).all()


REFUSED_BOUNDS: dict[str, tuple[Study, str]] = {
    "no statistics": (declared(client_level()), "`buffers_bound` under .local., got none. Leave it out"),
    "kept": (declared(under_noise(NOISES["shares"], "local")), "Leave it out"),
    "a part": (declared(brought(client_level("fedper"))), 'buffers = "local"'),
    "none": (under_noise(NOISES["shares"], "averaged"), "Or set `buffers_bound` under .local."),
}


@every(("own", "remedy"), REFUSED_BOUNDS.values())
def test_a_bound_that_bounds_nothing_is_refused(own: Study, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        composed(own)


def test_a_bound_of_statistics_needs_one_of_weights() -> None:
    with pytest.raises(ValueError, match="Set both"):
        replace(study().local, buffers_bound=1.0)


PROTOCOLS = {
    "fedavg": "fraction = 1.0",
    "fedadam": "fraction = 1.0",
    "stc": "fraction = 1.0\np = 0.1",
    "fltrust": "fraction = 1.0",
    "fedper": "",
    "fedbabu": "fine_tune_epochs = 1",
    "pfedme": "lamda = 5.0",
    "feddbe": "",
    "fedproto": "",
}


@every(("name", "options"), PROTOCOLS.items())
def test_kept_local_each_client_measures_its_own_and_none_is_sent(
    name: str, options: str, tmp_path: Path
) -> None:
    permitted = '["statistic", "counts"]' if name == "fedproto" else None
    own = of(name, options, "local", rounds=1, non_private=permitted)
    here = world(own)
    finished = run(own, tmp_path, here=here)
    # Nothing that went down or up has a place for them.
    assert not {*kept_statistics(here.problem.layers)} & {*here.problem.layers.state_dict()}
    assert len(here.problem.initial) == 64 * WIDTH + 3 * WIDTH + WIDTH * 10 + 10
    assert finished.personal
    assert finished.records[-1]["accuracy"] > 0.12


def test_a_clients_statistics_begin_where_its_last_ones_ended_and_stay_its_own() -> None:
    here = world(of("fedavg", buffers="local"))
    algorithm = composed(of("fedavg", buffers="local"), here)[0]
    (update,) = (one for one in algorithm.contributions if one.spec.name == "update")
    assert update.spec.reads_state == "unbound"  # an active server of hidden sums is told of it
    kept: list[Any] = []
    for client in (0, 1):
        x, y = here.records[client]
        first, again = (update.compute(_context(here, client, x, y, {})) for _ in range(2))
        assert first.floats().tobytes() == again.floats().tobytes()
        assert first.new_state is not None
        kept.append(first.new_state[NORMS])
        later = update.compute(_context(here, client, x, y, first.new_state))
        assert later.new_state is not None
        assert not np.array_equal(later.new_state[NORMS], kept[-1])
    x, y = here.records[0]
    once_more = update.compute(_context(here, 0, x, y, {})).new_state
    assert once_more is not None  # the other client has trained the same module between
    assert np.array_equal(once_more[NORMS], kept[0])
    assert not np.array_equal(*kept)
    assert kept[0].shape == (2 * WIDTH,)


def _context(here: Any, client: int, x: Any, y: Any, kept: Any) -> ClientContext:
    return client_context(
        x, y, client=client, broadcast=here.problem.initial, rng=stream(1, "client", 1, client), kept=kept
    )


def test_each_client_is_tested_and_exported_under_its_own() -> None:
    own = of("fedavg", buffers="local")
    here = world(own)
    algorithm: Any = composed(own, here)[0]
    assert isinstance(algorithm, KeptNorms)
    state, norms = algorithm.start(), np.linspace(0.5, 2, 2 * WIDTH).astype(np.float32)
    found = algorithm.learnt(state, 1, {NORMS: norms})
    tensors = found.tensors()
    assert np.array_equal(np.concatenate([tensors["2.running_mean"], tensors["2.running_var"]]), norms)
    assert "2.running_var" not in algorithm.learnt(state, None, {}).tensors()
    x, y = here.tests[1]
    devices = [Device(x=x[:0], y=y[:0], kept={}), Device(x=x, y=y, kept={NORMS: norms})]
    with torch.no_grad():
        right = found.module()(torch.from_numpy(x)).argmax(1).numpy() == y
    assert algorithm.evaluate(state, devices).accuracy == pytest.approx(right.mean())


@every("damaged", [np.zeros(3, np.float32), np.full(2 * WIDTH, np.nan, np.float32), np.zeros(2 * WIDTH)])
def test_damaged_statistics_are_refused(damaged: Any) -> None:
    algorithm: Any = composed(of("fedavg", buffers="local"))[0]
    with pytest.raises(DataError, match="Restore the client's file"):
        algorithm.norms({NORMS: damaged})


REFUSED: dict[str, tuple[str, str, str]] = {
    "profiles": ("fedprof", "fraction = 1.0", 'Take buffers = "averaged"'),
    "losses": ("active_fl", "fraction = 1.0", 'Take buffers = "averaged"'),
    "stale models": ("fedavg", "fraction = 1.0\nstale = true", 'Take buffers = "averaged"'),
    "heads on features": ("fedbabu", 'fine_tuned = "head"', 'fine_tuned = "full"'),
}


@every(("name", "options", "remedy"), REFUSED.values())
def test_what_would_read_a_model_without_them_is_refused(name: str, options: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        composed(of(name, options, "local"))


def test_the_remedies_work() -> None:
    for name, options, _ in list(REFUSED.values())[:3]:
        composed(of(name, options, "averaged"))


def test_a_plan_says_what_becomes_of_them() -> None:
    plain, kept = of("fedavg", buffers="averaged"), of("fedavg", buffers="local")
    bounded = declared(under_noise(NOISES["shares"], "averaged"))
    said_of = {
        "12 are averaged, and no server": plain,
        "keeps its own 12": kept,
        "12 are summed apart within a norm of 2, a release that epsilon counts": bounded,
    }
    for said, own in said_of.items():
        found = forecast(own, own.arms[0], world(own))
        assert f"  running statistics: {said}" in "\n".join(lines(own, [found])).replace("each client ", "")
    assert running_statistics(world(own).problem.layers).keys() == {"2.running_mean", "2.running_var"}


# Norms of a frozen body ------------------------------------------------------------------------------


class Plain(nn.Module):
    """A body with norms of every kind under a head."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        norms = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, affine=False)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, WIDTH), *norms, nn.ReLU())
        self.head = nn.Linear(WIDTH, outputs)
        norms[0].running_mean = torch.full((WIDTH,), 0.25)  # as of a pretrained model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.body(x))
        return found


def on_a_body(of: Study, **section: Any) -> Study:
    """The study under `train = "head"`. The model's own word would be `body.requires_grad_(False)`."""
    return replace(of, model=OwnModelSection(**{"train": "head"} | section), brought=Brought(model=Plain))


@every("own", [of("fedavg", rounds=2), under_noise(NOISES["shares"], "averaged")])
def test_a_frozen_body_is_the_same_after_a_run_with_or_without_noise(own: Study, tmp_path: Path) -> None:
    """Under noise this needed buffers = "local", though nothing of the body should have moved."""
    own = on_a_body(own)
    here = world(own)
    before = {name: entry.clone() for name, entry in here.problem.layers.state_dict().items()}
    (after,) = models(own, tmp_path)
    assert {name for name in after if not np.array_equal(after[name], before[name])} == {
        "head.weight",
        "head.bias",
    }
    assert len(here.problem.initial) == WIDTH * 10 + 10
    assert float(after["body.2.running_mean"].mean()) == 0.25


def test_a_frozen_body_is_trained_on_as_it_is_evaluated() -> None:
    """In training mode it would have normed each batch by its own mean, which no evaluation does."""
    model = Plain(64, 10).train()
    model.body.requires_grad_(False)
    x = torch.rand(8, 64)
    with in_mode(model, training=True):
        trained = model(x)
        assert model.head.training
    with in_mode(model, training=False):
        assert torch.equal(trained, model(x))


def test_private_training_keeps_the_norms_of_a_frozen_body() -> None:
    """They became group norms with scales of 1: a pretrained body was another one."""
    model = Plain(64, 10)
    made, changes = make_private(model)
    assert len(changes) == 2  # trained norms mix records
    model.body.requires_grad_(False)
    made, changes = make_private(model)
    assert not changes
    before = {name: entry.clone() for name, entry in made.state_dict().items()}
    x, y = np.random.default_rng(0).random((12, 64), np.float32), np.arange(12) % 10
    size = {"sampling_rate": 0.5, "expected_batch": 6.0, "steps": 2}
    config = DPSGD(clip_norm=1.0, noise_multiplier=1.0, optimizer="sgd", learning_rate=0.5, **size)
    with torch.no_grad(), in_mode(made, training=True):  # as private training does: no record moves another
        both, alone = made(torch.from_numpy(x)), made(torch.from_numpy(np.concatenate([x[:1], 5 * x[1:]])))
        assert torch.equal(both[0], alone[0])
    train_privately(made, x, y, config, "cross_entropy", Source())
    moved = {name for name, entry in made.state_dict().items() if not torch.equal(entry, before[name])}
    assert moved == {"head.weight", "head.bias"}
