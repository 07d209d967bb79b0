"""A GPU's kink test is done once, for a device and its versions, and remembered in the user's cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting import GaussianDpEvent
from support.every import every
from support.gpus import FakeGpu

from securefl.dp.auditing import Bound
from securefl.training import audits, kinks
from securefl.training.audits import keeps_apart, remembered, subject
from securefl.training.devices import Gpu


class Tried:
    """The test, and how often it was done."""

    def __init__(self, verdict: bool = True) -> None:
        self.verdict, self.times = verdict, 0

    def __call__(self, gpu: Gpu) -> bool:
        self.times += 1
        return self.verdict


@every("verdict", [True, False])
def test_a_verdict_is_found_once_and_said(tmp_path: Path, verdict: bool) -> None:
    tried, said = Tried(verdict), list[str]()
    for _ in range(3):
        assert keeps_apart(FakeGpu(), tried=tried, home=tmp_path / "new", say=said.append) is verdict
    assert tried.times == 1
    assert said == ["Testing whether Fake 1 keeps records apart, once for this device and these versions ..."]


def test_another_device_or_version_is_tried_for_itself(tmp_path: Path) -> None:
    first = FakeGpu()
    others = [
        replace(first, said="Fake 2"),
        *(
            replace(first, versions=(*first.versions[:k], "other", *first.versions[k + 1 :]))
            for k in range(len(first.versions))
        ),
    ]
    for gpu in (first, *others):
        tried = Tried()
        assert keeps_apart(gpu, tried=tried, home=tmp_path)
        assert tried.times == 1
    tried = Tried(False)
    assert keeps_apart(first, tried=tried, home=tmp_path)
    assert tried.times == 0


@every("module", ["chunks.py", "products.py", "vector.py"])
def test_other_code_is_tried_for_itself(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = subject(FakeGpu()), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b" " * (path.name == module))
    assert subject(FakeGpu()) != before


DAMAGED: dict[str, Callable[[str], bytes]] = {
    "no JSON": lambda key: b"{",
    "no text": lambda key: b"\xff\xfe\x00",
    "nested without end": lambda key: b"[" * 100_000,
    "a list": lambda key: b"[]",
    "a verdict that is no boolean": lambda key: json.dumps({key: "yes"}).encode(),
    "a number for a verdict": lambda key: json.dumps({key: 1}).encode(),
    "nothing": lambda key: b"",
}


@every("damage", DAMAGED)
def test_a_damaged_file_is_ignored_and_written_anew(tmp_path: Path, damage: str) -> None:
    gpu, path, tried = FakeGpu(), tmp_path / "kinks.json", Tried(False)
    path.write_bytes(DAMAGED[damage](subject(gpu)))
    for _ in range(2):
        assert not keeps_apart(gpu, tried=tried, home=tmp_path)
    assert tried.times == 1
    assert remembered(path) == {subject(gpu): False}


def test_a_cache_that_cannot_be_written_costs_the_test_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "kinks.json").symlink_to(tmp_path / "elsewhere")
    for home in (tmp_path / "file", tmp_path):
        tried = Tried()
        assert keeps_apart(FakeGpu(), tried=tried, home=home)
        assert tried.times == 1
    assert not (tmp_path / "elsewhere").exists()


def test_the_file_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert keeps_apart(FakeGpu(), tried=Tried())
    assert remembered(tmp_path / "securefl" / "kinks.json") == {subject(FakeGpu()): True}


@every(("lower", "verdict"), [(0.5, True), (9.0, False)])
def test_the_test_is_the_audits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lower: float, verdict: bool
) -> None:
    devices: list[torch.device] = []

    def flipped(*_: Any, delta: float, inputs: int, device: torch.device, **_train: Any) -> Bound:
        devices.append(device)
        return Bound(delta=delta, event=GaussianDpEvent(1.0), lower=0.0 if inputs == 64 else lower)

    monkeypatch.setattr(kinks, "audit", flipped)
    monkeypatch.setattr(kinks, "audit_features", flipped)
    gpu = replace(FakeGpu(), device=torch.device("meta"))
    assert keeps_apart(gpu, home=tmp_path) is verdict
    assert set(devices) == {gpu.device}
    names = {found["name"] for found in audits.of_kinks(gpu.device)}
    assert "private training, kinks of 64 inputs on meta" in names
