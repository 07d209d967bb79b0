"""A protocol from outside the package, in one file: it says what it sends and how its round goes, no more.

The clients count their labels; the server sums the counts, and predicts the most frequent label.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.every import every
from support.tiny_study import text

from securefl.algorithm.clients import (
    Algorithm,
    ClientContext,
    Device,
    Evaluation,
    Population,
    RoundResult,
    State,
)
from securefl.algorithm.queries import Answers, CohortQuery, Sum, Value, ValueSpec
from securefl.study import config, run_report
from securefl.study.session import run_study
from securefl.training.task import Problem

LABELS = 10
ARM = '[[arm]]\nname = "Counting"\nprotocol = "counting"\n'


@dataclass(frozen=True)
class Counts:
    """How many records of each label a client has; a record moves one count."""

    clients: int

    @property
    def spec(self) -> ValueSpec:
        return ValueSpec(
            name="labels",
            reduction="sum",
            reveals="how many records have each label",
            on_model=False,
            sensitivity={("record", "add-remove"): 1.0},
            cohort=self.clients,
        )

    def compute(self, context: ClientContext) -> Value:
        return Value.summed(np.eye(LABELS)[context.y], self.spec.grid, 1.0)


@dataclass(frozen=True)
class Majority:
    """Ask everybody once a round; what is most frequent is predicted."""

    problem: Problem

    @property
    def contributions(self) -> tuple[Counts]:
        return (Counts(self.problem.clients),)

    def start(self) -> State:
        return State(np.zeros(0, np.float32))

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[CohortQuery, Answers, RoundResult]:
        everybody = population.everyone()
        answers = yield CohortQuery(
            cohort=everybody, broadcast=state.broadcast, sums=(Sum(self.contributions[0].spec, LABELS),)
        )
        if answers.survivors:
            state = State(answers.totals["labels"].value.astype(np.float32))
        return RoundResult(
            state=state,
            drawn=dict.fromkeys(everybody, 1),
            survivors=answers.survivors,
            figures={"turn": np.full(population.clients, float(number))},
        )

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        right = self.problem.server_y == int(np.argmax(state.broadcast))
        return Evaluation(accuracy=float(np.mean(right)), loss=0.0)


@dataclass(frozen=True, kw_only=True)
class Counting:
    """The options of an arm: none."""

    def build(self, problem: Problem) -> Algorithm:
        return Majority(problem)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a distribution would be that has it in the entry-point group `securefl.protocols`."""
    own = EntryPoint("counting", f"{__name__}:Counting", "securefl.protocols")
    found = config.entry_points
    monkeypatch.setattr(config, "entry_points", lambda group: (*found(group=group), own))


CLEAR: Mapping[str, str] = {}
MASKED = {
    'sum = "clear"': 'sum = "masked"\ndropout = 0.2\ncorrupt = 0.0',
    "min_cohort_size = 2": "min_cohort_size = 3",
}
NOISED = {
    'noise = "none"': 'noise = "distributed"\nepsilon = 4.0',
    'adjacency = "replace-one"': 'adjacency = "add-remove"',
    'non_private = ["labels"]': "non_private = []",
}


@pytest.mark.usefixtures("installed")
@every(
    "changes",
    [
        CLEAR,
        MASKED,
        *(
            MASKED | {'sum = "clear"': f'sum = "{scheme}"\ndropout = 0.2\ncorrupt = 0.0'}
            for scheme in ("ckks", "two-server")
        ),
        MASKED | NOISED,
    ],
)
def test_a_protocol_from_outside_runs_however_it_is_summed(
    changes: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = changes == MASKED | NOISED
    if not drawn:  # a page takes ten times as long as its run
        monkeypatch.setattr(run_report, "write", lambda *args, **named: tmp_path)
    written = text(ARM, non_private='["labels"]', clients=4)
    for old, new in changes.items():
        assert old in written
        written = written.replace(old, new)
    found, page = run_study(config.parse(written), tmp_path, lambda arm, seed, record: None)
    assert page.is_file() == drawn
    assert found.metrics["answered"].tolist() == [4, 4]
    assert found.participation["selected"].tolist() == [2] * 4
    if drawn:
        table = pd.read_csv(tmp_path / "private" / "figures.csv", comment="#")
        assert set(table["figure"]) == {"turn"}
        assert table["value"].tolist() == [1.0] * 4 + [2.0] * 4
    assert 0.05 < found.summary[0].final_accuracy < 0.25
    finite = "epsilon" in "".join(changes.values())
    assert np.isfinite(found.summary[0].epsilon["server"]) == finite
