"""All privacy audits of this package, and the audit that decides whether a GPU keeps records apart.

GPU kernels differ from the CPU's, and this package has not reviewed their code. So `Hardware.require` permits
a record-level epsilon on a GPU only after the audit of `kinks` passed there, once for a device and its
library versions. The verdict is stored in a file in the user's cache, under a digest of the device, the
versions of its libraries and this package's code. A process that can write there can forge the verdict, and
could as well change this package's code: the user is trusted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from dp_accounting import DpEvent
from numpy.typing import NDArray
from torch import nn

from securefl.accounting.events import dump_event
from securefl.algorithm.clients import ClientContext
from securefl.algorithm.queries import Float32s
from securefl.core.errors import ConfigError, DataError
from securefl.data.files import cache_folder
from securefl.dp.noise import Source
from securefl.storage import files
from securefl.training.cohorts import SLOTS, fit_privately
from securefl.training.devices import CPU, Gpu
from securefl.training.jobs import TrainingJob
from securefl.training.local import LocalTraining
from securefl.training.losses import Loss
from securefl.training.models import ModelConfig
from securefl.training.private_steps import DPSGD
from securefl.training.task import Problem
from securefl.training.vector import load_vector

if TYPE_CHECKING:
    from securefl.dp.auditing import Bound

Train = Callable[..., Any]
CLAIM: Final = DPSGD(
    clip_norm=1.3,
    noise_multiplier=1.0,
    sampling_rate=0.5,
    expected_batch=250,
    steps=3,
    optimizer="sgd",
    learning_rate=0.1,
)
"""Private training in which an audit is strongest: few steps, each with a large share of the data."""
_RUNS: Final = 300
_KINKS: Final = (64, 784)
"""The numbers of inputs of the dense layers whose kinks are audited."""


def findings(device: torch.device = CPU) -> Iterator[dict[str, Any]]:
    """The finding of each audit. device: the device of private training and features."""
    from securefl.dp import auditing

    for mechanism in auditing.mechanisms():
        found = auditing.audit(mechanism)
        yield _row(found.name, found.bound, found.verdict, found.failed)
    for name, train in _trained(device).items():
        from securefl.training import canaries  # Opacus takes two seconds to import

        for caught in canaries.audit(CLAIM, runs=_RUNS, train=train, device=device):
            yield _bounded(f"{name} (DP-SGD){_on(device)}", caught)
    yield from of_kinks(device)


def of_kinks(device: torch.device = CPU) -> Iterator[dict[str, Any]]:
    """The findings of the audits with records on the kinks of a model on this device."""
    from securefl.training import kinks  # Opacus takes two seconds to import

    for inputs in _KINKS:
        kink = f"kinks of {inputs} inputs{_on(device)}"
        for name, train in _trained(device).items():
            found = kinks.audit(CLAIM, delta=1e-3, inputs=inputs, train=train, device=device)
            yield _bounded(f"{name}, {kink}", found)
        yield _bounded(f"features, {kink}", kinks.audit_features(delta=1e-3, inputs=inputs, device=device))


def _trained(device: torch.device) -> Mapping[str, Train]:
    """The functions of private training on this device. Only a CPU trains several clients side by side."""
    from securefl.training.dpsgd import train_privately

    ways: dict[str, Train] = {"private training": train_privately}
    if device == CPU:
        ways["private training beside others"] = train_beside_another
    return ways


def _bounded(name: str, found: Bound) -> dict[str, Any]:
    verdict, failed = ("pass", ()) if found.passed else ("FAIL: epsilon", ("epsilon",))
    return _row(name, found, verdict, failed)


def _on(device: torch.device) -> str:
    return "" if device == CPU else f" on {device.type}"


def _row(name: str, found: Bound, verdict: str, failed: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": name,
        "event": dump_event(found.event),
        "delta": found.delta,
        "claimed": found.claimed,
        "lower": min(found.lower, 1e6),  # JSON has no infinity
        "verdict": verdict,
        "failed": list(failed),
    }


# Private training beside another client --------------------------------------------------------------


def train_beside_another(
    model: nn.Module, x: NDArray[Any], y: NDArray[Any], config: DPSGD, loss: Loss, source: Source
) -> DpEvent:
    """`train_privately` in the second slot of a cohort. A client with the same records is in the first slot.

    model: dense layers with ReLU between. A layer without a bias gets one of 0, whose change is discarded.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    problem = _problem(layers, config, loss, x, y)
    start = np.concatenate([part for layer in layers for part in _parts(layer)])
    context = ClientContext(
        client=0, round=1, x=x, y=y, broadcast=start, public={}, rng=np.random.default_rng(0)
    )
    own = TrainingJob(problem=problem, start=start, context=replace(context, source=source))
    _, came = fit_privately([replace(own, context=context), own], SLOTS)
    if isinstance(came, DataError):
        raise came
    load_vector(model, _without_new_biases(layers, came))
    return config.event


def _problem(layers: list[nn.Linear], config: DPSGD, loss: Loss, x: NDArray[Any], y: NDArray[Any]) -> Problem:
    if not layers:
        raise ConfigError("Expected a model of dense layers, got one without any.")
    return Problem(
        model=ModelConfig(kind="mlp", hidden=tuple(layer.out_features for layer in layers[:-1])),
        local=LocalTraining(optimizer="sgd", learning_rate=config.learning_rate, epochs=1, batch_size=1),
        kind="classification" if loss == "cross_entropy" else "regression",
        shape=(layers[0].in_features,),
        outputs=layers[-1].out_features,
        clients=2,
        records=2 * len(x),
        server_x=x,
        server_y=y,
        seed=0,
        private=config,
    )


def _parts(layer: nn.Linear) -> tuple[Float32s, Float32s]:
    """The layer's weight and bias, flattened."""
    bias = layer.bias.detach().numpy() if layer.bias is not None else np.zeros(layer.out_features, np.float32)
    return layer.weight.detach().numpy().ravel(), bias


def _without_new_biases(layers: list[nn.Linear], vector: Float32s) -> Float32s:
    kept, at = [], 0
    for layer in layers:
        weight, bias = (len(part) for part in _parts(layer))
        kept.append(vector[at : at + weight + (bias if layer.bias is not None else 0)])
        at += weight + bias
    return np.concatenate(kept)


# The verdict on a GPU --------------------------------------------------------------------------------


def keeps_apart(
    gpu: Gpu,
    *,
    say: Callable[[str], None] = lambda line: None,
    tried: Callable[[Gpu], bool] | None = None,
    home: Path | None = None,
) -> bool:
    """Whether this GPU keeps records apart: the stored verdict, or a test of at most a minute.

    say: called with a line before a test. tried: the test; by default that of `securefl audit`. home: the
    folder of the stored verdicts; by default in the user's cache.
    """
    path = (home or cache_folder()) / "kinks.json"
    key = subject(gpu)
    verdicts = remembered(path)
    if key in verdicts:
        return verdicts[key]
    say(f"Testing whether {gpu.name()} keeps records apart, once for this device and these versions ...")
    verdict = (tried or _tried)(gpu)
    _remember(path, {**verdicts, key: verdict})
    return verdict


def subject(gpu: Gpu) -> str:
    """A digest of everything that a verdict depends on: device, library versions and code."""
    # Every module of this package: a list of the modules that compute would miss a new one.
    modules = sorted(Path(__file__).parent.glob("*.py"))
    code = [hashlib.sha256(module.read_bytes()).hexdigest() for module in modules]
    return hashlib.sha256(json.dumps([*gpu.facts(), *code]).encode()).hexdigest()


def remembered(path: Path) -> dict[str, bool]:
    """The verdicts in a file. A file that is missing, damaged or of another format gives none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: verdict for key, verdict in found.items() if isinstance(verdict, bool)}


def _remember(path: Path, verdicts: Mapping[str, bool]) -> None:
    try:
        files.write(path, json.dumps(verdicts, indent=1) + "\n")
    except (OSError, DataError):
        return  # without a stored verdict the next run repeats the test, which takes a minute


def _tried(gpu: Gpu) -> bool:
    return all(found["verdict"] == "pass" for found in of_kinks(gpu.device))
