"""Where models are computed: the choice of a device, full memory, precision, arrays in and arrays out."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.every import every
from support.gpus import Exhausted, FakeGpu
from support.tiny_dpsgd import config
from torch import nn

from securefl.core.errors import ConfigError, SecureFLError
from securefl.dp.noise import Source
from securefl.training import (
    LocalTraining,
    evaluate,
    mean_loss,
    outputs,
    profile,
    record_losses,
    to_vector,
    train,
)
from securefl.training.chunks import body_features
from securefl.training.devices import (
    CPU,
    Cuda,
    Hardware,
    chosen,
    computed,
    device_of,
    full_precision,
    records_apart,
    seeded,
)
from securefl.training.dpsgd import train_privately

X = np.random.default_rng(0).random((70, 6), dtype=np.float32)
Y = np.arange(70) % 3


def test_auto_takes_a_gpu_that_works_and_else_the_cpu() -> None:
    gpu, said = FakeGpu(), list[str]()
    assert chosen("auto", said.append, gpu).gpu is gpu
    assert chosen("auto", said.append, FakeGpu(broken="")).gpu is None
    assert said == []
    assert chosen("cpu", said.append, gpu).words == "cpu"
    assert chosen("cuda", said.append, gpu).words == "cpu: Fake 1"


def test_a_gpu_that_cannot_be_used_is_said_under_auto() -> None:
    said: list[str] = []
    assert chosen("auto", said.append, FakeGpu(broken="CUDA error: out of memory")).gpu is None
    assert said == [
        "There is a GPU, but it cannot be used (CUDA error: out of memory): the run is computed on the CPU."
    ]


@every(("broken", "told"), [("", "none: torch finds no CUDA device"), ("driver too old", "driver too old")])
def test_cuda_without_a_gpu_is_refused(broken: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f'Expected a GPU for device = "cuda", got {told}. Install'):
        chosen("cuda", gpu=FakeGpu(broken=broken))


def model(layer: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), layer, nn.ReLU(), nn.Linear(5, 3))


def evaluated(made: nn.Module) -> tuple[float, float]:
    found = evaluate(made, X, Y, "classification")
    return found.accuracy, found.loss


READS: dict[str, Callable[[nn.Module], Any]] = {
    "evaluation": evaluated,
    "mean loss": lambda m: mean_loss(m, X, Y),
    "losses": lambda m: record_losses(m, X, Y, "cross_entropy"),
    "profile": lambda m: (profile(m, "0", X).mean, profile(m, "0", X).variance),
    "outputs": lambda m: outputs(m, "0", X),
    "features": lambda m: body_features(m, X),
}


@every("kind", READS)
def test_a_full_gpu_is_left_for_the_cpu_under_auto_and_said_once(kind: str) -> None:
    said, left, gpu = list[str](), list[str](), FakeGpu()
    hardware = Hardware(gpu, falls_back=True, say=said.append, left=lambda: left.append("left"))
    found = READS[kind](hardware.put(model(Exhausted())))
    # `Exhausted` is no listed layer, so each record is read alone, by other kernels than a chunk.
    np.testing.assert_allclose(found, READS[kind](model(nn.Identity())), rtol=1e-5, atol=1e-6)
    assert said == ["cpu: Fake 1 has too little memory for this: the rest of the run is computed on the CPU."]
    assert left == ["left"]
    assert gpu.emptied_times == 1
    assert (hardware.gpu, hardware.device, hardware.words) == (None, CPU, "cpu")


@every("kind", READS)
def test_a_full_gpu_ends_a_run_that_insists_on_it(kind: str) -> None:
    full = Hardware(FakeGpu()).put(model(Exhausted()))
    with pytest.raises(SecureFLError, match="--device auto or cpu") as caught:
        READS[kind](full)
    assert "Tried to allocate 2.00 GiB." in str(caught.value)
    assert "More" not in str(caught.value)


def test_other_errors_and_other_models_are_left_alone() -> None:
    def failing() -> None:
        raise RuntimeError("shapes do not fit")

    hardware = Hardware(FakeGpu(), falls_back=True)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        computed(hardware.put(nn.Linear(1, 1)), failing)
    assert hardware.gpu is not None
    for elsewhere in (model(Exhausted()), Hardware().put(model(Exhausted()))):
        with pytest.raises(torch.OutOfMemoryError):
            evaluate(elsewhere, X, Y, "classification")


def test_the_errors_of_cudas_libraries_count_as_full_memory() -> None:
    hardware = Hardware(FakeGpu(), falls_back=True)
    hardware.leave(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert hardware.gpu is None


class TooLarge(nn.Linear):
    """A model that fits nowhere but on the CPU."""

    def to(self, *args: Any, **named: Any) -> Any:
        if args != (CPU,) or not self.tried:
            self.tried = True
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().to(*args, **named)

    tried = False


def test_a_model_that_does_not_fit_stays_on_the_cpu() -> None:
    hardware = Hardware(FakeGpu(), falls_back=True)
    assert hardware.put(TooLarge(1, 1)).weight.device == CPU
    assert hardware.gpu is None
    with pytest.raises(SecureFLError, match="Expected enough memory"):
        Hardware(FakeGpu()).put(TooLarge(1, 1))


def test_a_model_without_parameters_is_on_the_cpu() -> None:
    assert device_of(nn.ReLU()) == CPU
    assert device_of(nn.Linear(2, 2, device="meta")) == torch.device("meta")


@every(("context", "cudnn"), [(full_precision, True), (records_apart, False)])
def test_precision_is_set_for_a_gpu_and_given_back(context: Callable[..., object], cudnn: bool) -> None:
    def flags() -> tuple[bool, ...]:
        own = torch.backends.cudnn
        return (
            own.enabled,
            own.deterministic,
            own.benchmark,
            own.allow_tf32,
            torch.backends.cuda.matmul.allow_tf32,
        )

    before = flags()
    with context(torch.device("cuda")):  # type: ignore[attr-defined]
        assert flags() == (cudnn, True, False, False, False)
    assert flags() == before
    with context(CPU):  # type: ignore[attr-defined]
        assert flags() == before


def test_asking_for_a_gpu_says_nothing_and_starts_nothing() -> None:
    """In a process of its own, in which every warning is an error."""
    code = (
        "import torch\nfrom securefl.training.devices import chosen\n"
        "assert chosen('auto', print).gpu is None and not torch.cuda.is_initialized()\n"
    )
    if Cuda().fault() is None:
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_copy_of_a_model_is_left_alone() -> None:
    hardware = Hardware(FakeGpu(), falls_back=True)
    other = copy.deepcopy(hardware.put(model(Exhausted())))
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(other, X, Y, "classification")
    assert to_vector(other).dtype == np.float32


PRIVATE = config(expected_batch=35, steps=2, optimizer="adam", proximal=0.1)
LOCAL = LocalTraining(
    optimizer="sgd", learning_rate=0.1, momentum=0.5, steps=3, batch_size=32, proximal=0.1, weight_decay=0.1
)


@every(
    "compute",
    [
        lambda m: train(m, X, Y, LOCAL, "cross_entropy", np.random.default_rng(0), 0),
        lambda m: train_privately(m, X, Y, PRIVATE, "cross_entropy", Source()),
        *READS.values(),
    ],
)
def test_all_tensors_are_where_the_model_is(
    monkeypatch: pytest.MonkeyPatch, compute: Callable[[nn.Module], object]
) -> None:
    """Tensors on "meta" have no values: all goes well until one is read, and two devices never mix."""
    for module in ("dpsgd", "chunks"):
        monkeypatch.setattr(f"securefl.training.{module}.require_apart", lambda *args, **named: None)
    with pytest.raises(
        RuntimeError, match=r"item\(\) cannot be called on meta|Cannot copy out of meta tensor"
    ):
        compute(model(nn.Identity()).to("meta"))


def test_layers_on_a_gpu_draw_from_its_generator_which_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its generator was left as an earlier training had it: dropout hung on the order of the clients."""
    state, gpu = {"seed": 7}, torch.device("cuda", 0)
    doubles: dict[str, Callable[..., Any]] = {
        "get_rng_state": lambda device="cuda": torch.tensor([state["seed"]]),
        "set_rng_state": lambda kept, device="cuda": state.update(seed=int(kept)),
        "manual_seed": lambda seed: state.update(seed=seed),
    }
    for name, double in doubles.items():
        monkeypatch.setattr(torch.cuda, name, double)
    before = torch.get_rng_state()
    for device, within in ((gpu, 11), (CPU, 7)):
        with seeded(11, device):
            assert state["seed"] == within
            here = torch.rand(3)
        assert state["seed"] == 7
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(here, torch.rand(3, generator=torch.Generator().manual_seed(11)))
