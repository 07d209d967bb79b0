"""The digest of a caller's code: of what it would do, and not of its name."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import types
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from support.every import every

from securefl.training.reached_code import UNKNOWN, code_digest

CELL = """
import dataclasses, enum, functools
import numpy as np
import torch
from torch import nn
import helper

SIGN = -1
RATES = {"a": np.arange(3), "b": {1.0, 2.0}}

class Order(enum.Enum):
    FIRST = "first"

class Slowest:
    def draw(self, population, count):
        return [k for k in np.argsort(SIGN * population)[:count]]

@dataclasses.dataclass(frozen=True)
class Whole:
    rate: float = 0.5

class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x):
        return act(self.layer(x))

    @staticmethod
    def scale():
        return 1

    @property
    def width(self):
        return 8

    @functools.lru_cache
    def cached(self):
        return 2

def act(x):
    return torch.relu(x)

def own(problem, fraction, factor=1.0):
    import late
    return Slowest(), Whole(), Net, Order.FIRST, RATES, helper.order(problem), late.W, (lambda: factor)
"""
EDITS = {
    "a global": ("SIGN = -1", "SIGN = 1"),
    "an array": ("np.arange(3)", "np.arange(1, 4)"),
    "a set": ("2.0}", "3.0}"),
    "a method": ("[:count]", "[:count - 1]"),
    "a default": ("factor=1.0", "factor=2.0"),
    "a field": ("rate: float = 0.5", "rate: float = 0.6"),
    "a member": ('"first"', '"last"'),
    "a function that a method calls": ("torch.relu", "torch.tanh"),
    "a static method": ("return 1", "return 3"),
    "a property": ("return 8", "return 9"),
    "a cached method": ("return 2", "return 4"),
    "a lambda inside": ("(lambda: factor)", "(lambda: -factor)"),
}


def module(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = types.ModuleType(name)
    exec(text, vars(found))
    monkeypatch.setitem(sys.modules, name, found)
    return found


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    module("helper", "def order(x): return x\ndef unused(): return 1", monkeypatch)
    module("late", "W = 8", monkeypatch)
    return monkeypatch


def cell(text: str = CELL) -> Any:
    """A cell of a notebook: Python finds no source, and `__name__` names no module."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names["own"]


@every("edit", EDITS)
def test_an_edited_cell_is_other_code(edit: str, imported: pytest.MonkeyPatch) -> None:
    before, after = EDITS[edit]
    assert CELL.count(before) == 1
    first = code_digest(cell())
    assert not first.startswith(UNKNOWN)
    assert code_digest(cell(CELL.replace(before, after))) != first


def test_the_same_cell_is_the_same_code(imported: pytest.MonkeyPatch) -> None:
    first = code_digest(cell())
    assert code_digest(cell("# a comment\n\n" + CELL + "\nunrelated = 1\n")) == first
    module("helper", "def order(x): return x\ndef unused(): return 2", imported)
    assert code_digest(cell()) == first, "nothing calls it"
    module("helper", "def order(x): return -x", imported)
    assert code_digest(cell()) != first
    module("helper", "def order(x): return x", imported)
    module("late", "W = 9", imported)
    assert code_digest(cell()) != first


def test_captured_values_and_arguments_count() -> None:
    def made(value: Any) -> Any:
        return lambda x: value(x)

    values = [torch.relu, torch.tanh, np.exp, made(abs), functools.partial(cell, 1), torch.nn.ReLU(), len]
    values += [torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2), np.zeros(2), np.float32, torch.float32]
    digests = [
        code_digest(found) for value in values for found in (made(value), functools.partial(made, value))
    ]
    assert len({*digests}) == 2 * len(values)
    assert not any(found.startswith(UNKNOWN) for found in digests)
    assert digests[0] == code_digest(made(torch.relu))


@every("thing", [Lock(), sys.stdout, (k for k in ())])
def test_what_cannot_be_read_is_never_the_same(thing: Any) -> None:
    first, second = code_digest(lambda: thing), code_digest(lambda: thing)
    assert first.startswith(UNKNOWN)
    assert first != second


def test_the_order_of_sets_in_another_process_does_not_count() -> None:
    script = (
        "from securefl.training.reached_code import code_digest\n"
        "def f(x): return x in {'a', 'b', 'c'}\n"
        "print(code_digest(f, {'a', 'b', 'c'}))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
