"""Local accuracy: each client's own held-out records, by the model that it would use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.every import every
from support.supernets import MLP, context, problem, sliced
from support.tiny_study import composed, study

from securefl.algorithm.clients import ClientContext, Device, Population
from securefl.core.errors import ConfigError
from securefl.protocols.adds import Adds, FedDrop
from securefl.protocols.adds.contributions import MASK, packed
from securefl.protocols.adds.feddrop import Dropped
from securefl.protocols.adds.part import Subnets
from securefl.protocols.adds.subnet_search import subnet_of
from securefl.protocols.client_state import FIRST, digest_of
from securefl.protocols.fedavg import FedAvg
from securefl.protocols.fedbabu import FedBABU
from securefl.protocols.fedlog import FedLog
from securefl.protocols.fedper import FedPer
from securefl.protocols.fedproto import FedProto
from securefl.protocols.fedrep import FedRep
from securefl.protocols.local_accuracy import LOCAL
from securefl.protocols.parts import Part
from securefl.protocols.pfedme import PFedMe
from securefl.protocols.stc import STC
from securefl.study.config import Study, parse
from securefl.study.run import run_arm
from securefl.study.world import build
from securefl.training.run_jobs import run_job

PROBLEM = problem(MLP)


def subnets(scaled: bool = False) -> Any:
    return Adds(fraction=1.0, scaled=scaled).build(PROBLEM).part  # type: ignore[attr-defined]


def device(client: int = 0, records: int = 40, **kept: Any) -> Device:
    made = context(subnets().supernet, client=client, records=max(1, records))
    x, y = made.x[:records], made.y[:records]
    return Device(x=x[:0], y=y[:0], kept=kept, held=(x, y))


def random_model() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=len(PROBLEM.initial)).astype(np.float32)


def right(module: torch.nn.Module, own: Device) -> float:
    assert own.held is not None
    module.eval()
    with torch.no_grad():
        return float((module(torch.from_numpy(own.held[0])).argmax(1).numpy() == own.held[1]).mean())


def test_a_common_model_is_tested_on_each_clients_own_records() -> None:
    model, devices = random_model(), [device(client) for client in range(3)]
    expected = [right(PROBLEM.module(model), own) for own in devices]
    assert len(set(expected)) > 1, "choose another seed: the clients must differ"
    assert Part(PROBLEM).figures(model, devices)[LOCAL].tolist() == pytest.approx(expected)


def test_a_client_of_adds_uses_its_own_units() -> None:
    """The masked pass is that of the sliced model. The whole model would be right elsewhere."""
    own, model = subnets(), random_model()
    units = [np.random.default_rng(seed).random(own.supernet.units) < 0.5 for seed in range(3)]
    devices = [device(client, units=kept) for client, kept in enumerate(units)]
    found = own.evaluate(model, devices).figures[LOCAL]
    pairs = zip(units, devices, strict=True)
    expected = [right(sliced(own.supernet, model, kept), one) for kept, one in pairs]
    assert found.tolist() == pytest.approx(expected)
    whole = [right(PROBLEM.module(model), one) for one in devices]
    assert found.tolist() != pytest.approx(whole)


def test_scaled_masks_are_scaled_in_the_test_too() -> None:
    own, model = subnets(scaled=True), random_model()
    units = np.random.default_rng(0).random(own.supernet.units) < 0.5
    layers = own.supernet.sampled
    part = sliced(own.supernet, model, units)
    for layer in layers:
        module = part.get_submodule(layer.name)
        module.weight.data /= units[layer.own].mean()
        module.bias.data /= units[layer.own].mean()
    one = device(units=units)
    assert own.evaluate(model, [one]).figures[LOCAL][0] == pytest.approx(right(part, one))


THETA = random_model()


@every(
    ("options", "kept", "model"),
    [
        (Adds(fraction=1.0), {}, None),
        (Adds(fraction=1.0), {"units": np.zeros(18, np.bool_)}, None),
        (FedDrop(fraction=1.0), {"units": np.arange(18) < 9}, None),
        (PFedMe(eta=0.05), {"personal": -THETA}, -THETA),
    ],
)
def test_a_client_without_a_subnet_uses_the_whole_and_one_of_pfedme_its_theta(
    options: Any, kept: dict[str, Any], model: Any
) -> None:
    one, used = device(**kept), THETA if model is None else model
    found = options.build(PROBLEM).part.evaluate(THETA, [one]).figures[LOCAL][0]
    assert found == pytest.approx(right(PROBLEM.module(used), one))


@every("options", [FedPer(), FedRep(), FedBABU(), FedProto(), FedLog(body="private")])
def test_a_client_with_a_model_of_its_own_uses_it(options: Any) -> None:
    """The model that the client would export, which is whole."""
    algorithm = options.build(PROBLEM)
    state = algorithm.start()
    key = "tuned" if isinstance(options, FedBABU) else "model"
    devices = [device(client, **{key: random_model() * (client + 1)}) for client in (0, 1)]
    found = algorithm.evaluate(state, devices).figures[LOCAL]
    for client, one in enumerate(devices):
        assert one.held is not None
        module = algorithm.learnt(state, client, one.kept).module()
        with torch.no_grad():
            guessed = module(torch.from_numpy(one.held[0])).argmax(1).numpy()
        assert found[client] == pytest.approx(np.mean(guessed == one.held[1]))


def trained_by(algorithm: Any, given: ClientContext) -> tuple[torch.nn.Module, Any]:
    """The model that a client trains in its first round, from the training alone, and what it then keeps."""
    contribution, part = algorithm.contributions[0], algorithm.averaged
    trained: Any = run_job(contribution.fit(given))
    kept = contribution.value(given, trained).new_state
    if isinstance(part, Subnets):
        found = subnet_of(part.supernet, given, trained)
        summed = packed(np.ones(part.supernet.groups, np.bool_))
        asked = replace(given, kept=kept, public={MASK: summed, FIRST: digest_of(given.broadcast)})
        kept = algorithm.contributions[1].compute(asked).new_state
        return sliced(part.supernet, found.model, found.units), kept
    if isinstance(part, Dropped):
        return part.thin.module(trained), kept
    return PROBLEM.module(trained[: len(PROBLEM.initial)]), kept  # the first half is pFedMe's theta


OPTIONS = [
    FedAvg(fraction=1.0, aggregation="partial"),
    STC(fraction=1.0, p=0.3),
    FedDrop(fraction=1.0),
    Adds(fraction=1.0, scaled=False),
    PFedMe(eta=0.05, lamda=1.0),
]


@every("options", OPTIONS)
def test_at_own_it_is_of_the_model_that_the_client_trained(options: Any) -> None:
    figures = {}
    for at in ("own", "averaged"):
        algorithm: Any = options.build(replace(PROBLEM, tested_at=at))  # type: ignore[arg-type]
        state, everyone = algorithm.start(), Population(clients=1, seconds=np.ones(1))
        query = next(algorithm.round(state, everyone, 1, np.random.default_rng(0)))
        own = device(records=400)
        given = context(subnets().supernet, broadcast=query.broadcast, public=query.public)
        module, kept = trained_by(algorithm, given)
        expected = right(module, own)
        after = algorithm.averaged.evaluate(random_model(), [replace(own, kept=kept or {})])
        figures[at] = after.figures[LOCAL][0]
        assert (figures[at] == pytest.approx(expected)) == (at == "own" or isinstance(options, PFedMe))


@every("protocol", ["fedavg", "stc", "adds", "feddrop"])
def test_at_own_a_study_with_one_model_for_all_needs_a_hold_out(protocol: str) -> None:
    own = held_out(f'[[arm]]\nname = "x"\nprotocol = "{protocol}"\nfraction = 1.0\n')
    own = replace(own, measures=replace(own.measures, at="own"))
    composed(own)
    with pytest.raises(ConfigError, match="need `holdout` under"):
        composed(replace(own, data=replace(own.data, holdout=0.0)))


def test_a_client_without_held_out_records_is_left_out() -> None:
    found = subnets().evaluate(random_model(), [device(), device(1, records=0)]).figures[LOCAL]
    assert np.isnan(found).tolist() == [False, True]


def test_without_a_hold_out_there_is_no_figure() -> None:
    x = np.zeros((0, 1, 8, 8), np.float32)
    none = Device(x=x, y=np.zeros(0, np.int64), kept={})
    assert Part(PROBLEM).figures(PROBLEM.initial, [none]) == {}
    assert Part(PROBLEM).figures(PROBLEM.initial, []) == {}


def held_out(arm: str) -> Study:
    made = study(arm, clients=3, rounds=1, non_private='["update", "map", "consensus", "statistic"]')
    return parse(made.text.replace("[data]\n", "[data]\nholdout = 0.3\n"))


PERSONAL = ("fedper", "fedrep", "fedbabu", "feddbe", "lg_fedavg", "pfedme", "fedproto", "fedlog")


@every("protocol", ["fedavg", "adds", "feddrop", "stc", *PERSONAL])
def test_a_run_tests_on_the_records_that_it_holds_out(protocol: str, tmp_path: Path) -> None:
    options = {
        "fedavg": 'aggregation = "partial"',
        "stc": "p = 0.25",
        "pfedme": "lamda = 5.0\neta = 0.1",
        "fedlog": 'body = "private"',
    }
    more = options.get(protocol, "") + ("" if protocol in ("fedproto", "fedlog") else "\nfraction = 1.0")
    own = held_out(f'[[arm]]\nname = "x"\nprotocol = "{protocol}"\n{more}\n')
    world = build(own, 3)
    assert world.held is not None
    finished = run_arm(own, own.arms[0], world, tmp_path, lambda record: None)
    clients, values = finished.records[0]["figures"][LOCAL]
    assert clients == [0, 1, 2]
    if protocol == "stc":
        assert finished.records[0]["figures"]["parameters"][1] == pytest.approx([0.25] * 3, abs=0.01)
    counts = [len(y) for _, y in world.held]
    # A share of a client's own number of records: the test is on these and on no others.
    right_ones = np.array(values) * counts
    np.testing.assert_allclose(right_ones, np.rint(right_ones), atol=1e-9)
