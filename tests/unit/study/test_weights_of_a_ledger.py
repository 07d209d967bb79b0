"""Initial weights of the clients' own records: their run is in the shared ledger, or the study is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.cheap_runs import unreported
from support.every import every
from support.private_studies import private

from securefl.accounting.shared import runs_of
from securefl.core.errors import ConfigError
from securefl.study import accounted, world
from securefl.study.config import Study, parse
from securefl.study.export import taken
from securefl.study.run import run_arm
from securefl.study.session import run_study
from securefl.training.exported import read, save

MODEL = "model.safetensors"
FOREIGN = "which is not in "


def of(home: Path, ledger: str | None, weights: Path | None = None, origin: str = "ledger") -> Study:
    """A study of one round, in this shared ledger, that starts from these weights of this origin."""
    named = {} if ledger is None else {"ledger": f'"{home / ledger}"', "budget": "4.0"}
    text = private("fedavg", 'fraction = 1.0\naggregation = "partial"', rounds=1, **named).text
    if weights is not None:
        text = text.replace("hidden = [8]", f'hidden = [8]\nweights = "{weights}"\ntrained_on = "{origin}"')
    return parse(text, home=home)


def ran(own: Study, folder: Path) -> None:
    with unreported():
        run_study(own, folder, lambda arm, seed, record: None, baselines=False)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The export of a run in the shared ledger `people`."""
    own = of(tmp_path, "people")
    ran(own, tmp_path / "first")
    taken(own, tmp_path / "first", "x").write(tmp_path / MODEL)
    return tmp_path / MODEL


def test_a_run_in_the_same_ledger_goes_on_from_the_export_and_both_are_counted(
    first: Path, tmp_path: Path
) -> None:
    own = of(tmp_path, "people", first)
    lines, figures = accounted.forecast(own, world.build(own, 3))
    assert figures["ledger"]["refused"] is None, lines
    ran(own, tmp_path / "second")
    held = runs_of(tmp_path / "people")
    assert len(held.entries) == 2
    assert "has the epsilon of both runs together" in world.build(own, 3).marks.outside[0]
    taken(own, tmp_path / "second", "x").write(tmp_path / "third.safetensors")
    ran(of(tmp_path, "people", tmp_path / "third.safetensors"), tmp_path / "third")


def refused(own: Study, folder: Path, said: str) -> None:
    """By a run, by a plan, and by an arm that is run alone; before anything is written."""
    for begin in (
        lambda: ran(own, folder / "second"),
        lambda: accounted.forecast(own, world.build(own, 3)),
        lambda: run_arm(own, own.arms[0], world.build(own, 3), folder / "alone", lambda record: None),
    ):
        with pytest.raises(ConfigError, match=said):
            begin()
    assert not (folder / "second").exists()


def test_weights_of_a_run_in_another_ledger_are_refused_before_anything_is_written(
    first: Path, tmp_path: Path
) -> None:
    refused(of(tmp_path, "others", first), tmp_path, FOREIGN)
    assert not (tmp_path / "others").exists()


@every("part", ["whole", "client"])
def test_weights_of_a_run_that_the_ledger_holds_are_not_public(
    part: str, first: Path, tmp_path: Path
) -> None:
    home, file = first.parent, tmp_path / "changed.safetensors"
    file.write_bytes(first.read_bytes())
    _carded(file, lambda card: card.update(part=part))
    refused(of(home, "people", file, "public"), tmp_path, r'people holds.*Set trained_on = "ledger"')
    assert len(runs_of(home / "people").entries) == 1
    ran(of(tmp_path, "others", file, "public"), tmp_path / "third")  # of other people's run


def test_weights_of_a_run_without_a_ledger_are_refused_until_it_is_run_again_in_the_ledger(
    tmp_path: Path,
) -> None:
    alone = of(tmp_path, None)
    ran(alone, tmp_path / "alone")
    taken(alone, tmp_path / "alone", "x").write(tmp_path / "alone.safetensors")
    with pytest.raises(ConfigError, match=r"If it had none, run it again with this one"):
        ran(of(tmp_path, "people", tmp_path / "alone.safetensors"), tmp_path / "second")
    again = of(tmp_path, "people")
    ran(again, tmp_path / "again")
    taken(again, tmp_path / "again", "x").write(tmp_path / "again.safetensors")
    ran(of(tmp_path, "people", tmp_path / "again.safetensors"), tmp_path / "second")


def _carded(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors, card = read(path)
    change(card)
    save(path, tensors, card)


UNKNOWN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no card": (
        lambda path: save_file({"fc1.bias": np.ones(8, np.float32)}, path),
        "a file without a card. Take what `securefl export` wrote",
    ),
    "one client's": (
        lambda path: _carded(path, lambda card: card.update(part="client")),
        "the model of one client, which no epsilon covers. Export the run without --client",
    ),
    "no run": (lambda path: _carded(path, lambda card: card["ledger"].pop("run")), "a card without its run"),
    "a run that is no text": (
        lambda path: _carded(path, lambda card: card["ledger"].update(run=[1])),
        "a card without its run",
    ),
    "no ledger": (lambda path: _carded(path, lambda card: card.pop("ledger")), "a file without a card"),
}


@every(("change", "message"), UNKNOWN.values())
def test_a_file_that_names_no_run_or_is_not_covered_by_its_epsilon_is_refused(
    change: Callable[[Path], object], message: str, first: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed.safetensors"
    changed.write_bytes(first.read_bytes())
    change(changed)
    with pytest.raises(ConfigError, match=message):
        ran(of(tmp_path, "people", changed), tmp_path / "second")
    assert not (tmp_path / "second").exists()
