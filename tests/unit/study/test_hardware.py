"""The device of a run: chosen, noted, kept, left when memory runs out, and trusted with records or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import said as command
from support.every import every
from support.gpus import FakeGpu
from support.private_studies import private
from support.tiny_problem import client_context
from support.tiny_study import FEDAVG, study, text

from securefl.core.errors import ConfigError, SecureFLError
from securefl.study import composition
from securefl.study.config import RuntimeSection, Study
from securefl.study.folder import DEVICE_NOTE, devices, hardware_of, note_device
from securefl.study.seeded import World
from securefl.study.session import reopen, run_study
from securefl.study.world import build
from securefl.training import devices as training_devices
from securefl.training import run_jobs as fits
from securefl.training.devices import Hardware, Wanted


def on(device: Wanted, of: Study | None = None) -> Study:
    return replace(of or study(FEDAVG), runtime=RuntimeSection(training="sequential", device=device))


def quiet(*_: object) -> None:
    pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The GPU of this machine, for as long as the test runs."""
    made = FakeGpu()
    monkeypatch.setattr(training_devices, "Cuda", lambda: made)
    return made


def test_a_run_is_noted_where_it_was_and_goes_on_there(tmp_path: Path) -> None:
    assert RuntimeSection().device == "auto"
    first = hardware_of(on("auto"), tmp_path, False, quiet, FakeGpu())
    note_device(tmp_path, first)
    assert devices(tmp_path) == ["cpu: Fake 1"]
    again = hardware_of(on("auto"), tmp_path, True, quiet, FakeGpu())
    assert again.gpu is not None
    note_device(tmp_path, again)
    assert devices(tmp_path) == ["cpu: Fake 1"]


@every(
    ("wanted", "gpu"),
    [("auto", FakeGpu(broken="")), ("auto", FakeGpu(said="Fake 2")), ("cpu", FakeGpu())],
)
def test_a_run_does_not_go_on_elsewhere(tmp_path: Path, wanted: Wanted, gpu: FakeGpu) -> None:
    (tmp_path / DEVICE_NOTE).write_text("cpu: Fake 1\n")
    with pytest.raises(ConfigError, match=r"cpu: Fake 1"):
        hardware_of(on(wanted), tmp_path, True, quiet, gpu)


def test_a_run_that_began_on_the_cpu_stays_there(tmp_path: Path) -> None:
    assert hardware_of(on("auto"), tmp_path, True, quiet, FakeGpu()).gpu is None
    with pytest.raises(ConfigError, match=r"\(cpu\), got cpu: Fake 1"):
        hardware_of(on("cuda"), tmp_path, True, quiet, FakeGpu())
    note_device(tmp_path, Hardware())
    assert not (tmp_path / DEVICE_NOTE).exists()


# Memory -------------------------------------------------------------------------------------------------


def full_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Memory runs out in the middle of a training: when it has drawn and moved the model already."""
    calls, train = 0, fits.train

    def failing(*args: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        train(*args, **named)
        if calls == call:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(fits, "train", failing)


def accuracies(of: Study, folder: Path, say: Callable[[str], None] = quiet) -> list[float]:
    found: list[float] = []

    def tell(arm: object, seed: int, record: Mapping[str, Any]) -> None:
        found.extend((record["accuracy"], record["loss"]))

    run_study(of, folder, tell, say=say)
    return found


def test_a_full_gpu_is_left_in_the_middle_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu
) -> None:
    expected = accuracies(on("cpu"), tmp_path / "cpu")
    said: list[str] = []
    full_at(monkeypatch, 5)
    assert accuracies(on("auto"), tmp_path / "gpu", said.append) == expected
    assert said == ["cpu: Fake 1 has too little memory for this: the rest of the run is computed on the CPU."]
    assert devices(tmp_path / "gpu") == ["cpu: Fake 1", "cpu"]
    versions = json.loads((tmp_path / "gpu" / "versions.json").read_text())
    assert versions["device"] == "cpu: Fake 1, then cpu"
    assert "cpu: Fake 1, then cpu" in (tmp_path / "gpu" / "report.html").read_text()
    reopen(tmp_path / "gpu", tmp_path / "again")
    assert json.loads((tmp_path / "again" / "versions.json").read_text()) == versions
    assert hardware_of(on("auto"), tmp_path / "gpu", True, quiet, gpu).gpu is None


def test_a_full_gpu_ends_a_run_that_insists_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu
) -> None:
    full_at(monkeypatch, 5)
    with pytest.raises(SecureFLError, match=r'"cuda".*--device auto'):
        accuracies(on("cuda"), tmp_path)
    assert devices(tmp_path) == ["cpu: Fake 1"]


# Records ------------------------------------------------------------------------------------------------


def with_verdict(monkeypatch: pytest.MonkeyPatch, verdict: bool) -> list[str]:
    """Let the kink test end so, and note whom it was of."""
    of: list[str] = []

    def keeps_apart(gpu: FakeGpu, say: Callable[[str], None]) -> bool:
        of.append(gpu.name())
        return verdict

    monkeypatch.setattr(composition, "keeps_apart", keeps_apart)
    return of


def composed(of: Study, hardware: Hardware) -> World:
    world = build(of, of.study.seeds[0], hardware)
    for _ in range(2):
        for arm in of.arms:
            composition.composition(of, arm, world)
    return world


PRIVATE = {
    "private training": private("fedavg", "fraction = 1.0"),
    "noised sums": private(
        "fedlog", 'body = "public"', noise='"local"', epsilon="1.0", adjacency="add-remove"
    ),
}


@every("kind", PRIVATE)
def test_an_epsilon_per_record_needs_a_gpu_that_keeps_records_apart(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    tried = with_verdict(monkeypatch, True)
    assert composed(PRIVATE[kind], Hardware(FakeGpu())).problem.hardware.gpu is not None
    assert tried == ["Fake 1"]


@every("kind", PRIVATE)
def test_a_gpu_that_does_not_is_left_under_auto_and_said_once(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with_verdict(monkeypatch, False)
    said: list[str] = []
    hardware = Hardware(FakeGpu(), falls_back=True, say=said.append)
    assert composed(PRIVATE[kind], hardware).problem.hardware.words == "cpu"
    assert said == [
        "cpu: Fake 1 does not keep records apart, so no record-level epsilon holds on it: the run is "
        "computed on the CPU."
    ]


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_gpu_that_does_not_is_refused_under_cuda(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: FakeGpu, kind: str
) -> None:
    with_verdict(monkeypatch, False)
    with pytest.raises(ConfigError, match="securefl audit --device cuda"):
        run_study(on("cuda", PRIVATE[kind]), tmp_path / "run", quiet)
    assert not (tmp_path / "run").exists()


def test_without_an_epsilon_per_record_no_gpu_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = with_verdict(monkeypatch, False)
    assert composed(study(FEDAVG), Hardware(FakeGpu())).problem.hardware.gpu is not None
    assert tried == []


def test_a_cpu_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = with_verdict(monkeypatch, False)
    composed(PRIVATE["private training"], Hardware())
    assert tried == []


def test_private_training_begins_anew_with_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    from securefl.core.keys import SecretKey
    from securefl.dp.noise import Source

    def fit(hardware: Hardware) -> Any:
        world = build(PRIVATE["private training"], 3, hardware)
        x, y = world.records[0]
        own = Source(SecretKey(bytes(32)))
        context = client_context(x, y, broadcast=world.problem.initial, source=own)
        return fits.run_job(
            fits.TrainingJob(problem=world.problem, start=world.problem.initial, context=context)
        )

    expected = fit(Hardware())
    calls, real = 0, Source.normal

    def full(source: Source, length: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(source, length)

    monkeypatch.setattr(Source, "normal", full)
    assert np.array_equal(fit(Hardware(FakeGpu(), falls_back=True)), expected)
    assert calls > 3


# Commands -----------------------------------------------------------------------------------------------


def test_the_command_takes_the_device_in_place_of_the_studys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_devices, "Cuda", lambda: FakeGpu(broken=""))
    config, out = tmp_path / "study.toml", tmp_path / "run"
    config.write_text(text(FEDAVG, extra='[runtime]\ndevice = "cuda"\n'))
    refused = command("run", config, "--out", out)
    assert 'Expected a GPU for device = "cuda"' in str(refused.exception)
    assert not out.exists()
    done = command("run", config, "--out", out, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert (out / "study.toml").read_text() == config.read_text()
    assert json.loads((out / "versions.json").read_text())["device"] == "cpu"


def test_an_audit_of_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_devices, "Cuda", lambda: FakeGpu(broken=""))
    done = command("audit", "--device", "cuda")
    assert isinstance(done.exception, ConfigError)
